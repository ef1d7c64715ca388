"""Programs that leak, and programs that only look like it, as a trace or a snapshot has them; which is known.

A program is a list of actions on blocks, so that both writers write the same. It trains: batches are replaced, an
optimizer makes its state in its first step, gradients are released at the beginning of the next step. At one place,
`keep` in `train.py:31`, a pattern allocates and releases beside that.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allocator import START_US, Allocator, Frames, called, snapshot, write
from builders import MAIN_THREAD, US, Trace

from commtrace import analyse, analyse_snapshots
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.snapshots.analysis import SnapshotAnalysis

BLOCK = 2 << 20
KEPT_LINE, KEPT_REGION, KEPT_OPERATOR = "train.py:31", "keep", "aten::clone"
BACKWARD_THREAD = 77
_BACKWARD: Frames = (("torch::autograd::Engine::thread_main(...)", "??", 0),)
_OPTIMIZER: Frames = (
    ("_init_group", "/usr/lib/python3/site-packages/torch/optim/adam.py", 150), *called("main", 60),
)  # fmt: skip


class Place:
    """Where a pattern allocates. `new` gives a block, `drop` releases it."""

    def __init__(self, draw: random.Random, steps: int) -> None:
        self.draw, self.steps = draw, steps
        self.actions: list[tuple[str, int, int]] = []
        self._made = 0

    def new(self, size: int = BLOCK) -> int:
        """Allocate a block, and give its number."""
        self._made += 1
        self.actions.append(("alloc", self._made, size))
        return self._made

    def drop(self, number: int) -> None:
        """Release a block."""
        self.actions.append(("free", number, 0))


Pattern = Callable[[Place], Iterator[None]]
"""What happens at the place: from `yield` to `yield` in one step after the other."""


def _drawn(at: Place) -> int:
    return 512 * at.draw.randrange(2_000, 9_000)


def each(at: Place) -> Iterator[None]:
    """A block of each step is kept."""
    while True:
        at.new()
        yield


def each_drawn(at: Place) -> Iterator[None]:
    """Blocks of drawn sizes are kept."""
    while True:
        at.new(_drawn(at))
        yield


def every_other(at: Place) -> Iterator[None]:
    """A block of every second step."""
    while True:
        at.new()
        yield
        yield


def every_third(at: Place) -> Iterator[None]:
    """A block of every third step."""
    while True:
        yield
        at.new()
        yield
        yield


def later(at: Place) -> Iterator[None]:
    """It begins in the second or third step."""
    for _ in range(at.draw.randrange(1, 3)):
        yield
    yield from each(at)


def larger(at: Place) -> Iterator[None]:
    """What is kept becomes larger from step to step."""
    size = BLOCK
    while True:
        at.new(size)
        size += 512 * at.draw.randrange(1, 500)
        yield


def longer(at: Place) -> Iterator[None]:
    """A history is joined with what is new, as by torch.cat: one block, longer in each step."""
    size, held = BLOCK, at.new()
    while True:
        yield
        size += BLOCK
        joined = at.new(size)
        at.drop(held)
        held = joined


def two_in_one_out(at: Place) -> Iterator[None]:
    """A queue that is emptied more slowly than it is filled."""
    queue: deque[int] = deque()
    while True:
        queue += [at.new(), at.new()]
        at.drop(queue.popleft())
        yield


def released_now_and_then(at: Place) -> Iterator[None]:
    """Every third step releases two old blocks, which is one too few."""
    queue: deque[int] = deque()
    while True:
        for step in range(3):
            queue.append(at.new())
            if step == 2:
                at.drop(queue.popleft())
                at.drop(queue.popleft())
            yield


def beside_a_batch(at: Place) -> Iterator[None]:
    """A block of each step is kept, and one of a drawn size replaced, at the same place."""
    batch = None
    while True:
        at.new()
        new = at.new(_drawn(at))
        if batch is not None:
            at.drop(batch)
        batch = new
        yield


def beside_a_ring(at: Place) -> Iterator[None]:
    """A block of each step is kept, and others go through a ring at the same place."""
    ring: deque[int] = deque()
    while True:
        at.new()
        ring.append(at.new())
        if len(ring) > 2:
            at.drop(ring.popleft())
        yield


def nothing(at: Place) -> Iterator[None]:
    """Nothing is allocated."""
    while True:
        yield


def temporary(at: Place) -> Iterator[None]:
    """A block is released in its own step."""
    while True:
        at.drop(at.new(_drawn(at)))
        yield


def once(at: Place) -> Iterator[None]:
    """A block of one step is kept."""
    for _ in range(at.draw.randrange(at.steps)):
        yield
    at.new()
    yield from nothing(at)


def warm_up(at: Place) -> Iterator[None]:
    """Blocks of the first steps are kept, as workspaces and graphs are."""
    for _ in range(at.draw.randrange(2, at.steps // 2)):
        at.new(_drawn(at))
        yield
    yield from nothing(at)


def ring(at: Place) -> Iterator[None]:
    """The newest few blocks are kept, as by a loader that fetches ahead."""
    room = at.draw.randrange(1, at.steps // 2)
    queue: deque[int] = deque()
    while True:
        queue.append(at.new())
        if len(queue) > room:
            at.drop(queue.popleft())
        yield


def prefetch(at: Place) -> Iterator[None]:
    """Batches of drawn sizes are fetched ahead, and used in nearly this order."""
    queue: list[int] = []
    while True:
        queue.append(at.new(_drawn(at)))
        if len(queue) > 3:
            at.drop(queue.pop(at.draw.randrange(2)))
        yield


def replaced(at: Place) -> Iterator[None]:
    """A block of a drawn size is replaced by the next one."""
    held = at.new(_drawn(at))
    while True:
        yield
        new = at.new(_drawn(at))
        at.drop(held)
        held = new


def flushed(at: Place) -> Iterator[None]:
    """Losses are kept, and written and released every few steps."""
    every = at.draw.randrange(2, at.steps // 3 + 1)
    while True:
        held = []
        for _ in range(every):
            held.append(at.new())
            yield
        for number in held:
            at.drop(number)


def buckets(at: Place) -> Iterator[None]:
    """One of three sizes is held, whichever the step's batch needs."""
    held = None
    while True:
        if held is not None:
            at.drop(held)
        held = at.new(at.draw.choice((1, 2, 4)) * BLOCK)
        yield


