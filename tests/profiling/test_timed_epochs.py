import pytest
import torch

from commtrace.profiling.sessions import step_clock
from commtrace.profiling.train import timed_epochs
from commtrace.profiling.train.timed_epochs import Epoch, EpochTime, timed_epoch

CPU = torch.device("cpu")


class Clock:
    """Time that passes only when somebody says so, in ns."""

    def __init__(self, monkeypatch) -> None:
        self.now_ns = 1000
        monkeypatch.setattr(step_clock.time, "perf_counter_ns", lambda: self.now_ns)

    def batches(self, *waits_ns: int):
        for wait_ns in waits_ns:
            self.now_ns += wait_ns
            yield torch.zeros(3, 1), torch.zeros(3)

    def step(self, batch) -> torch.Tensor:
        self.now_ns += 50
        return torch.tensor(float(self.now_ns))


def test_waiting_for_data_is_apart_from_the_rest_and_both_make_the_epoch(monkeypatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(timed_epochs.time, "time_ns", lambda: 7)
    alike = dict.fromkeys(("step_p10_ns", "step_median_ns", "step_p90_ns"), 50)
    found, loss = timed_epoch(Epoch(1, "timed", 3), clock.batches(20, 0, 5), clock.step, CPU)
    assert found == EpochTime(1, "timed", 3, 9, start_unix_ns=7, dur_ns=175, data_ns=25, step_ns=150, **alike)
    assert loss.item() == 1175
    assert found.dur_ns == found.data_ns + found.step_ns


def test_the_spread_of_steps(monkeypatch) -> None:
    clock = Clock(monkeypatch)

    def step(batch) -> None:
        clock.now_ns += int(batch[0].sum()) * 10

    steps = ((torch.ones(number, 1), torch.zeros(number)) for number in range(1, 12))
    found, _ = timed_epoch(Epoch(0, "timed", 11), steps, step, CPU)
    assert (found.step_p10_ns, found.step_median_ns, found.step_p90_ns) == (20, 60, 100)
    assert timed_epoch(Epoch(0, "timed", 1), clock.batches(1), clock.step, CPU)[0].step_median_ns is None


def test_no_batch_more_is_taken_than_there_are_steps(monkeypatch) -> None:
    clock = Clock(monkeypatch)
    batches = clock.batches(1, 1, 1)
    timed_epoch(Epoch(0, "warmup", 2), batches, clock.step, CPU)
    assert len(list(batches)) == 1


class Event:
    """A CUDA event of a device that does what it was told, one thing after another; instants in ms."""

    host_ms = 0.0
    device_ms = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        Event.device_ms = max(Event.device_ms, Event.host_ms)
        self.at_ms = Event.device_ms

    def elapsed_time(self, later: "Event") -> float:
        return later.at_ms - self.at_ms


def test_on_cuda_only_what_the_device_waits_for_is_waiting(monkeypatch) -> None:
    """Loading takes the host 4 ms each time; the device, which takes 10 ms a step, waits only for the first batch."""
    waited_for = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(torch.cuda, "synchronize", waited_for.append)

    def batches():
        while True:
            Event.host_ms += 4
            yield torch.zeros(2, 1), torch.zeros(2)

    def step(batch) -> torch.Tensor:
        Event.host_ms += 1
        Event.device_ms += 10
        return torch.zeros(())

    cuda = torch.device("cuda", 0)
    found, _ = timed_epoch(Epoch(0, "timed", 5), batches(), step, cuda)
    assert (found.data_ns, found.step_ns, found.dur_ns) == (4_000_000, 50_000_000, 54_000_000)
    assert waited_for == [cuda, cuda], "the host waits for the device where the epoch begins and ends"


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: would compare an epoch's time by events with the host's clock"
)
def test_events_and_host_agree_on_a_whole_epoch() -> None:
    import time

    where = torch.device("cuda", 0)
    weights = torch.ones(2048, 2048, device=where)
    batch = (torch.ones(2048, 2048), torch.ones(2048))
    begun = time.perf_counter_ns()
    found, _ = timed_epoch(Epoch(0, "timed", 20), iter([batch] * 20), lambda b: (b[0].to(where) @ weights).sum(), where)
    assert 0 < found.dur_ns <= time.perf_counter_ns() - begun
