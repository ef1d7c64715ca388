"""What the thread and the process of a rank do in each step besides its time, from counters that cost microseconds."""

import gc
import os
import resource
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from ...contract.rank import StepWork
from ..base.patches import Patches

_MOST_SPANS = 1000  # evaluations and checkpoints that are remembered: those of the last steps
_COMPILING = "entire_frame_compile"
"""The time that dynamo has spent on compiling, its backend included; it counts that by itself."""

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Of this thread, in Linux: ns on a CPU, ns ready to run without one, number of times that it ran."""
_Span = tuple[int, int]


@dataclass(frozen=True)
class Counters:
    """What was counted up to a moment, at `host_ns` of the host's monotonic clock, on one thread."""

    thread: int
    host_ns: int
    cpu_ns: int
    process_cpu_ns: int
    ready_ns: int | None
    usage: "resource.struct_rusage"
    gc_ns: int
    collections: tuple[int, ...]
    compile_ns: int


class WorkCounters:
    """Counts between `start()` and `stop()`; nothing here raises.

    A model is evaluated from `eval()` until `train()` of the same module, if its weights stay as they are meanwhile:
    a part that is frozen in each step is no evaluation, nor is a training with the dropout turned off.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._gc_ns = 0
        self._gc_since: int | None = None
        self._collections = [0] * len(gc.get_stats())
        self._evaluated: tuple[weakref.ref[torch.nn.Module], int, tuple[int, int]] | None = None
        self._spans: dict[str, deque[_Span]] = {kind: deque(maxlen=_MOST_SPANS) for kind in ("eval", "checkpoint")}
        self._is_on = False
        self._ready: tuple[int, int, IO[bytes] | None] | None = None

    def start(self) -> None:
        """Begin to count."""
        self._is_on = True
        gc.callbacks.append(self._collected)
        self._patches.on_detach(lambda: gc.callbacks.remove(self._collected))
        self._patches.wrap(torch.nn.Module, "train", self._train)
        self._patches.wrap(torch, "save", self._save)

    @property
    def evaluated(self) -> int:
        """How many evaluations have ended, of the last ones."""
        return len(self._spans["eval"])

    def stop(self) -> None:
        """Restore everything. Further calls do nothing."""
        self._is_on = False
        self._patches.undo()
        self._close()

    def now(self) -> Counters | None:
        """What has been counted by now on this thread; None where nothing counts."""
        if not self._is_on:
            return None
        return Counters(
            threading.get_native_id(),
            time.perf_counter_ns(),
            time.thread_time_ns(),
            time.process_time_ns(),
            self._ready_ns(),
            resource.getrusage(resource.RUSAGE_THREAD),
            self._gc_ns,
            tuple(self._collections),
            _compile_ns(),
        )

    def between(self, begin: Counters, end: Counters) -> StepWork | None:
        """What was done between two moments; None if they are of two threads."""
        if begin.thread != end.thread:
            return None
        ready = (begin.ready_ns, end.ready_ns)
        return StepWork(
            wall_ns=end.host_ns - begin.host_ns,
            cpu_ns=end.cpu_ns - begin.cpu_ns,
            ready_ns=None if ready[0] is None or ready[1] is None else ready[1] - ready[0],
            process_cpu_ns=end.process_cpu_ns - begin.process_cpu_ns,
            gc_ns=end.gc_ns - begin.gc_ns,
            gc_collections=[b - a for a, b in zip(begin.collections, end.collections, strict=True)],
            voluntary_switches=end.usage.ru_nvcsw - begin.usage.ru_nvcsw,
            involuntary_switches=end.usage.ru_nivcsw - begin.usage.ru_nivcsw,
            major_faults=end.usage.ru_majflt - begin.usage.ru_majflt,
            blocks_read=end.usage.ru_inblock - begin.usage.ru_inblock,
            blocks_written=end.usage.ru_oublock - begin.usage.ru_oublock,
            eval_ns=self._inside("eval", begin, end),
            checkpoint_ns=self._inside("checkpoint", begin, end),
            compile_ns=end.compile_ns - begin.compile_ns,
        )

    def _inside(self, kind: str, begin: Counters, end: Counters) -> int:
        """How much of the time between two moments was spent in spans of a kind, which do not overlap, in ns."""
        spans = list(self._spans[kind])
        return sum(max(0, min(until, end.host_ns) - max(since, begin.host_ns)) for since, until in spans)

    def _ready_ns(self) -> int | None:
        """How long this thread was ready to run, but waited for a CPU; None where the system does not count that.

        The file stays open: to open it takes longer than all the rest.
        """
        here = os.getpid(), threading.get_native_id()
        with suppress(OSError, ValueError, IndexError):
            if self._ready is None or self._ready[:2] != here:
                self._close()
                self._ready = *here, None
                self._ready = *here, _SCHEDSTAT.open("rb", buffering=0)
            file = self._ready[2]
            return None if file is None else int(os.pread(file.fileno(), 64, 0).split()[1])
        return None

    def _close(self) -> None:
        if self._ready is not None and self._ready[2] is not None:
            self._ready[2].close()
        self._ready = None

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        """A callback of `gc`."""
        if phase == "start":
            self._gc_since = time.perf_counter_ns()
        elif self._gc_since is not None:
            self._gc_ns += time.perf_counter_ns() - self._gc_since
            self._gc_since = None
            self._collections[info["generation"]] += 1

    def _train(self, original: Any, module: torch.nn.Module, mode: bool = True) -> Any:
        """`eval()` is `train(False)`, which calls that of each part."""
        if self._evaluated is None:
            if not mode and module.training:
                weights = _version(module)
                if weights is not None:
                    self._evaluated = weakref.ref(module), time.perf_counter_ns(), weights
        else:
            of, since, weights = self._evaluated
            known = of()
            if known is None or (mode and known is module):
                self._evaluated = None
                if known is not None and _version(module) == weights:
                    self._spans["eval"].append((since, time.perf_counter_ns()))
        return original(module, mode)

    def _save(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        since = time.perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            self._spans["checkpoint"].append((since, time.perf_counter_ns()))


def _version(module: torch.nn.Module) -> tuple[int, int] | None:
    """Which weight of a module an optimizer changes first, and how often it was changed; None without one."""
    first = next((weight for weight in module.parameters() if weight.requires_grad), None)
    return None if first is None or first.is_inference() else (id(first), first._version)  # noqa: SLF001


def _compile_ns() -> int:
    spent = getattr(sys.modules.get("torch._dynamo.utils"), "cumulative_time_spent_ns", {})
    return int(spent.get(_COMPILING, 0))
