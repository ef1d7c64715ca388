import pytest
import torch

from commtrace.profiling.sessions import step_clock
from commtrace.profiling.sessions.step_clock import Overhead, StepClock, StepTime, overhead


def steps(*times: tuple[str, int]) -> list[StepTime]:
    return [StepTime(number, phase, 0, dur_ns) for number, (phase, dur_ns) in enumerate(times)]


def test_only_time_between_start_and_stop_belongs_to_a_step(monkeypatch) -> None:
    ticks = iter([100, 130, 1000, 1070])
    monkeypatch.setattr(step_clock.time, "perf_counter_ns", lambda: next(ticks))
    monkeypatch.setattr(step_clock.time, "time_ns", lambda: 5)
    clock = StepClock(torch.device("cpu"))
    clock.start()
    clock.stop(0, "idle")
    clock.start()
    clock.stop(1, "active")
    clock.stop(2, "idle")  # never begun
    assert clock.times() == [StepTime(0, "idle", 5, 30), StepTime(1, "active", 5, 70)]
    assert clock.last() == StepTime(1, "active", 5, 70)
    assert clock.name == "host"


class FakeEvent:
    """An event on a device that is behind the host; instants in ms."""

    device_ms = 0.0
    recorded = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        self.at_ms = 2.5 * FakeEvent.recorded
        FakeEvent.recorded += 1

    def query(self) -> bool:
        return self.at_ms <= FakeEvent.device_ms

    def elapsed_time(self, later: "FakeEvent") -> float:
        return later.at_ms - self.at_ms


@pytest.fixture
def cuda(monkeypatch) -> torch.device:
    """A stand-in for CUDA, whose device does nothing until the test says so."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(FakeEvent, "device_ms", 0.0)
    monkeypatch.setattr(FakeEvent, "recorded", 0)
    return torch.device("cuda", 0)


def timed(clock: StepClock, count: int) -> None:
    for number in range(count):
        clock.start()
        clock.stop(number, "idle")


def test_cuda_steps_are_read_once_the_device_has_passed_them(monkeypatch, cuda) -> None:
    clock = StepClock(cuda)
    timed(clock, 2)
    assert clock.times() == []
    monkeypatch.setattr(FakeEvent, "device_ms", 3.0)
    assert [(time.step, time.dur_ns) for time in clock.times()] == [(0, 2_500_000)]
    monkeypatch.setattr(FakeEvent, "device_ms", 100.0)
    assert [time.step for time in clock.times()] == [0, 1]
    assert clock.name == "cuda_event"


def test_the_end_of_the_last_step_is_waited_for(monkeypatch, cuda) -> None:
    """A device that gets on only while the host waits: without waiting, these steps would have no time."""
    monkeypatch.setattr(
        step_clock.time, "sleep", lambda seconds: setattr(FakeEvent, "device_ms", FakeEvent.device_ms + 1)
    )
    clock = StepClock(cuda)
    timed(clock, 3)
    clock.await_device()
    assert [time.step for time in clock.times()] == [0, 1, 2]
    assert clock.unknown() is None


@pytest.mark.parametrize("stopped", [True, False])
def test_a_device_that_stands_still_is_not_waited_for_long(cuda, stopped) -> None:
    clock = StepClock(cuda)
    timed(clock, 2)
    clock.await_device(60 if stopped else 0.05, stopped=lambda: stopped)
    assert clock.times() == []
    assert clock.unknown() == "the device did not reach the end of the last 2 steps"


def test_no_event_is_touched_while_a_graph_is_captured(monkeypatch, cuda) -> None:
    clock = StepClock(cuda)
    timed(clock, 1)
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        capturing.setattr(FakeEvent, "query", None)
        timed(clock, 2)
        assert (clock.times(), FakeEvent.recorded) == ([], 2)
    monkeypatch.setattr(FakeEvent, "device_ms", 100.0)
    assert [time.step for time in clock.times()] == [0]


def test_a_cuda_error_that_stays_costs_later_times_only(monkeypatch, cuda) -> None:
    def failed(event: FakeEvent) -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later")

    clock = StepClock(cuda)
    monkeypatch.setattr(FakeEvent, "device_ms", 3.0)
    timed(clock, 1)
    assert clock.unknown() is None
    monkeypatch.setattr(FakeEvent, "query", failed)
    timed(clock, 3)
    clock.await_device()
    assert [time.step for time in clock.times()] == [0]
    assert clock.unknown() == "steps after the first 1 have no time: CUDA error: device-side assert triggered"


def test_overhead_is_of_medians_without_the_first_steps() -> None:
    times = steps(
        ("idle", 9000),
        ("idle", 5000),
        ("idle", 100),
        ("warmup", 700),
        ("active", 110),
        ("active", 130),
        ("idle", 104),
        ("idle", 102),
    )
    found = overhead(times)
    assert found == Overhead(active_ns=120, idle_ns=102, active_steps=2, idle_steps=3, idle_long_ns=104)
    assert found.frac == pytest.approx(120 / 102 - 1)


@pytest.mark.parametrize(
    ("active_ns", "words"),
    [(1_282, "28% longer"), (1_002, "less than 1% longer"), (1_000, "no longer, as far as can be measured"),
     (718, "no longer, as far as can be measured")],
)  # fmt: skip
def test_overhead_is_never_less_than_nothing(active_ns: int, words: str) -> None:
    assert str(Overhead(active_ns, 1_000, 3, 3)) == words


def test_overhead_within_the_spread_of_other_steps_is_none() -> None:
    """A step in ten evaluates, and takes five times as long: so do two of the three that are traced."""
    usual = [("idle", 100)] * 2 + [("idle", each) for each in (100, 103, 97, 490, 101, 99, 480, 102, 98, 100)]
    assert str(overhead(steps(*usual, ("active", 100), ("active", 477), ("active", 480)))).startswith("no longer")
    assert str(overhead(steps(*usual[:5], ("active", 140), ("active", 140)))) == "40% longer"


def test_overhead_without_a_baseline_is_none() -> None:
    assert overhead(steps(("idle", 1), ("idle", 1), ("active", 1))) is None
    assert overhead([]) is None


def test_one_or_two_steps_are_no_baseline() -> None:
    few = [("idle", 9000), ("idle", 5000), ("active", 400), ("active", 410), ("idle", 100), ("idle", 104)]
    assert overhead(steps(*few)) is None
    assert str(overhead(steps(*few, ("idle", 102)))) == "297% longer"