def accumulated(at: Place) -> Iterator[None]:
    """Released every fourth step, as gradients that are accumulated in buffers of their own."""
    while True:
        held = [at.new()]
        for _ in range(3):
            yield
            held.append(at.new())
        yield
        for number in held:
            at.drop(number)


def cache_by_shape(at: Place) -> Iterator[None]:
    """Something is kept for each shape that was not seen before: at first in many steps, then in fewer."""
    seen: set[int] = set()
    while True:
        shape = at.draw.randrange(4)
        if shape not in seen:
            seen.add(shape)
            at.new()
        yield


def largest_so_far(at: Place) -> Iterator[None]:
    """A workspace that is replaced where a larger one is needed."""
    size, held = _drawn(at), None
    while True:
        needed = _drawn(at)
        if held is None or needed > size:
            size, new = max(size, needed), at.new(max(size, needed))
            if held is not None:
                at.drop(held)
            held = new
        yield


def now_and_then(at: Place) -> Iterator[None]:
    """A block of about every second step, by chance."""
    while True:
        if at.draw.random() < 0.5:
            at.new()
        yield


LEAKS: tuple[Pattern, ...] = (
    each, each_drawn, every_other, every_third, later, larger, longer, two_in_one_out, released_now_and_then,
    beside_a_batch, beside_a_ring,
)  # fmt: skip
HARMLESS: tuple[Pattern, ...] = (
    nothing, temporary, once, warm_up, ring, prefetch, replaced, flushed, buckets, accumulated,
)  # fmt: skip
BY_CHANCE: dict[Pattern, bool] = {cache_by_shape: False, largest_so_far: False, now_and_then: True}
"""Patterns of which a short record cannot always tell whether they are leaks, and whether they are."""


@dataclass
class Program:
    """Actions in their order: `(what, block, bytes)` of one place, in one of the phases of a step."""

    steps: int
    actions: list[tuple[str, Any, int]] = field(default_factory=list)


def program(pattern: Pattern, seed: int, *, steps: int | None = None) -> Program:
    """Some steps of training, with this pattern at one place."""
    draw = random.Random(seed)
    made = Program(steps or draw.randrange(12, 19))
    layers = draw.randrange(1, 4)
    sizes = [512 * draw.randrange(2_000, 9_000) for _ in range(layers)]
    place = Place(draw, made.steps)
    course = pattern(place)
    act = made.actions.append
    for step in range(made.steps):
        act(("step", step, 0))
        for layer in range(layers) if step else ():
            act(("free", ("gradient", layer, step - 1), 0))
        act(("data", None, 0))
        act(("alloc", ("batch", step), _drawn(place)))
        if step:
            act(("free", ("batch", step - 1), 0))
        act(("forward", None, 0))
        act(("keep", None, 0))
        next(course)
        made.actions += [(what, ("kept", number), size) for what, number, size in place.actions]
        place.actions.clear()
        for layer, size in enumerate(sizes):
            act(("forward", None, 0))
            act(("alloc", ("activation", layer, step), size + 512 * draw.randrange(100)))
        for layer in reversed(range(layers)):
            act(("backward", None, 0))
            act(("alloc", ("gradient", layer, step), sizes[layer]))
            act(("free", ("activation", layer, step), 0))
        act(("optimizer", None, 0))
        for layer in range(layers) if step == 0 else ():
            act(("alloc", ("state", layer), 2 * sizes[layer]))
        act(("alloc", ("update", step), BLOCK))
        act(("free", ("update", step), 0))
    act(("end", None, 0))
    return made


