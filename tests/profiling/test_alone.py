"""How long a rank works in a step before it needs another one, with calls and times that are made here."""

import threading

import pytest
import torch
import torch.distributed as dist

from commtrace.profiling.base.patches import Patches
from commtrace.profiling.script.watch import alone
from commtrace.profiling.script.watch.alone import Alone


class Clock:
    """The present moment, of a device that is `behind_ns` its host."""

    def __init__(self) -> None:
        self.now_ns, self.behind_ns, self.made, self.issued = 0, 0, 0, 0

    def mark(self, device: torch.device) -> "Moment":
        self.made += 1
        return Moment(self, self.now_ns)


class Moment:
    def __init__(self, clock: Clock, ns: int) -> None:
        self._clock, self.ns = clock, ns

    def reached(self) -> bool:
        return self._clock.now_ns >= self.ns + self._clock.behind_ns

    def ns_until(self, later: "Moment") -> int:
        return later.ns - self.ns


class Calls:
    """Stands for `Steps`: tells of backward passes."""

    def before_backward(self, call) -> None:
        self.backward = call


class Rank:
    """A rank whose calls need others; `step` makes one of calls at their times, in ns after its begin."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.calls = clock, Calls()
        self.alone, self._patches = Alone(), Patches()
        self.alone.attach(self.calls, self._patches)

    def step(self, **calls_at: int) -> None:
        began_ns = self.clock.now_ns
        for name, at_ns in sorted(calls_at.items(), key=lambda each: each[1]):
            self.clock.now_ns = began_ns + at_ns
            getattr(self, f"_{name}")()
        self.clock.now_ns = began_ns + 1000
        self.alone.step_ended()

    def _backward(self) -> None:
        self.calls.backward()

    def _collective(self) -> None:
        dist.all_reduce(torch.ones(1))
        self.clock.issued += 1

    def _unseen(self) -> None:
        self.clock.issued += 1

    def _wait(self) -> None:
        self.work.wait()

    def _elsewhere(self) -> None:
        thread = threading.Thread(target=self._collective)
        thread.start()
        thread.join()


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(alone, "mark", made.mark)
    monkeypatch.setattr(alone, "collectives_issued", lambda: made.issued)
    return made


@pytest.fixture
def rank(clock, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    made = Rank(clock)
    made.work = dist.all_reduce(torch.ones(1), async_op=True)
    yield made
    made._patches.undo()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ({"backward": 300}, (300, "backward")),
        ({"collective": 200, "backward": 300}, (200, "collective")),
        ({"collective": 900, "backward": 300}, (300, "backward")),
        ({"unseen": 100, "backward": 300}, None),  # issued by C++: nobody knows when
        ({"backward": 300, "unseen": 400}, (300, "backward")),
        ({"wait": 100, "backward": 300}, None),  # for a collective of the step before
        ({"elsewhere": 100, "backward": 300}, None),  # in a thread that writes a checkpoint, say
        ({}, None),
    ],
)
def test_the_time_until_another_rank_is_needed(rank, calls, found) -> None:
    rank.alone.want()
    rank.step(backward=1)  # the step that is wanted begins where this one ends
    rank.step(**calls)
    assert rank.alone.take() == found
    assert rank.alone.take() is None


def test_a_step_that_nobody_wants_is_not_looked_at(rank, clock) -> None:
    for _ in range(5):
        rank.step(backward=300, collective=400)
    assert clock.made == 0
    rank.alone.want()
    for _ in range(5):
        rank.step(backward=300, collective=400)
    assert clock.made == 2


def test_a_device_that_is_behind_is_not_waited_for(rank, clock) -> None:
    clock.behind_ns = 2500
    rank.alone.want()
    rank.step()
    rank.step(backward=300)
    assert rank.alone.take() is None
    rank.step(backward=700)
    rank.step(backward=700)
    assert rank.alone.take() == (300, "backward")


def test_a_received_message_is_no_time_alone(clock, monkeypatch) -> None:
    """Stages of a pipeline wait for each other's messages as their schedule has it."""
    received = []
    monkeypatch.setattr(dist.ProcessGroup, "recv", lambda *args: received.append(args))
    rank = Rank(clock)
    try:
        rank.alone.want()
        rank.step()
        dist.ProcessGroup.recv("group", [], 0, 0)
        rank.step(backward=300)
    finally:
        rank._patches.undo()
    assert len(received) == 1
    assert rank.alone.take() is None


def test_an_error_of_the_device_is_left_to_the_script(rank, clock, monkeypatch) -> None:
    rank.alone.want()
    rank.step()
    with monkeypatch.context() as broken:
        broken.setattr(alone, "mark", lambda _: (_ for _ in ()).throw(RuntimeError("CUDA error")))
        rank.step(backward=300)
    rank.alone.want()
    rank.step(backward=300)
    rank.step(backward=300)
    assert rank.alone.take() is None
