"""What happens when: every rank's CPU issues its program, its GPU runs it, and collectives need each other."""

from __future__ import annotations

import math
from bisect import bisect
from dataclasses import dataclass, field

from .draws import CPU, DURATION, LAUNCH, NOTHING_DRAWN, Draws, Row
from .graph import Moments, Solved
from .injections import Programs
from .meeting import Meeting, Meetings
from .ops import COMPUTE_STREAM, P2P, Block, Comm, Communication, Kernel, Op, Planned, Wait
from .ran import Ran, StepRan
from .world import World

LAUNCHED_AT = 0.5
"""Part of an operation's CPU time after which it launches."""
_FIRST_STREAM, _STREAMS_APART = 20, 4
_MOST_TURNS, _SETTLED_US = 60, 0.01


@dataclass(frozen=True)
class Timeline:
    """Everything that happened: by rank in order of issue, and what belongs together."""

    ran: list[list[Ran]]
    steps: list[list[StepRan]]
    meetings: list[Meeting]
    times: list[float]
    causes: list[int]


def timeline(world: World, programs: Programs) -> Timeline:
    """The world with these programs. Raises Deadlock."""
    moments, draws = Moments(), Draws(world.seed)
    meetings = Meetings(world, moments, draws)
    issuers = [_Issuer(world, rank, moments, meetings, draws) for rank in range(world.size)]
    for rank, issuer in enumerate(issuers):
        for step, plan in enumerate(programs[rank]):
            issuer.issue(step, plan)
    met = meetings.linked()
    times, causes = _contended(issuers, moments, world.hardware.contention)
    return Timeline([issuer.ran for issuer in issuers], [issuer.steps for issuer in issuers], met, times, causes)


