"""What was read from one file -> its tables. Times are integer nanoseconds from here on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core import markers
from ..core.escaping import encodable
from ..core.tables.communication import ACTIVITIES, ANNOTATIONS, COMM_ARGS, LAUNCHES
from ..core.tables.device_time import CPU_OPERATORS, MEMORY_EVENTS, RUNTIME_CALLS
from ..recording.arrays import Int64s, annotation_times, doubles, durations, in_ns, integers, negative_durations
from ..recording.recording import Annotation, Columns, Extent, RawTrace
from ..recording.values import MISSING
from .event_tables import EVENT_SCHEMAS, EventTables
from .rank_files import ReadFile

_CPU = 0  # c10::DeviceType
_LONG_AGO_NS = 10**18  # in 2001: times that count from the epoch are later, all others earlier
_ARRAYS: Any = pd.arrays  # its stubs know only some of its classes


@dataclass(frozen=True, kw_only=True)
class TraceFile(ReadFile):
    """The tables of one file. Their `rank` and `cycle` are 0: only the run knows the real ones.

    `activities` are those of GPUs. From them, or from what CPUs did, the run makes `ran`, with steps. No sum of its
    times is more than `times_ns`. `gloo_beside_gpu` counts gloo's operations beside those of a GPU.
    """

    activities: pd.DataFrame
    launches: pd.DataFrame
    annotations: pd.DataFrame
    comm_args: pd.DataFrame
    cpu_ops: pd.DataFrame
    gloo_threads: frozenset[int]
    runtime_calls: pd.DataFrame = field(default_factory=RUNTIME_CALLS.empty)
    memory: pd.DataFrame = field(default_factory=MEMORY_EVENTS.empty)
    window_end_ns: int | None = None
    extent: Extent = field(default_factory=lambda: Extent(0))
    detailed: bool = False
    times_ns: float = 0.0
    first_device: int | None = None
    gloo_beside_gpu: int = 0
    ran: pd.DataFrame = field(default_factory=ACTIVITIES.empty)

    def without_tables(self) -> TraceFile:
        """What is known of the file apart from its tables."""
        nothing: dict[str, Any] = {
            name: schema.empty() for name, schema in EVENT_SCHEMAS.items() if name != "cpu_operators"
        }
        return replace(self, **nothing, cpu_ops=self.cpu_ops[:0], ran=ACTIVITIES.empty())


def trace_file(path: Path, raw: RawTrace) -> TraceFile:
    """The tables of the file at `path`, from which `raw` was read."""
    base_ns = raw.header.base_ns
    activities, annotations = _activity_table(raw, base_ns), _annotation_table(raw.annotations, base_ns)
    cpu_ops = _cpu_op_table(raw, base_ns)
    known_clock = raw.damage is None or bool(base_ns) or _is_absolute(activities, annotations, cpu_ops)
    marked = annotations["name"].str.startswith(markers.GLOO_MARK) if len(activities) else annotations["name"][:0]
    return TraceFile(
        path=path,
        header=raw.header,
        pid=raw.pid,
        damage=raw.damage,
        extent=raw.extent,
        detailed=raw.detailed,
        notes=(*raw.notes, *negative_durations(path, raw), *_repairs(path, raw)),
        has_known_clock=known_clock,
        activities=activities,
        launches=_launch_table(raw, base_ns),
        annotations=annotations,
        comm_args=_comm_args_table(raw.comm_args, base_ns),
        cpu_ops=cpu_ops,
        runtime_calls=_runtime_table(raw, base_ns),
        memory=_memory_table(raw.memory, base_ns),
        window_end_ns=None if raw.window_end is None else int(in_ns(np.array([raw.window_end]))[0]) + base_ns,
        gloo_threads=frozenset(raw.gloo_threads),
        times_ns=_times_ns(activities, annotations, cpu_ops),
        first_device=int(activities["device"].iloc[0]) if len(activities) else None,
        gloo_beside_gpu=int(marked.sum()) if len(marked) else 0,
    )


class Placed(NamedTuple):
    """A file in its place in the run."""

    file: TraceFile
    rank: int
    cycle: int


def joined_tables(files: Iterable[Placed]) -> EventTables:
    """The tables of files as those of a run; files in order of rank and cycle."""
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in EVENT_SCHEMAS}
    for file, rank, cycle in files:
        parts = {
            "activities": file.ran,
            "launches": file.launches,
            "annotations": file.annotations,
            "comm_args": file.comm_args,
            "cpu_operators": file.cpu_ops if len(file.activities) else CPU_OPERATORS.empty(),
            "runtime_calls": file.runtime_calls,
            "memory": file.memory,
        }
        for name, table in parts.items():
            tables[name].append(of_rank(table, rank, cycle))
    return EventTables(**{name: schema.concat(tables[name]) for name, schema in EVENT_SCHEMAS.items()})


def of_rank(table: pd.DataFrame, rank: int, cycle: int) -> pd.DataFrame:
    """A table of one file as rows of that rank and cycle."""
    copy = table.copy(deep=False)
    copy["rank"], copy["cycle"] = rank, cycle
    return copy


def _times_ns(activities: pd.DataFrame, annotations: pd.DataFrame, cpu_ops: pd.DataFrame) -> float:
    """All durations of a file, plus the time from its first activity to its last: no sum of its times is more.

    In ns, as a number that cannot overflow.
    """
    tables = (activities, annotations, cpu_ops)
    took_ns = sum(float(table["dur_ns"].to_numpy().sum(dtype=np.float64)) for table in tables)
    ran = activities if len(activities) else cpu_ops
    if not len(ran):
        return took_ns
    return took_ns + float((ran["start_ns"] + ran["dur_ns"]).max()) - float(ran["start_ns"].min())


def _repairs(path: Path, raw: RawTrace) -> Iterator[str]:
    """A note on bytes that are not JSON, and were read all the same."""
    count = raw.repaired_bytes + raw.header.repaired_bytes
    if count:
        yield (
            f"{encodable(path.name)}: {count:,} bytes are not JSON, and were taken as meant: quotes in names that are "
            "not escaped, NaN, commas too many, or damage that looks like these"
        )


def _is_absolute(*tables: pd.DataFrame) -> bool:
    """Whether the times count from the epoch."""
    return any(int(table["start_ns"].max()) > _LONG_AGO_NS for table in tables if len(table))


def _activity_table(raw: RawTrace, base_ns: int) -> pd.DataFrame:
    columns = raw.activities
    name = integers(columns["name"])
    if not len(name):
        return ACTIVITIES.empty()
    device, devices = pd.factorize(integers(columns["device"]))
    return ACTIVITIES.conform(pd.DataFrame({
        "rank": 0,
        "cycle": 0,
        "device": _texts([str(d) for d in devices], device),
        "stream": integers(columns["stream"]).copy(),  # bytes are read-only
        "kind": _texts(raw.kinds, name),
        "name": _texts(raw.names, name),
        "start_ns": in_ns(doubles(columns["ts"])) + base_ns,
        "dur_ns": durations(columns),
        "step": _known(np.full(len(name), MISSING)),
        "correlation": _known(integers(columns["correlation"])),
        "external_id": _known(integers(columns["external_id"])),
        "blocks_per_sm": _above(0, columns["blocks_per_sm"]),
        "occupancy_frac": _above(-1e-9, columns["occupancy_percent"]) / 100,
    }, copy=False))  # fmt: skip


def _launch_table(raw: RawTrace, base_ns: int) -> pd.DataFrame:
    """Launches of the activities. A correlation may have several calls; the first one counts."""
    columns = raw.launches
    if not columns["ts"]:
        return LAUNCHES.empty()
    start_ns = in_ns(doubles(columns["ts"])) + base_ns
    correlation = integers(columns["correlation"])
    # In a damaged file, launches may be the only sign that there were activities.
    if raw.damage is None:
        known = pd.Series(correlation).isin(integers(raw.activities["correlation"])).to_numpy()
        of_activities = known & (correlation != MISSING)
    else:
        of_activities = np.ones(len(correlation), dtype=bool)
    order = np.flatnonzero(of_activities)
    order = order[np.argsort(start_ns[order], kind="stable")]
    order = order[~pd.Series(correlation[order]).duplicated().to_numpy()]
    return LAUNCHES.conform(pd.DataFrame({
        "rank": 0,
        "cycle": 0,
        "correlation": correlation[order],
        "thread": integers(columns["thread"])[order],
        "start_ns": start_ns[order],
        "external_id": _known(integers(columns["external_id"])[order]),
    }, index=range(len(order)), copy=False))  # fmt: skip


def _annotation_table(annotations: list[Annotation], base_ns: int) -> pd.DataFrame:
    start_ns, dur_ns = annotation_times(annotations, base_ns)
    rows = (
        {
            "rank": 0, "cycle": 0, "name": a.name, "thread": a.thread, "start_ns": start, "dur_ns": dur,
            "in_dims": a.in_dims, "in_types": a.in_types, "in_values": a.in_values,
        }
        for a, start, dur in zip(annotations, start_ns, dur_ns, strict=True)
    )  # fmt: skip
    return ANNOTATIONS.frame(rows)


def _comm_args_table(rows: list[dict[str, Any]], base_ns: int) -> pd.DataFrame:
    table = COMM_ARGS.frame({"rank": 0, "cycle": 0, **row} for row in rows)
    times = np.array([row.get("ts", np.nan) for row in rows], dtype=np.float64)
    known = np.flatnonzero(~np.isnan(times))
    start_ns = np.full(len(rows), MISSING)
    start_ns[known] = in_ns(times[known]) + base_ns
    return table.assign(start_ns=_known(start_ns)) if len(rows) else table


def _cpu_op_table(raw: RawTrace, base_ns: int) -> pd.DataFrame:
    columns = raw.operators
    return pd.DataFrame({
        "thread": integers(columns["thread"]),
        "start_ns": in_ns(doubles(columns["ts"])) + base_ns,
        "dur_ns": durations(columns),
        "name": np.array(raw.operator_names, dtype=object)[integers(columns["name"])],
    })  # fmt: skip


def _runtime_table(raw: RawTrace, base_ns: int) -> pd.DataFrame:
    columns = raw.runtime
    if not columns["ts"]:
        return RUNTIME_CALLS.empty()
    return RUNTIME_CALLS.conform(pd.DataFrame({
        "rank": 0,
        "cycle": 0,
        "thread": integers(columns["thread"]).copy(),
        "name": _texts(raw.call_names, integers(columns["name"])),
        "correlation": _known(integers(columns["correlation"])),
        "start_ns": in_ns(doubles(columns["ts"])) + base_ns,
        "dur_ns": durations(columns),
    }, copy=False))  # fmt: skip


def _memory_table(columns: Columns, base_ns: int) -> pd.DataFrame:
    if not columns["ts"]:
        return MEMORY_EVENTS.empty()
    of_cpu = integers(columns["device_type"]) == _CPU
    ordinals = integers(columns["device"]).astype(str)
    return MEMORY_EVENTS.conform(pd.DataFrame({
        "rank": 0,
        "cycle": 0,
        "device": np.where(of_cpu, "cpu", ordinals).astype(object),
        "time_ns": in_ns(doubles(columns["ts"])) + base_ns,
        "allocated_bytes": _known(integers(columns["allocated"])),
        "reserved_bytes": _known(integers(columns["reserved"])),
    }))  # fmt: skip


def _known(values: Int64s) -> Any:
    """Integers with NA where they are MISSING."""
    missing = values == MISSING
    return pd.arrays.IntegerArray(np.where(missing, 0, values), missing)


def _above(limit: float, column: bytes) -> Any:
    """Numbers with NA where they are not known, or not above the limit, as some versions of Kineto write them."""
    values = doubles(column)
    known = (values > limit) & np.isfinite(values)
    return _ARRAYS.FloatingArray(np.where(known, values, 0.0), ~known)


def _texts(distinct: list[str], numbers: NDArray[Any]) -> Any:
    """A text column from its distinct texts: checked once each, not once per row."""
    return pd.array(distinct, dtype="string").take(numbers)