_OPERATORS = {
    "step": "aten::zero_", "data": "aten::to", "keep": KEPT_OPERATOR, "forward": "aten::linear",
    "backward": "autograd::engine::evaluate_function: AddmmBackward0", "optimizer": "aten::_foreach_add_",
}  # fmt: skip
_FUNCTIONS = {"data": "train.py(12): fetch", "keep": "train.py(31): keep", "forward": "model.py(40): forward"}
_REGIONS = {"keep": KEPT_REGION, "optimizer": "Optimizer.step#Adam.step"}


def traced(
    made: Program,
    folder: Path,
    *,
    totals: bool = True,
    marked: bool = True,
    stacks: bool = True,
    rank: int = 0,
    world: int = 1,
) -> Path:
    """Write it as Kineto does, into the folder of a run."""
    trace = Trace(rank, world)
    now, held, older = 10 * US, 0, 30 * BLOCK
    live: dict[Any, tuple[int, int]] = {}
    phase, began, step_began = "", now, now
    for what, block, size in made.actions:
        now += 600 * US  # of shorter functions of Python nothing is kept
        if what not in ("alloc", "free"):
            if phase:
                thread = BACKWARD_THREAD if phase == "backward" else MAIN_THREAD
                trace.kernel("gemm", began + 2, now - began - 4, thread=thread)
                trace.op(_OPERATORS[phase], began + 1, now - began - 2, thread=thread)
                if phase in _REGIONS:
                    trace.annotation(_REGIONS[phase], began, now - began)
                if phase in _FUNCTIONS and stacks:
                    trace.event("python_function", _FUNCTIONS[phase], began, now - began)
            if what in ("step", "end") and phase and marked:
                number = made.steps if what == "end" else block
                trace.step(number - 1, step_began, now)
            step_began = now if what == "step" else step_began
            phase, began = what, now
            continue
        if what == "alloc":
            live[block] = len(live) + 1, size
        address, change = live[block][0], size if what == "alloc" else -live[block][1]
        held += change
        args: dict[str, Any] = {"Device Type": 1, "Device Id": 0, "Bytes": change, "Addr": 512 * address}
        args |= {"Total Allocated": older + held, "Total Reserved": 4096 * BLOCK} if totals else {}
        trace.events.append({
            "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": trace.pid,
            "tid": BACKWARD_THREAD if phase == "backward" else MAIN_THREAD, "ts": now / US, "args": args,
        })  # fmt: skip
    trace.write(folder)
    return folder


def dumped(made: Program, folder: Path, *, marked: bool = True, stacks: bool = True, rank: int = 0) -> Path:
    """Write it as a snapshot of the allocator."""
    frames = {
        "step": called("main", 10), "data": called("fetch", 12), "keep": called("keep", 31),
        "forward": called("forward", 40, "/code/model.py"), "backward": _BACKWARD, "optimizer": _OPTIMIZER,
    }  # fmt: skip
    one = Allocator()
    live: dict[Any, int] = {}
    phase = "step"
    for what, block, size in made.actions:
        stack = frames[phase] if stacks else ()
        if what == "alloc":
            live[block] = one.malloc(size, frames=stack)
        elif what == "free":
            one.free(live.pop(block), stack)
        else:
            if what in ("step", "end") and one.now_us > START_US and marked:
                one.mark(f"ProfilerStep#{(made.steps if what == 'end' else block) - 1}", "END")
            if what == "step":
                one.pause(20)
            if what == "step" and marked:
                one.mark(f"ProfilerStep#{block}", "START")
            phase = what
    folder.mkdir(parents=True, exist_ok=True)
    write(snapshot(one), folder / f"memory_rank_{rank}.pickle")
    return folder


@dataclass(frozen=True)
class Form:
    """How a program is recorded."""

    name: str
    write: Callable[[Program, Path], Path]
    is_snapshot: bool = False
    names_line: bool = True

    def analysed(self, made: Program, folder: Path) -> Analysis | SnapshotAnalysis:
        """Record it, and analyse that."""
        written = self.write(made, folder)
        return analyse_snapshots([written]) if self.is_snapshot else analyse(written, details=True, cache=False)


FORMS = (
    Form("trace", traced),
    Form("trace-unmarked", lambda made, folder: traced(made, folder, marked=False)),
    Form("trace-no-stacks", lambda made, folder: traced(made, folder, stacks=False), names_line=False),
    Form("trace-no-totals", lambda made, folder: traced(made, folder, totals=False)),
    Form("trace-bare", lambda made, folder: traced(made, folder, totals=False, stacks=False, marked=False),
         names_line=False),
    Form("snapshot", dumped, is_snapshot=True),
    Form("snapshot-unmarked", lambda made, folder: dumped(made, folder, marked=False), is_snapshot=True),
    Form("snapshot-no-stacks", lambda made, folder: dumped(made, folder, stacks=False), is_snapshot=True,
         names_line=False),
)  # fmt: skip
