"""Make the tables of one file. Times are integer nanoseconds from here on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core import markers
from ..core.escaping import encodable
from ..core.schema import Row, Schema
from ..core.steps import NO_STEP, steps_at
from ..core.tables.communication import ANNOTATIONS, COMM_ARGS
from ..core.tables.events import (
    ACTIVITIES,
    COUNTER_SAMPLES,
    CPU_OPERATORS,
    EVENT_SORTS,
    FUNCTIONS,
    LAUNCHES,
    MEMORY_EVENTS,
    MODULES,
    OPERATOR_CALLS,
    RUNTIME_CALLS,
    STREAM_WAITS,
    EventColumn,
)
from ..recording.arrays import (
    Int64s,
    doubles,
    durations,
    in_ns,
    integers,
    negative_durations,
    repairs,
    spans_of_annotations,
    values_of,
)
from ..recording.contradictions import begun_before_launch, met_on_streams, without_repeated
from ..recording.options import ReadOptions
from ..recording.recorded_rank import recorded_rank
from ..recording.recording import Annotation, Columns, Extent, RawTrace, with_bounded_names
from ..recording.row_bytes import tables_bytes
from ..recording.step_marks import StepMark, with_marked_steps
from ..recording.strays import without_strays
from ..recording.values import MISSING
from .event_tables import EVENT_SCHEMAS, EventTables
from .gpu_ends import Called, before_first_activity, cut_notes, missing_ends
from .rank_files import ReadFile
from .unseen import unseen_communication

_CPU = 0  # c10::DeviceType
_LONG_AGO_NS = 10**18  # in 2001: times that count from the epoch are later, all others earlier
_PLAIN = ReadOptions()
_MANY = 20
_EVERY = slice(None)
_ARRAYS: Any = pd.arrays  # its stubs know only some of its classes


@dataclass(frozen=True, kw_only=True)
class TraceFile(ReadFile):
    """The tables of one file. `rank` and `cycle` are 0: only the run knows the real ones.

    `activities` are those of GPUs. From them, or from what CPUs did, the run makes `ran`, with steps. No sum of its
    times is more than `times_ns`. `gloo_beside_gpu` counts gloo's operations beside those of a GPU, `launched` calls
    that launched work which the file does not show. If only some steps are read, `recorded_steps` are all of the file.
    `step_marks` say what is known of each; in `unshown_steps` something was launched that the file does not show.
    Before a step began, it was held up for `unseen_ns` by work from before the file. It `contradicts` itself if kernels
    of one stream ran at the same time for long.
    """

    activities: pd.DataFrame
    launches: pd.DataFrame
    annotation_rows: list[Row]
    comm_rows: list[Row]
    cpu_ops: pd.DataFrame
    gloo_threads: frozenset[int]
    operator_calls: pd.DataFrame = field(default_factory=OPERATOR_CALLS.empty)
    runtime_calls: pd.DataFrame = field(default_factory=RUNTIME_CALLS.empty)
    memory_events: pd.DataFrame = field(default_factory=MEMORY_EVENTS.empty)
    stream_waits: pd.DataFrame = field(default_factory=STREAM_WAITS.empty)
    modules: pd.DataFrame = field(default_factory=MODULES.empty)
    functions: pd.DataFrame = field(default_factory=FUNCTIONS.empty)
    counter_samples: pd.DataFrame = field(default_factory=COUNTER_SAMPLES.empty)
    window_end_ns: int | None = None
    extent: Extent = field(default_factory=lambda: Extent(0))
    detailed: bool = False
    times_ns: float = 0.0
    gloo_beside_gpu: int = 0
    launched: int = 0
    ran: pd.DataFrame = field(default_factory=ACTIVITIES.empty)
    recorded_steps: tuple[int, ...] = ()
    step_marks: tuple[StepMark, ...] = ()
    unshown_steps: frozenset[int] = frozenset()
    unseen_ns: dict[int, int] = field(default_factory=dict)
    contradicts: bool = False

    @cached_property
    def annotations(self) -> pd.DataFrame:
        """Annotations of CPUs."""
        return ANNOTATIONS.frame(self.annotation_rows)

    @cached_property
    def comm_args(self) -> pd.DataFrame:
        """Arguments of collectives."""
        return COMM_ARGS.frame(self.comm_rows)

    @property
    def needed_bytes(self) -> int:
        """Upper bound of the memory of its tables, in bytes, counted as when the file was read."""
        return tables_bytes(
            activities=len(self.activities),
            launches=len(self.launches),
            runtime=len(self.runtime_calls),
            operators=len(self.cpu_ops),
            memory=len(self.memory_events),
            stream_waits=len(self.stream_waits),
            modules=len(self.modules),
            functions=len(self.functions),
            counters=len(self.counter_samples),
            annotations=len(self.annotation_rows),
            calls=len(self.comm_rows),
        )

    def without_tables(self) -> TraceFile:
        """The file without its tables."""
        held = EVENT_SCHEMAS.keys() & {one.name for one in fields(self)}
        nothing: dict[str, Any] = {name: EVENT_SCHEMAS[name].empty() for name in held}
        return replace(
            self, **nothing, annotation_rows=[], comm_rows=[], cpu_ops=self.cpu_ops[:0], ran=ACTIVITIES.empty()
        )


def trace_file(path: Path, raw: RawTrace, options: ReadOptions = _PLAIN) -> TraceFile:
    """Make the tables of the file at `path` from its content `raw`, with steps as the options say."""
    raw = with_bounded_names(without_repeated(path, without_strays(path, raw)))
    marked_steps = _steps_by_torch(raw.annotations, raw.zero_ns)
    raw, step_marks, step_notes = with_marked_steps(raw, options.step_marker, options.first_step(path.name))
    base_ns = raw.zero_ns
    kinds = _texts(raw.kinds, integers(raw.activities["name"]))
    activities, cpu_ops = _table("activities", ACTIVITIES, raw, base_ns, kind=kinds), _cpu_op_table(raw, base_ns)
    marked_ns = spans_of_annotations(raw.annotations, base_ns)
    known_clock = raw.damage is None or bool(base_ns)
    known_clock = known_clock or _is_absolute(activities["start_ns"], cpu_ops["start_ns"], marked_ns[0])
    gloo = sum(one.name.startswith(markers.GLOO_MARK) for one in raw.annotations) if len(activities) else 0
    annotations, comm_rows = _annotation_rows(raw.annotations, marked_ns), _comm_rows(raw.comm_args, base_ns)
    missing = missing_ends(activities, _called(raw, base_ns), _ids_of(comm_rows))
    runtime_calls = _table("runtime", RUNTIME_CALLS, raw, base_ns)
    met = met_on_streams(path, raw)
    cut = () if raw.damage else cut_notes(activities, missing, annotations)
    is_whole = raw.detailed and not len(missing.first_ns)
    before = before_first_activity(activities, runtime_calls, cpu_ops) if is_whole else ()
    marks = list(zip((one.name for one in raw.annotations), *(ns.tolist() for ns in marked_ns), strict=True))
    without_kernels = steps_at(np.concatenate((missing.first_ns, missing.last_ns)), marks)
    return TraceFile(
        path=path,
        header=raw.header,
        pid=raw.pid,
        damage=raw.damage,
        extent=raw.extent,
        detailed=raw.detailed,
        notes=(
            *raw.notes,
            *negative_durations(path, raw),
            *met.notes,
            *begun_before_launch(path, raw),
            *repairs(path, raw),
            *unseen_communication(path, raw),
            *(f"{encodable(path.name)}: {why}" for why in (*step_notes, *cut, *before)),
        ),
        has_known_clock=known_clock,
        activities=activities,
        launches=_launch_table(raw, base_ns),
        annotation_rows=annotations,
        comm_rows=comm_rows,
        cpu_ops=cpu_ops,
        operator_calls=_operator_call_table(raw, base_ns),
        runtime_calls=runtime_calls,
        memory_events=_memory_table(raw, base_ns),
        stream_waits=_table("stream_waits", STREAM_WAITS, raw, base_ns),
        modules=_table("modules", MODULES, raw, base_ns),
        functions=_table("functions", FUNCTIONS, raw, base_ns),
        counter_samples=_counter_table(raw, base_ns),
        window_end_ns=None if raw.window_end is None else int(in_ns(np.array([raw.window_end]))[0]) + base_ns,
        gloo_threads=frozenset(raw.gloo_threads),
        times_ns=_times_ns(activities, cpu_ops, marked_ns[1]),
        first_device=int(activities["device"].iloc[0]) if len(activities) else None,
        gloo_beside_gpu=gloo,
        launched=raw.launched,
        recorded_rank=recorded_rank(raw.comm_args),
        span_ns=_span_ns(
            *((table["start_ns"].to_numpy(), table["dur_ns"].to_numpy()) for table in (activities, cpu_ops)), marked_ns
        ),
        marked_steps=marked_steps,
        contradicts=met.is_much,
        content=_content(raw, activities if len(activities) else cpu_ops),
        step_marks=step_marks,
        unshown_steps=frozenset(without_kernels[without_kernels != NO_STEP].tolist()),
    )


class Placed(NamedTuple):
    """A file with its place in the run."""

    file: TraceFile
    rank: int
    cycle: int


def joined_tables(files: Iterable[Placed]) -> EventTables:
    """Concatenate the tables of files, sorted by rank and cycle."""
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in EVENT_SCHEMAS}
    for file, rank, cycle in files:
        made = {
            "activities": file.ran,
            "cpu_operators": file.cpu_ops if len(file.activities) else CPU_OPERATORS.empty(),
        }
        parts = {name: made[name] if name in made else getattr(file, name) for name in EVENT_SCHEMAS}
        for name, table in parts.items():
            if len(table):
                tables[name].append(of_rank(table, rank, cycle))
    # Table by table, so that of no more than one the parts are held beside the whole.
    joined: dict[str, Any] = {name: schema.concat(tables.pop(name)) for name, schema in EVENT_SCHEMAS.items()}
    return EventTables(**joined)


def of_rank(table: pd.DataFrame, rank: int, cycle: int) -> pd.DataFrame:
    """Set rank and cycle of a table of one file."""
    copy = table.copy(deep=False)
    copy["rank"], copy["cycle"] = rank, cycle
    return copy


def _times_ns(activities: pd.DataFrame, cpu_ops: pd.DataFrame, marked_ns: Int64s) -> float:
    """Sum of all durations of a file and its span, which no sum of its times exceeds.

    In ns, as a number that cannot overflow.
    """
    durations_ns = (activities["dur_ns"].to_numpy(), cpu_ops["dur_ns"].to_numpy(), marked_ns)
    took_ns = sum(float(times.sum(dtype=np.float64)) for times in durations_ns)
    ran = activities if len(activities) else cpu_ops
    if not len(ran):
        return took_ns
    return took_ns + float((ran["start_ns"] + ran["dur_ns"]).max()) - float(ran["start_ns"].min())


def _steps_by_torch(annotations: Sequence[Annotation], base_ns: int) -> dict[int, tuple[int, int]]:
    """Number -> begin and end of each step that torch marked, in ns."""
    marks = [one for one in annotations if one.name.startswith(markers.PROFILER_STEP)]
    numbers = [one.name.removeprefix(markers.PROFILER_STEP) for one in marks]
    starts, took = (times.tolist() for times in spans_of_annotations(marks, base_ns))
    return {
        int(number): (start, start + dur)
        for number, start, dur in zip(numbers, starts, took, strict=True)
        if number.isdecimal()
    }


def _span_ns(*spans: tuple[Int64s, Int64s]) -> tuple[int, int] | None:
    """From the first begin to the last end of spans, which are given by begins and durations."""
    known = [(starts, durations_ns) for starts, durations_ns in spans if len(starts)]
    if not known:
        return None
    return min(int(starts.min()) for starts, _ in known), max(int((starts + took).max()) for starts, took in known)


def _content(raw: RawTrace, ran: pd.DataFrame) -> bytes | None:
    """A digest of the times of a whole file, None without times or with few.

    Only copies agree in all of many, as far as these are measured: symmetrical ranks made by hand have whole us.
    """
    decimals = np.count_nonzero(ran["start_ns"].to_numpy(dtype=np.int64) % 1000)
    if decimals < _MANY or raw.damage is not None or not raw.header.has_starts:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for column in ("start_ns", "dur_ns"):
        digest.update(np.ascontiguousarray(ran[column].to_numpy(), dtype=np.int64).data)
    return digest.digest()


def _is_absolute(*times_ns: pd.Series[int] | Int64s) -> bool:
    """Whether the times count from the epoch."""
    return any(int(times.max()) > _LONG_AGO_NS for times in times_ns if len(times))


def _table(
    sort: str, schema: Schema, raw: RawTrace, base_ns: int, rows: Int64s | slice = _EVERY, **made: Any
) -> pd.DataFrame:
    """A table of the events of a sort, or of these rows of them; what is `made` is not taken from their columns."""
    columns, count = getattr(raw, sort), len(integers(getattr(raw, sort)["ts"])[rows])
    if not count:
        return schema.empty()
    of_table = {one.shown: one for one in EVENT_SORTS[sort].columns}
    known = {"rank": 0, "cycle": 0, **made}
    return schema.conform(
        pd.DataFrame(
            {
                name: known[name] if name in known else _shown(of_table[name], raw, columns, base_ns, rows, count)
                for name in schema.columns
            },
            copy=False,
        )
    )


def _shown(
    declared: EventColumn, raw: RawTrace, columns: Columns, base_ns: int, rows: Int64s | slice, count: int
) -> Any:
    """A column as tables show it."""
    if declared.held is None:
        return _known(np.full(count, MISSING))
    values = values_of(declared, columns)[rows]
    if declared.held == "time":
        return in_ns(values) + base_ns
    if declared.held == "duration":
        return durations(values)
    if declared.texts is not None:
        return _texts(getattr(raw, declared.texts), values)
    if declared.dtype == "string":
        numbers, distinct = pd.factorize(values)
        return _texts([str(number) for number in distinct], numbers)
    if declared.dtype == "int64":
        return values.copy()  # bytes are read-only
    known = np.isfinite(values) & (values > declared.above) & (values <= declared.most)
    if declared.is_integer:
        return _known(np.where(known, values, MISSING))
    return _ARRAYS.FloatingArray(np.where(known, values, 0.0), ~known) / declared.per


def _launch_table(raw: RawTrace, base_ns: int) -> pd.DataFrame:
    """Launches of the activities. A correlation may have several calls; the first one counts."""
    columns = raw.launches
    start_ns, correlation = in_ns(doubles(columns["ts"])), integers(columns["correlation"])
    # In a damaged file, launches may be the only sign that there were activities.
    if raw.damage is None:
        known = pd.Series(correlation).isin(integers(raw.activities["correlation"])).to_numpy()
        of_activities = known & (correlation != MISSING)
    else:
        of_activities = np.ones(len(correlation), dtype=bool)
    order = np.flatnonzero(of_activities)
    order = order[np.argsort(start_ns[order], kind="stable")]
    order = order[~pd.Series(correlation[order]).duplicated().to_numpy()]
    return _table("launches", LAUNCHES, raw, base_ns, order)


def _operator_call_table(raw: RawTrace, base_ns: int) -> pd.DataFrame:
    inputs, sequence = (integers(raw.operators[name]) for name in ("inputs", "sequence"))
    rows = np.flatnonzero((inputs != MISSING) | (sequence != MISSING))
    return _table("operators", OPERATOR_CALLS, raw, base_ns, rows)


def _memory_table(raw: RawTrace, base_ns: int) -> pd.DataFrame:
    device_type, ordinal = (integers(raw.memory[name]) for name in ("device_type", "device"))
    device = np.where(device_type == _CPU, "cpu", ordinal.astype(str)).astype(object)
    return _table("memory", MEMORY_EVENTS, raw, base_ns, device=device)


def _counter_table(raw: RawTrace, base_ns: int) -> pd.DataFrame:
    device = integers(raw.counters["device"]).astype(str).astype(object)
    return _table("counters", COUNTER_SAMPLES, raw, base_ns, device=device)


def _called(raw: RawTrace, base_ns: int) -> Called:
    columns = raw.launches
    start_ns = in_ns(doubles(columns["ts"])) + base_ns
    return Called(start_ns, integers(columns["correlation"]), integers(columns["external_id"]))


def _ids_of(comm_rows: list[Row]) -> set[int]:
    return {row["external_id"] for row in comm_rows if row["external_id"] is not None}


def _annotation_rows(annotations: list[Annotation], times_ns: tuple[Int64s, Int64s]) -> list[Row]:
    return [
        {
            "rank": 0, "cycle": 0, "name": a.name, "thread": a.thread, "start_ns": start, "dur_ns": dur,
            "in_dims": a.in_dims, "in_types": a.in_types, "in_values": a.in_values,
        }
        for a, start, dur in zip(annotations, *(times.tolist() for times in times_ns), strict=True)
    ]  # fmt: skip


def _comm_rows(rows: list[dict[str, Any]], base_ns: int) -> list[Row]:
    times = np.array([row.get("ts", np.nan) for row in rows], dtype=np.float64)
    known = ~np.isnan(times)
    start_ns = in_ns(np.where(known, times, 0.0)) + base_ns
    nothing = dict.fromkeys(COMM_ARGS.columns)
    return [
        {**nothing, **row, "rank": 0, "cycle": 0, "start_ns": start if is_known else None}
        for row, start, is_known in zip(rows, start_ns.tolist(), known.tolist(), strict=True)
    ]


def _cpu_op_table(raw: RawTrace, base_ns: int) -> pd.DataFrame:
    columns = raw.operators
    return pd.DataFrame({
        "thread": integers(columns["thread"]),
        "start_ns": in_ns(doubles(columns["ts"])) + base_ns,
        "dur_ns": durations(doubles(columns["dur"])),
        "name": np.array(raw.operator_names, dtype=object)[integers(columns["name"])],
    })  # fmt: skip


def _known(values: Int64s) -> Any:
    """Integers with NA in place of MISSING."""
    missing = values == MISSING
    return pd.arrays.IntegerArray(np.where(missing, 0, values), missing)


def _texts(distinct: list[str], numbers: NDArray[Any]) -> Any:
    """A text column from its distinct texts, each checked once; NA where the number is MISSING."""
    return pd.array(distinct, dtype="string").take(np.where(numbers == MISSING, -1, numbers), allow_fill=True)