@dataclass
class _Issuer:
    """One rank: its CPU, the streams of its GPU, and what later kernels have to wait for."""

    world: World
    rank: int
    moments: Moments
    meetings: Meetings
    draws: Draws
    ran: list[Ran] = field(default_factory=list)
    steps: list[StepRan] = field(default_factory=list)
    tails: dict[int, int] = field(default_factory=dict)
    holds: list[int] = field(default_factory=list)
    works: dict[str, int] = field(default_factory=dict)
    streams: dict[object, int] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    kernels: list[tuple[Ran, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        speed, begin = self.draws.of_rank(self.rank)
        self.pace = math.exp(self.world.hardware.gpu_spread * speed)
        self.now = self.moments.new((0, 20.0 + 10.0 * abs(begin), -1))
        self.stops = (
            set()
            if self.world.window.spans
            else {last for _, last in self.world.window.steps_of(self.rank, self.world.steps)}
        )

    def issue(self, step: int, plan: list[Planned]) -> None:
        """One step, and the profiler's end if it is the last of a window: that waits for the GPU."""
        begun = self.now
        drawn = self.draws.of_step(self.rank, step, sum(planned.key >= 0 for planned in plan))
        for planned in plan:
            row = drawn[planned.key] if planned.key >= 0 else NOTHING_DRAWN
            self._issue(step, planned.key, planned.op, row)
        done = self.now
        if step in self.stops:
            self._issue(step, -1, Block("cudaDeviceSynchronize"), NOTHING_DRAWN)
        self.steps.append(StepRan(step, begun, done, self.now))

    def _issue(self, step: int, key: int, op: Op, row: Row) -> None:
        hardware, moments = self.world.hardware, self.moments
        begin, launches = self.now, isinstance(op, (Kernel, *Communication))
        if launches and len(self.starts) >= hardware.queue:
            begin = moments.new((self.now, 0.0, -1), (self.starts[-hardware.queue], 0.0, -1))
        cost = op.cpu_us * math.exp(hardware.cpu_jitter * row[CPU])
        done = moments.new((begin, cost, op.cause))
        ran = Ran(self.rank, step, key, op, begin, done, cost)
        self.ran.append(ran)
        if isinstance(op, Kernel):
            self._launch(ran, COMPUTE_STREAM, row)
            delay = op.us * self.pace * math.exp(hardware.compute_jitter * row[DURATION]) + op.extra_us
            moments.link(ran.end, ran.start, delay, op.cause)
            self.kernels.append((ran, delay))
        elif isinstance(op, Communication):
            self._communicate(ran, row)
        elif isinstance(op, Wait):
            self.holds.append(self.works.pop(op.work))
        elif isinstance(op, Block):
            self._block(ran, row)
        self.now = ran.done

    def _launch(self, ran: Ran, stream: int, row: Row) -> None:
        """Put a kernel on a stream; how long it runs is not said yet."""
        hardware = self.world.hardware
        launched = LAUNCHED_AT * ran.cost_us + hardware.launch_us * math.exp(0.2 * row[LAUNCH])
        links = [(ran.begin, launched, -1)] + [(hold, hardware.event_us, -1) for hold in self.holds]
        if stream == COMPUTE_STREAM:
            self.holds.clear()
        elif COMPUTE_STREAM in self.tails:
            links.append((self.tails[COMPUTE_STREAM], hardware.event_us, -1))
        if stream in self.tails:
            links.append((self.tails[stream], hardware.gap_us, -1))
        ran.stream, ran.start, ran.end = stream, self.moments.new(*links), self.moments.new()
        self.tails[stream] = ran.end
        self.starts.append(ran.start)

    def _communicate(self, ran: Ran, row: Row) -> None:
        op = ran.op
        assert isinstance(op, Communication)
        # Sends and receives that can be batched are asynchronous, and waited for at once.
        on_compute = self.world.layout.sync_on_compute and isinstance(op, Comm) and not op.work
        self._launch(ran, COMPUTE_STREAM if on_compute else self._stream(op), row)
        self.meetings.join(ran, row)
        if op.work:
            self.works[op.work] = ran.end
        elif not on_compute:
            self.holds.append(ran.end)

    def _stream(self, op: Comm | P2P) -> int:
        """The stream of the group, or of a pair of it for messages by themselves."""
        of = (op.group, op.messages[0].peer) if isinstance(op, P2P) and not op.batched else op.group
        return self.streams.setdefault(of, _FIRST_STREAM + _STREAMS_APART * len(self.streams))

    def _block(self, ran: Ran, row: Row) -> None:
        """Hold the CPU until the streams are done."""
        op, hardware = ran.op, self.world.hardware
        assert isinstance(op, Block)
        if op.copy_us:
            self._launch(ran, COMPUTE_STREAM, row)
            self.moments.link(ran.end, ran.start, op.copy_us, op.cause)
        streams = list(self.tails) if op.call == "cudaDeviceSynchronize" else [COMPUTE_STREAM]
        ends = [self.tails[stream] for stream in streams if stream in self.tails] + self.holds
        drained = self.moments.new((ran.done, 0.0, -1), *((end, hardware.launch_us, op.cause) for end in ends))
        ran.drained = drained
        ran.done = self.moments.new((drained, op.extra_us, op.cause))


def _contended(issuers: list[_Issuer], moments: Moments, slowdown: float) -> Solved:
    """When everything is, where kernels take `slowdown` times as long while their GPU communicates.

    How long a kernel takes decides what runs beside it, and the other way round: in turn, until nothing changes.
    """
    solved = moments.solved()
    for _ in range(_MOST_TURNS if slowdown != 1 else 0):
        changed = 0.0
        for issuer in issuers:
            communicates = _communicates(issuer.ran, solved.times)
            for ran, alone_us in issuer.kernels:
                takes = _beside(solved.times[ran.start], alone_us, communicates, slowdown)
                ((start, before, cause),) = moments.links[ran.end]
                changed = max(changed, abs(takes - before))
                moments.links[ran.end] = [(start, takes, cause)]
        solved = moments.solved()
        if changed < _SETTLED_US:
            return solved
    return solved


def _communicates(ran: list[Ran], times: list[float]) -> list[tuple[float, float]]:
    """When a GPU communicates: begins and ends, in order, none within another."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted((times[one.start], times[one.end]) for one in ran if isinstance(one.op, Communication)):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _beside(start: float, alone_us: float, communicates: list[tuple[float, float]], slowdown: float) -> float:
    """How long a kernel takes that begins at `start`, and would take `alone_us` without communication."""
    at, left = start, alone_us
    for begin, end in communicates[max(bisect(communicates, (start, math.inf)) - 1, 0) :]:
        if end <= at:
            continue
        if at < begin:
            done = min(begin - at, left)
            at, left = at + done, left - done
        done = min((end - at) / slowdown, left)
        at, left = at + done * slowdown, left - done
        if not left:
            break
    return at + left - start
