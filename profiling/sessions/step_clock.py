"""Time every step, profiled or not, and the overhead of the profiler."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import torch

from ...common import wording
from ...contract.rank import Phase, StepTime
from .other_work import OtherWork
from .step_work import Counters, WorkCounters

# The first steps allocate memory, pick algorithms and rebuild DDP's buckets: they are no baseline.
START_UP_STEPS = 2
# A host runs some steps ahead of its device, hardly ever more than these seconds.
_DEVICE_S = 30.0
_POLL_S = 0.001


class Mark(Protocol):
    """An instant at a step's boundary."""

    def reached(self) -> bool:
        """Whether the device has reached it."""

    def ns_until(self, later: "Mark") -> int:
        """Time to a later mark, in ns."""


class HostMark:
    """The present moment on the host's monotonic clock."""

    def __init__(self) -> None:
        self.ns = time.perf_counter_ns()

    def reached(self) -> bool:
        """True: the host has reached every moment it has marked."""
        return True

    def ns_until(self, later: Mark) -> int:
        """Time to a later mark, in ns."""
        assert isinstance(later, HostMark)
        return later.ns - self.ns


class CudaMark:
    """The moment at which the current CUDA stream of `device` reaches this point.

    The host runs ahead of the device. Waiting for the device at every boundary would take that away and measure another
    program, so boundaries are events on the stream, read once the device has passed them.
    """

    def __init__(self, device: torch.device) -> None:
        self.event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(torch.cuda.current_stream(device))

    def reached(self) -> bool:
        """Whether the device has reached it."""
        return bool(self.event.query())

    def ns_until(self, later: Mark) -> int:
        """Device time to a later mark, in ns (CUDA resolves about 500 ns)."""
        assert isinstance(later, CudaMark)
        elapsed_ms = float(self.event.elapsed_time(later.event))
        return round(elapsed_ms * 1e6)


def mark(device: torch.device) -> Mark:
    """A mark of the present moment, for `device`."""
    return CudaMark(device) if device.type == "cuda" else HostMark()


def finish(device: torch.device) -> None:
    """Wait until `device` has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def one_by_one_ns(call: Callable[[], object], times: int, device: torch.device) -> list[int]:
    """Time of each of `times` consecutive calls, in ns."""
    marks = [mark(device)]
    for _ in range(times):
        call()
        marks.append(mark(device))
    finish(device)
    return [begin.ns_until(end) for begin, end in pairwise(marks)]


def clock_name(device: torch.device) -> str:
    """The clock for steps on `device`: `host` or `cuda_event`."""
    return "cuda_event" if device.type == "cuda" else "host"


def captures_graph() -> bool:
    """Whether the current stream captures a CUDA graph, which recording or querying an event would spoil."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


