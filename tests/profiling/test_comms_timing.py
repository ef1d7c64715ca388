"""What is measured on a GPU where Python is slower than it, with stand-ins for the GPU and the clocks."""

import pytest
import torch

from commtrace.profiling.comms import timing

GPU = torch.device("cuda", 0)


class Machine:
    """A host and a GPU with one stream; times in ns. The host queues a call in `host_ns`, the GPU takes `gpu_ns`."""

    def __init__(self, monkeypatch, host_ns: int, gpu_ns: int) -> None:
        self.now_ns = self.free_ns = 1_000
        self._host_ns, self._gpu_ns = host_ns, gpu_ns
        monkeypatch.setattr(timing, "mark", lambda device: Mark(self))
        monkeypatch.setattr(timing, "finish", self.finish)
        monkeypatch.setattr(timing, "together", self.finish)
        monkeypatch.setattr(timing, "busy_cycles", lambda cycles: self.queue(cycles // 2))  # 2 GHz
        monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: self.now_ns)
        timing._ns_per_cycle.cache_clear()

    def queue(self, ns: int) -> None:
        self.free_ns = max(self.free_ns, self.now_ns) + ns

    def call(self) -> None:
        self.now_ns += self._host_ns
        self.queue(self._gpu_ns)

    def finish(self, device: torch.device) -> None:
        self.now_ns = max(self.now_ns, self.free_ns)


class Mark:
    def __init__(self, machine: Machine) -> None:
        self.at_ns = max(machine.now_ns, machine.free_ns)

    def ns_until(self, later: "Mark") -> int:
        return later.at_ns - self.at_ns


@pytest.mark.parametrize(
    ("host_ns", "gpu_ns"), [(40_000, 9_000), (40_000, 39_000), (40_000, 100_000), (40_000, 9_000_000)]
)
def test_the_time_is_that_of_the_gpu_however_slow_the_host_is(monkeypatch, host_ns, gpu_ns):
    machine = Machine(monkeypatch, host_ns, gpu_ns)
    assert timing.back_to_back_ns(machine.call, 20, GPU) == pytest.approx(gpu_ns, rel=0.001)


def test_a_gpu_that_is_slower_than_the_host_is_not_kept_busy(monkeypatch):
    machine = Machine(monkeypatch, 40_000, 9_000_000)
    monkeypatch.setattr(timing, "busy_cycles", lambda cycles: pytest.fail("kept busy"))
    timing.back_to_back_ns(machine.call, 20, GPU)


def test_on_a_cpu_calls_are_timed_as_they_are(monkeypatch):
    machine = Machine(monkeypatch, 40_000, 9_000)
    assert timing.back_to_back_ns(machine.call, 20, torch.device("cpu")) == pytest.approx(40_000, rel=0.05)
