"""What the thread and the process of a rank do in each step besides its time, from counters that cost microseconds."""

import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...contract.rank import StepWork
from ..base.patches import Patches
from .other_work import OtherWork

_COMPILING = "entire_frame_compile"
"""The time that dynamo has spent on compiling, its backend included; it counts that by itself."""

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Of this thread, in Linux: ns on a CPU, ns ready to run without one, number of times that it ran."""


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
    """Counts between `start()` and `stop()`; nothing here raises. `other` notices evaluations and checkpoints."""

    def __init__(self, other: OtherWork | None = None) -> None:
        self.other = other or OtherWork()
        self._patches = Patches()
        self._gc_ns = 0
        self._gc_since: int | None = None
        self._collections = [0] * len(gc.get_stats())
        self._is_on = False
        self._ready: tuple[int, int, IO[bytes] | None] | None = None

    def start(self) -> None:
        """Begin to count."""
        self._is_on = True
        gc.callbacks.append(self._collected)
        self._patches.on_detach(lambda: gc.callbacks.remove(self._collected))
        self.other.attach(self._patches)

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
            eval_ns=self.other.inside("evaluation", begin.host_ns, end.host_ns),
            checkpoint_ns=self.other.inside("checkpoint", begin.host_ns, end.host_ns),
            compile_ns=end.compile_ns - begin.compile_ns,
        )

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


def _compile_ns() -> int:
    spent = getattr(sys.modules.get("torch._dynamo.utils"), "cumulative_time_spent_ns", {})
    return int(spent.get(_COMPILING, 0))
