"""What is measured on a GPU where Python is slower than it, with stand-ins for the GPU and the clocks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from commtrace.profiling.comms import timing
from commtrace.profiling.sessions import device_queue

GPU = torch.device("cuda", 0)


class Machine:
    """A host and a GPU with one stream; times in ns. The host queues a call in `host_ns`, the GPU takes `gpu_ns`."""

    def __init__(self, monkeypatch, host_ns: int, gpu_ns: int) -> None:
        self.now_ns = self.free_ns = 1_000
        self._host_ns, self._gpu_ns = host_ns, gpu_ns
        for module in (timing, device_queue):
            monkeypatch.setattr(module, "mark", lambda device: Mark(self))
            monkeypatch.setattr(module, "finish", self.finish)
        monkeypatch.setattr(timing, "together", self.finish)
        monkeypatch.setattr(device_queue, "busy_cycles", lambda cycles: self.queue(cycles // 2))  # 2 GHz
        monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: self.now_ns)
        device_queue._ns_per_cycle.cache_clear()

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

        self._machine = machine

    def reached(self) -> bool:
        return self._machine.now_ns >= self.at_ns

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
    monkeypatch.setattr(device_queue, "busy_cycles", lambda cycles: pytest.fail("kept busy"))
    timing.back_to_back_ns(machine.call, 20, GPU)


def test_on_a_cpu_calls_are_timed_as_they_are(monkeypatch):
    machine = Machine(monkeypatch, 40_000, 9_000)
    assert timing.back_to_back_ns(machine.call, 20, torch.device("cpu")) == pytest.approx(40_000, rel=0.05)


class Ranks:
    """Ranks in threads, whose hosts and moments differ; a call ends `gpu_ns` after the last of them has begun it.

    What the devices do is worked out when all hosts wait for them.
    """

    def __init__(self, monkeypatch, host_ns: list[int], late_ns: list[int], gpu_ns: int) -> None:
        self.host_ns, self.late_ns, self.gpu_ns = host_ns, late_ns, gpu_ns
        self.now_ns = [1_000] * len(host_ns)
        self.queues: list[list[list[object]]] = [[] for _ in host_ns]  # of what, and when: queued, then over
        self.local, self.barrier = threading.local(), threading.Barrier(len(host_ns), timeout=10)
        self.values = [0.0] * len(host_ns)
        monkeypatch.setattr(timing, "mark", lambda device: RankMark(self, self.queue(0)))
        monkeypatch.setattr(timing, "finish", lambda device: self.finish())
        monkeypatch.setattr(timing, "together", lambda device: self.finish(leaves_late=True))
        monkeypatch.setattr(device_queue, "busy_cycles", lambda cycles: self.queue(cycles))
        monkeypatch.setattr(device_queue, "_ns_per_cycle", lambda device: 1)
        monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: self.now_ns[self.local.rank])

    def times_ns(self, times: int) -> list[float]:
        def measure(rank: int) -> float:
            self.local.rank = rank
            return timing.back_to_back_ns(self.call, times, GPU, self.largest)

        with ThreadPoolExecutor(len(self.host_ns)) as ranks:
            return list(ranks.map(measure, range(len(self.host_ns))))

    def queue(self, ns: int | None) -> list[object]:
        """Queue work of `ns`, or a collective."""
        work = [ns, self.now_ns[self.local.rank]]
        self.queues[self.local.rank].append(work)
        return work

    def call(self) -> None:
        self.now_ns[self.local.rank] += self.host_ns[self.local.rank]
        self.queue(None)

    def largest(self, value: float) -> float:
        self.values[self.local.rank] = value
        self.barrier.wait()
        found = max(self.values)
        self.barrier.wait()
        return found

    def finish(self, *, leaves_late: bool = False) -> None:
        if self.barrier.wait() == 0:
            self.run()
        self.barrier.wait()
        rank = self.local.rank
        self.now_ns[rank] = max(self.now_ns) + (self.late_ns[rank] if leaves_late else 0)
        self.barrier.wait()

    def run(self) -> None:
        free_ns = [0] * len(self.queues)
        places = [0] * len(self.queues)
        while any(place < len(queue) for place, queue in zip(places, self.queues, strict=True)):
            for rank, queue in enumerate(self.queues):
                while places[rank] < len(queue) and queue[places[rank]][0] is not None:
                    work = queue[places[rank]]
                    free_ns[rank] = work[1] = max(free_ns[rank], work[1]) + work[0]
                    places[rank] += 1
            calls = [queue[place] for place, queue in zip(places, self.queues, strict=True) if place < len(queue)]
            if calls:
                over_ns = max(map(max, zip(free_ns, [call[1] for call in calls], strict=True))) + self.gpu_ns
                for call in calls:
                    call[1] = over_ns
                free_ns = [over_ns] * len(free_ns)
                places = [place + 1 for place in places]
        self.queues = [[] for _ in self.queues]
        self.now_ns = [max(now, free) for now, free in zip(self.now_ns, free_ns, strict=True)]


class RankMark:
    def __init__(self, ranks: Ranks, work: list[object]) -> None:
        self._ranks, self.work = ranks, work
        own = ranks.queues[ranks.local.rank]
        self._not_before_ns = sum(work[0] for work in own if work[0] is not None) + (own[0][1] if own else 0)

    def reached(self) -> bool:
        """Whether what its own host queued before it can be over; the other ranks are not asked."""
        return self._ranks.now_ns[self._ranks.local.rank] >= self._not_before_ns

    def ns_until(self, later: "RankMark") -> int:
        return later.work[1] - self.work[1]


@pytest.mark.parametrize("gpu_ns", [8_000, 30_000, 5_000_000])
@pytest.mark.parametrize(
    ("host_ns", "late_ns"),
    [
        ([20_000, 20_000], [0, 0]),
        ([20_000, 2_000_000], [0, 0]),
        ([25_000, 20_000, 22_000], [0, 150_000, 30_000]),
    ],
)
def test_ranks_do_not_measure_that_others_are_not_there_yet(monkeypatch, host_ns, late_ns, gpu_ns):
    """Hosts are not equally fast, and leave a barrier at different moments."""
    times_ns = Ranks(monkeypatch, host_ns, late_ns, gpu_ns).times_ns(20)
    assert times_ns == pytest.approx([gpu_ns] * len(host_ns), rel=0.01)


def test_a_device_that_had_no_work_left_is_measured_again(monkeypatch):
    """The host is slower while it is measured than it was before: nine times at first."""
    machine = Machine(monkeypatch, 40_000, 9_000)
    made = []

    def call() -> None:
        made.append(1)
        slow = 5 < len(made) <= 25
        machine.now_ns += 320_000 if slow else 0
        machine.call()

    assert timing.back_to_back_ns(call, 20, GPU) == pytest.approx(9_000, rel=0.001)
