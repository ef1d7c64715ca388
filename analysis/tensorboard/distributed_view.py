"""Write traces for torch-tb-profiler in the form that its Distributed view counts correctly.

It takes for communication what is named as one of five collectives of torch 1.x, and compares the n-th of these of all
workers, by their external ids. So each collective that it can compare has an id of its own here. All others share one,
and a name: their time counts, and of the id only the last is looked at, which is an empty one.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..core.kinds import COMM, MEMORY
from ..core.markers import GLOO_MARK, NCCL_MARK, PROFILER_STEP
from ..core.schema import grouped
from ..errors import NothingMeasured
from ..results.analysis import Analysis
from .pairing import DeviceWorker, paired_collectives, workers_of

_ANY = "reduce"
"""The collective as which all pass that cannot be compared."""
_SHARED_ID = 0
_ANNOTATION = "user_annotation"
_QUICK = 1
"""How hard gzip tries."""


@dataclass(frozen=True)
class TraceCopy:
    """The trace file of a worker: name, content, and the number of its calls that the view compares."""

    name: str
    content: bytes
    operations: int
    compared: int


def trace_copies(analysis: Analysis) -> Iterator[TraceCopy]:
    """Yield a file per device and cycle. Raises NothingMeasured without communication."""
    run = analysis.run
    if not (run.activities["kind"] == COMM).any():
        raise NothingMeasured(f"{run.name}: shows no communication, so TensorBoard has nothing to show of it")
    matched = analysis.matches[["call_id", "collective_id"]]
    whole = analysis.collectives[["collective_id", "complete"]]
    calls = analysis.calls.merge(matched, on="call_id", how="left").merge(whole, on="collective_id", how="left")
    writing = _Writing(run)
    for (cycle,), activities in grouped(run.activities, ["cycle"]):
        workers = workers_of(activities, calls[calls["cycle"] == cycle])
        numbers = paired_collectives(workers)
        some_unpaired = any(len(worker.communication) > len(numbers) for worker in workers)
        zero_ns = int(activities["start_ns"].min())
        for worker in workers:
            events = _Events(worker, numbers, zero_ns)
            content = writing.content(worker, [*events.all(), *([events.last_unpaired()] if some_unpaired else ())])
            yield TraceCopy(writing.name(worker, cycle), content, len(worker.communication), len(numbers))


class _Writing:
    """Files with their names and headers."""

    def __init__(self, run: Any) -> None:
        self._hosts: dict[int, str | None] = run.hosts
        traces = run.traces
        self._gpus = dict(zip(traces["rank"], traces["device_name"].fillna(""), strict=True))
        self._backends = dict(zip(traces["rank"], traces["backend"].fillna(""), strict=True))
        self._digits = len(str(traces["rank"].max()))
        self._several = bool((run.activities.groupby("rank")["device"].nunique() > 1).any())

    def name(self, worker: DeviceWorker, cycle: int) -> str:
        """The file name, from which the profiler takes host and process, and by which it sorts workers."""
        host = re.sub(r"[^A-Za-z0-9-]+", "-", (self._hosts.get(worker.rank) or "")[:64]).strip("-") or "rank"
        device = f"-device{worker.device}" if self._several else ""
        return f"{host}{device}_{worker.rank:0{self._digits}}.{cycle + 1}.pt.trace.json.gz"

    def content(self, worker: DeviceWorker, events: Collection[str]) -> bytes:
        """The content of a file."""
        gpus = int(worker.device) + 1 if worker.device.isdigit() else 0
        header = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": number, "name": self._gpus.get(worker.rank, "")} for number in range(gpus)],
            "distributedInfo": {"backend": self._backends.get(worker.rank, ""), "rank": worker.rank},
        }
        text = f'{json.dumps(header)[:-1]}, "traceEvents": [\n{_SEPARATOR.join(events)}\n]}}\n'
        return gzip.compress(text.encode(), _QUICK, mtime=0)


_SEPARATOR = ",\n"


@dataclass(frozen=True)
class _Events:
    """The events of a worker as JSON, with the numbers of the compared collectives."""

    worker: DeviceWorker
    numbers: dict[int, int]
    zero_ns: int

    def all(self) -> Iterator[str]:
        """Yield steps, kernels and copies, then communication."""
        for number, (step, start_ns, end_ns) in enumerate(self.worker.windows):
            thread = number % 2  # to the profiler's floats, steps that touch may overlap, which it does not like on one
            yield self._event(_ANNOTATION, f'"{PROFILER_STEP}{step}"', self._times(start_ns, end_ns - start_ns), thread)
        yield from self._computing()
        calls = self.worker.calls
        compared = calls[calls["collective_id"].isin(list(self.numbers))]
        yield from self._compared(compared)
        yield from self._not_compared(self.worker.unpaired(compared))

    def last_unpaired(self) -> str:
        """The empty event just before the end of the last step."""
        at_ns = self.worker.windows[-1].end_ns - 1
        return self._event(_ANNOTATION, self._named(_ANY), self._times(at_ns, 0), 0, _identified())

    def _computing(self) -> Iterator[str]:
        rest = self.worker.activities[self.worker.activities["kind"] != COMM]
        names = {name: json.dumps(name) for name in rest["name"].unique()}
        for name, kind, start_ns, dur_ns, stream, blocks, occupancy in _rows(
            rest, "name", "kind", "start_ns", "dur_ns", "stream", "blocks_per_sm", "occupancy_frac"
        ):
            category = ("gpu_memset" if name.startswith("Memset") else "gpu_memcpy") if kind == MEMORY else "kernel"
            args = f'"device":{self._device},"stream":{stream}'
            if blocks is not pd.NA and occupancy is not pd.NA:
                args += f',"blocks per SM":{blocks:.6g},"est. achieved occupancy %":{100 * occupancy:.6g}'
            yield self._event(category, names[name], self._times(start_ns, dur_ns), stream, args)

    def _compared(self, calls: pd.DataFrame) -> Iterator[str]:
        for collective, number, size, start_ns, dur_ns, stream in _rows(
            calls, "collective", "collective_id", "size_bytes", "start_ns", "dur_ns", "stream"
        ):
            args = _identified(self.numbers[number])
            if size is not pd.NA:
                args += f',"Input Dims":[[{size}]],"Input type":["unsigned char"]'
            yield self._event(_ANNOTATION, self._named(collective), self._within(start_ns, dur_ns), stream, args)

    def _not_compared(self, activities: pd.DataFrame) -> Iterator[str]:
        for name, start_ns, dur_ns, stream in _rows(activities, "name", "start_ns", "dur_ns", "stream"):
            args = f'{_identified()},"kernel":{json.dumps(name)}'
            yield self._event(_ANNOTATION, self._named(_ANY), self._times(start_ns, dur_ns), stream, args)

    def _named(self, collective: str) -> str:
        return f'"{GLOO_MARK if self.worker.device == "cpu" else NCCL_MARK}{collective}"'

    @property
    def _device(self) -> int:
        return int(self.worker.device) if self.worker.device.isdigit() else 0

    def _event(self, category: str, name: str, times: tuple[str, str], stream: int, args: str = "") -> str:
        """One event; `name` and `times` (start and duration) are JSON already."""
        return (
            f'{{"ph":"X","cat":"{category}","name":{name},"pid":{self._device},"tid":{stream},'
            f'"ts":{times[0]},"dur":{times[1]},"args":{{{args}}}}}'
        )

    def _times(self, start_ns: int, dur_ns: int) -> tuple[str, str]:
        """Start and duration in us, exact."""
        return _microseconds(start_ns - self.zero_ns), _microseconds(dur_ns)

    def _within(self, start_ns: int, dur_ns: int) -> tuple[str, str]:
        """Start and duration, less 0.01 ns at either end, so that the profiler's floats keep it in one step."""
        if not dur_ns:
            return self._times(start_ns, dur_ns)
        return f"{_microseconds(start_ns - self.zero_ns)}01", f"{_microseconds(dur_ns - 1)}98"


def _identified(number: int = _SHARED_ID) -> str:
    return f'"External id":{number}'


def _microseconds(time_ns: int) -> str:
    """The time in us, exact."""
    return f"{time_ns // 1000}.{time_ns % 1000:03}"


def _rows(table: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[column].tolist() for column in columns), strict=True)