class StepClock:
    """Times steps between `start()` and `stop()`; time between a stop and the next start belongs to no step.

    Of traced steps it also notes what was done in them, as `counters` say.

    While a CUDA graph is captured there is no time to be had, nor after a CUDA error that stays: nothing raises here.
    """

    def __init__(self, device: torch.device, other: OtherWork | None = None) -> None:
        self.counters = WorkCounters(other)
        self._device = device
        self._done: list[StepTime] = []
        self._open: deque[tuple[int, Phase, int, Mark, Mark]] = deque()
        self._begun: tuple[int, Mark] | None = None
        self._counted_at_begin: Counters | None = None
        self._counted: dict[int, tuple[Counters, Counters]] = {}
        self._broken: str | None = None

    @property
    def name(self) -> str:
        """The clock of `dur_ns`: `host` or `cuda_event`."""
        return clock_name(self._device)

    def start(self) -> None:
        """Begin a step."""
        self._ask(self._begin)
        self._counted_at_begin = self.counters.now()

    def restart(self) -> None:
        """Forget every step, and begin one."""
        self._done.clear()
        self._open.clear()
        self._counted.clear()
        self.start()

    def stop(self, step: int, phase: Phase, *, is_traced: bool = False) -> None:
        """End the step that was begun, if there is one."""
        begun, self._begun = self._begun, None
        counted = self.counters.now() if is_traced else None
        if counted is not None and self._counted_at_begin is not None:
            self._counted[step] = self._counted_at_begin, counted
        if begun is not None:
            self._ask(lambda: self._open.append((step, phase, *begun, mark(self._device))))
        self._collect()

    def times(self) -> list[StepTime]:
        """Every step that the device has finished, in order."""
        self._collect()
        return [self._with_work(one) for one in self._done]

    def _with_work(self, time: StepTime) -> StepTime:
        """The time of a step with what was done in it: an evaluation is known as one only when it is over."""
        between = self._counted.get(time.step)
        return time if between is None else replace(time, work=self.counters.between(*between))

    def last(self) -> StepTime | None:
        """The last step that the device has finished."""
        self._collect()
        return self._done[-1] if self._done else None

    def await_device(self, within_s: float = _DEVICE_S, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait until the device finishes the last step, or will not."""
        until_s = time.monotonic() + within_s
        self._collect()
        while self._open and not self._broken and time.monotonic() < until_s and not stopped():
            time.sleep(_POLL_S)
            self._collect()

    def unknown(self) -> str | None:
        """Which finished steps have no time, and why; None if all have one."""
        if self._broken:
            return f"steps after the first {len(self._done)} have no time: {self._broken}"
        if self._open:
            return f"the device did not reach the end of the last {wording.counted(len(self._open), 'step')}"
        return None

    def _begin(self) -> None:
        self._begun = (time.time_ns(), mark(self._device))

    def _collect(self) -> None:
        self._ask(self._read)

    def _read(self) -> None:
        while self._open and self._open[0][4].reached():
            step, phase, start_unix_ns, begin, end = self._open.popleft()
            self._done.append(StepTime(step, phase, start_unix_ns, begin.ns_until(end)))

    def _ask(self, device: Callable[[], None]) -> None:
        """Run something that queries the device, unless that is not allowed now or has failed before."""
        try:
            if not self._broken and not (self._device.type == "cuda" and captures_graph()):
                device()
        except RuntimeError as err:
            self._broken = str(err).strip().partition("\n")[0]


_MEASURABLE_FRAC = 0.001
_LEAST_SAID = 0.005  # whole percents: steps differ by more
_SPREAD = 0.9  # of the unprofiled steps are shorter
_LEAST_COMPARED = 3  # one or two may have been long for another reason


@dataclass(frozen=True)
class Overhead:
    """Median step time with and without the profiler, in ns.

    `idle_long_ns` is what nine of ten unprofiled steps stay below: profiled steps within that spread are not longer.
    """

    active_ns: int
    idle_ns: int
    active_steps: int
    idle_steps: int
    idle_long_ns: int = 0

    @property
    def frac(self) -> float:
        """The overhead as a fraction of an unprofiled step; noise can make it negative."""
        return self.active_ns / self.idle_ns - 1

    def __str__(self) -> str:
        """The overhead in words."""
        is_longer = self.frac >= _MEASURABLE_FRAC and self.active_ns > self.idle_long_ns
        if not is_longer:
            return "no longer, as far as can be measured"
        return f"{self.frac:.0%} longer" if self.frac >= _LEAST_SAID else "less than 1% longer"


def overhead(times: Sequence[StepTime]) -> Overhead | None:
    """The profiler's overhead, without the first steps; None without a profiled one, or a few that are not."""
    by_phase: dict[Phase, list[int]] = {"idle": [], "warmup": [], "active": []}
    for time_ in times:
        if time_.step >= START_UP_STEPS:
            by_phase[time_.phase].append(time_.dur_ns)
    active, idle = by_phase["active"], by_phase["idle"]
    if not active or len(idle) < _LEAST_COMPARED:
        return None
    long_ns = sorted(idle)[math.ceil(_SPREAD * len(idle)) - 1]
    return Overhead(round(statistics.median(active)), round(statistics.median(idle)), len(active), len(idle), long_ns)
