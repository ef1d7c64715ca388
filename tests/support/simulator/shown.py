"""What of all that happened stands in the traces: windows, losses, and what the profiler does not see."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .clock import RankClock, clock_of
from .draws import Draws
from .ops import Communication
from .physics import LAUNCHED_AT, Timeline
from .ran import Ran, StepRan
from .world import World

_DRAWN = 1024


@dataclass(slots=True)
class Seen:
    """An operation in a trace: is its CPU side there (from before its launch on), its kernel, the kernel's launch?"""

    ran: Ran
    cpu: bool
    launch: bool
    kernel: bool


@dataclass(frozen=True)
class Trace:
    """One file: what it shows of a rank, from `opened_us` to `closed_us` of true time."""

    rank: int
    cycle: int
    opened_us: float
    closed_us: float
    clock: RankClock
    seen: list[Seen]
    steps: list[StepRan]


def traces(world: World, happened: Timeline) -> list[Trace]:
    """All files of a world, by rank and cycle."""
    made, last = [], _last_us(world, happened)
    for rank in range(world.size):
        if rank in world.losses.ranks:
            continue
        for cycle, (opened, closed) in enumerate(_windows(world, happened, rank, last)):
            made.append(_trace(world, happened, last, (rank, cycle, opened, closed)))
    return made


def _windows(world: World, happened: Timeline, rank: int, last: float) -> list[tuple[float, float]]:
    """When the profiler of a rank starts and ends, in us of true time, the `last` of which nothing is behind."""
    times, steps = happened.times, happened.steps[rank]
    if world.window.spans:
        begin, end = world.window.spans[rank % len(world.window.spans)]
        return [(begin * last, end * last)]
    found = []
    for first, final in world.window.steps_of(rank, world.steps):
        opened, closed = times[steps[first].begin], times[steps[final].stopped]
        if opened < last:
            found.append((opened, min(closed, last)))
    return found


def _last_us(world: World, happened: Timeline) -> float:
    """When the last thing happens, or a hanging job is ended."""
    last = max(time for time in happened.times if time < math.inf)
    return last + (world.hang.after_us if world.hang is not None else 0.0)


def _trace(world: World, happened: Timeline, last: float, window: tuple[int, int, float, float]) -> Trace:
    rank, cycle, opened, closed = window
    times = happened.times
    gone = [(b * last, e * last) for r, b, e in world.losses.ranges if r == rank]

    def there(begin: float) -> bool:
        return opened <= begin < closed and not any(b <= begin < e for b, e in gone)

    seen, early, lost = [], [], _Lost(world, Draws(world.seed), rank)
    for ran in happened.ran[rank]:
        begin = times[ran.begin]
        launched = begin + LAUNCHED_AT * ran.cost_us
        cpu = there(begin) and not world.layout.graph
        launch = ran.start >= 0 and there(launched) and not world.layout.graph
        start = times[ran.start] if ran.start >= 0 else math.inf
        kernel = there(start) and times[ran.end] <= closed and not lost.kernel(ran)
        if cpu or launch or kernel:
            seen.append(Seen(ran, cpu, launch, kernel))
            if kernel and launched < opened:
                early.append(seen[-1])
    for each in early[round(len(early) * (1 - world.window.hole_frac)) :]:
        each.kernel = False
    shown = [] if world.layout.graph or world.layout.steps == "none" else happened.steps[rank]
    steps = [step for step in shown if there(times[step.begin])]
    return Trace(rank, cycle, opened, closed, clock_of(world, rank), seen, steps)


@dataclass
class _Lost:
    """Which kernels of a rank are lost, drawn step by step."""

    world: World
    draws: Draws
    rank: int
    step: int = -1

    def kernel(self, ran: Ran) -> bool:
        """Is this one?"""
        if not self.world.losses.kernel_frac or ran.key < 0:
            return False
        if ran.step != self.step:
            self.step, self.drawn = ran.step, self.draws.losses(self.rank, ran.step, _DRAWN)
        return self.drawn[ran.key % _DRAWN] < self.world.losses.kernel_frac


def has_args(world: World, seen: Seen) -> bool:
    """Does the trace say of this call which collective it is: on its kernel, or on a record that this one names?"""
    op = seen.ran.op
    assert isinstance(op, Communication)
    batched = getattr(op, "batched", False)
    return seen.cpu and not batched and world.layout.since("2.2")
