"""Read one process of an export of Nsight Systems, which is one rank."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core import markers
from ...core.escaping import encodable
from ...errors import NotATrace
from ...recording.arrays import Int64s
from ...recording.building import columns_of, events_of, header_of
from ...recording.database import Database
from ...recording.database_columns import LONGEST_NS, among
from ...recording.header import Header, ProcessGroup
from ...recording.options import Progress, ReadOptions
from ...recording.recording import Annotation, Columns, Extent, RawTrace, raw_trace
from ...recording.shared_files import SharedRank, file_of, shared_rank
from ...recording.step_marks import step_annotations
from ...recording.values import MISSING, NOT_KNOWN
from ..nccl_functions import KernelLaunch, Payload, Range, collective_arguments, group_name
from . import session
from .calls import CallColumns, called_columns
from .devices import COPY_TABLE, FILL_TABLE, GRAPH_TABLE, KERNEL_TABLE, DeviceColumns, device_columns
from .exporting import EXPORT, is_report
from .nccl.communicators import Membership, has_payloads, memberships_in
from .nccl.payloads import Schemas
from .ranges import EVERYTHING, MARKS, RANGE_TABLE, OperatorColumns, marked_ranges, operator_ranges
from .stream_waits import stream_wait_columns
from .tables import NSYS, ExportTables, process_of

_KEPT = (markers.NCCL_MARK, markers.LOADING)
_TABLES = ("CUPTI_ACTIVITY_", "NVTX_", "TARGET_INFO_", "META_DATA_", "ENUM_NSYS_", "OSRT_", "SCHED_EVENTS")
"""How names of tables begin that an export has, with CUDA or without."""


def read_nsight(path: Path, options: ReadOptions, progress: Progress | None = None) -> RawTrace:
    """Read one process of an export. For files with several, use the paths from `ranks_in`.

    Raises UnreadableFile, NotATrace, DamagedTrace; TooLarge if the data and its tables would take more memory than the
    options allow.
    """
    file, shared = file_of(path), shared_rank(path)
    if is_report(file):
        raise NotATrace(
            f"{file}: is a report of Nsight Systems, which only its own tools can read; export it with {EXPORT}"
        )
    with Database(file, NSYS, options.budget(), progress) as database:
        if not database.has_like(*_TABLES):
            raise NotATrace(
                f"{file}: is an SQLite database without any table of an Nsight Systems export, such as {KERNEL_TABLE}"
            )
        pid = _only_process(path, database) if shared is None else shared.number
        return _trace(file, ExportTables(database, options, pid), options, shared)


def _only_process(path: Path, database: Database) -> int | None:
    """The process that used GPUs; None if the export does not tell processes apart. Raises NotATrace."""
    pids = processes(database)
    if len(pids) > 1:
        raise NotATrace(
            f"{path}: {len(pids)} of its processes used GPUs, so it holds as many ranks; expected the path of one of "
            f"them, such as {SharedRank(0, None, min(pids)).in_file(path)}"
        )
    return next(iter(pids), None)


def processes(database: Database) -> set[int]:
    """The processes that used GPUs. Raises DamagedTrace."""
    tables = (KERNEL_TABLE, COPY_TABLE, FILL_TABLE, GRAPH_TABLE)
    pids = {pid for table in tables for (pid,) in database.distinct(table, ["globalPid"])}
    return {process_of(pid) for pid in pids if type(pid) is int}


def _trace(file: Path, tables: ExportTables, options: ReadOptions, shared: SharedRank | None) -> RawTrace:
    """Everything that one process did."""
    work = device_columns(tables, options.comm_names)
    if not len(work.columns["start"]) and tables.damage is None:
        raise NotATrace(f"{file}: shows nothing that a GPU did; capture with --trace=cuda,nvtx")
    first = int(work.columns["start"][0]) if len(work.columns["start"]) else 0
    activities = tables.near(work.columns, first)
    called = called_columns(tables, activities["correlation"], every_call=options.details)
    calls = CallColumns(tables.near(called.columns, first), called.names)
    marked = _cpu_marks(tables, work, calls, first, options)
    events = events_of(
        pids=[tables.pid, None, None, None],
        names=work.names.names,
        kinds=work.names.kinds,
        activities=_activities(activities, first, session.gpus_of(tables)),
        launches=_launches(calls, activities["correlation"], first),
        **(_details(tables, calls, marked.operators, first) if options.details else {}),
        annotations=marked.annotations,
        comm_args=[_comm_row(row, first) for row in (*marked.rows, *map(_peer_copy, work.peer_copies))],
    )
    known = options.run_facts
    groups = _groups(marked.joined, shared, dict(known.communicators))
    header = _header(tables, groups, session.base_ns(tables, first, dict(known.epochs)), shared)
    extent = Extent(tables.database.size, 0 if tables.damage is None else None)
    trace = raw_trace(events, header, extent, tables.damage, details=options.details)
    trace.notes = [f"{encodable(file.name)}: {note}" for note in (*work.notes, *marked.notes)]
    return trace


@dataclass(frozen=True)
class _CpuMarks:
    """Data from the CPU's ranges: annotations, operators, arguments of collectives, and communicators."""

    annotations: list[Annotation]
    operators: OperatorColumns
    rows: list[dict[str, Any]]
    joined: list[Membership]
    notes: list[str]


def _cpu_marks(
    tables: ExportTables, work: DeviceColumns, calls: CallColumns, first: int, options: ReadOptions
) -> _CpuMarks:
    names = MARKS if options.step_marker is None else EVERYTHING
    ranges = [marked for marked in marked_ranges(tables, names) if abs(marked.start - first) < LONGEST_NS]
    schemas = Schemas(tables)
    joined = [marked for memberships in memberships_in(ranges, schemas).values() for marked in memberships]
    sizes = {marked.comm: marked.ranks for marked in joined}

    def payload_of(marked: Range) -> Payload:
        return schemas.payload(marked.domain, marked.payload)

    of_nccl = collective_arguments(ranges, payload_of, _launches_of_comm(work, calls), sizes)
    of_cpu = [marked for marked in ranges if not marked.is_nccl]
    of_launches = among(calls.columns["correlation"], np.unique(work.columns["correlation"]))
    launching = set(np.unique(calls.columns["thread"][of_launches]).tolist())
    marks = [marked for marked in of_cpu if marked.name.startswith(_KEPT) or _may_mark(marked, launching, options)]
    annotations = [_annotation(mark, first) for mark in marks]
    steps = {id(one) for one in step_annotations(annotations, launching, options.step_marker)}
    of_steps = [mark for mark, one in zip(marks, annotations, strict=True) if id(one) in steps]
    operators = operator_ranges(tables, of_steps) if options.details else OperatorColumns({}, [])
    annotations += [_annotation(mark, first) for mark in of_nccl.coalesced]
    tables.keep(RANGE_TABLE, annotations=len(annotations), calls=len(of_nccl.rows))
    why = _why_no_sizes(tables, ranges, of_nccl.rows) if work.is_comm.any() else ()
    return _CpuMarks(annotations, operators, of_nccl.rows, joined, list(why))


def _may_mark(marked: Range, launching: Collection[int], options: ReadOptions) -> bool:
    """Whether a range may be a step, or an evaluation or checkpoint in one; operators of C++ never are."""
    if launching and marked.thread not in launching:
        return False
    return marked.name.startswith(markers.PROFILER_STEP) or ("::" not in marked.name and options.may_mark(marked.name))


def _launches_of_comm(work: DeviceColumns, calls: CallColumns) -> list[KernelLaunch]:
    """Launches of communication kernels: the first call of each correlation."""
    wanted = among(calls.columns["correlation"], np.unique(work.columns["correlation"][work.is_comm]))
    columns = (calls.columns[name][wanted].tolist() for name in ("correlation", "thread", "start"))
    first: dict[int, KernelLaunch] = {}
    for launch in map(KernelLaunch, *columns):
        first.setdefault(launch.correlation, launch)
    first.pop(MISSING, None)
    return list(first.values())


def _why_no_sizes(tables: ExportTables, ranges: Sequence[Range], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the reason why no collective has a size, if none has."""
    if any(row["in_bytes"] is not None or row["out_bytes"] is not None for row in rows):
        return
    if not any(marked.is_nccl for marked in ranges):
        yield "has no ranges of NCCL, so sizes and groups of collectives are not known; capture with --trace=cuda,nvtx"
    elif not has_payloads(tables):
        yield f"was exported without what NCCL says about sizes and groups of collectives; export it with {EXPORT}"
    else:
        yield "what NCCL says in it has no sizes of collectives, so these are not known"


def _header(tables: ExportTables, groups: tuple[ProcessGroup, ...], base_ns: int, shared: SharedRank | None) -> Header:
    known = session.gpus_of(tables)
    names = tuple(known[n].name or "" if n in known else "" for n in range(max(known, default=-1) + 1))
    return header_of(
        rank=None if shared is None else shared.rank,
        world_size=None if shared is None else shared.world_size,
        host=session.host(tables),
        device_names=names,
        process_groups=groups,
        base_ns=base_ns,
        runs_python=session.runs_python(tables),
    )


def _groups(
    joined: Sequence[Membership], shared: SharedRank | None, ranks_of: dict[int, tuple[int, ...]]
) -> tuple[ProcessGroup, ...]:
    """Communicators whose global ranks are all known: those in `ranks_of`, and that of all ranks."""
    if shared is None or shared.world_size is None or not joined:
        return ()
    ranks_of = {
        member.comm: tuple(range(member.ranks)) for member in joined if member.ranks == shared.world_size
    } | ranks_of
    return tuple(
        ProcessGroup(group_name(comm), "", markers.NCCL, ranks_of[comm])
        for comm in dict.fromkeys(member.comm for member in joined)
        if comm in ranks_of
    )


def _activities(columns: dict[str, Int64s], first: int, gpus: Mapping[int, session.Gpu]) -> Columns:
    multiprocessors = {number: gpu.multiprocessors for number, gpu in gpus.items() if gpu.multiprocessors}
    of_device = np.array([multiprocessors.get(n, NOT_KNOWN) for n in columns["device"].tolist()], dtype=np.float64)
    blocks = np.where(columns["blocks"] == MISSING, NOT_KNOWN, columns["blocks"].astype(np.float64))
    known = {name: values for name, values in columns.items() if name not in ("start", "end", "blocks")}
    count = len(columns["start"])
    return columns_of("activities", count, **known, **_times(columns, first), blocks_per_sm=blocks / of_device)


def _launches(calls: CallColumns, correlations: Int64s, first: int) -> Columns:
    columns = calls.columns
    of_launches = among(columns["correlation"], np.unique(correlations)) & (columns["correlation"] != MISSING)
    launched = {name: values[of_launches] for name, values in columns.items()}
    return columns_of(
        "launches",
        len(launched["start"]),
        correlation=launched["correlation"],
        thread=launched["thread"],
        ts=_us(launched["start"] - first),
    )


def _details(tables: ExportTables, calls: CallColumns, operators: OperatorColumns, first: int) -> dict[str, Any]:
    """All calls, operators and stream waits, with the names of the calls."""
    waits = tables.near(stream_wait_columns(tables, calls), first)
    ran = tables.near(operators.columns, first)
    called = calls.columns
    return {
        "call_names": calls.names,
        "runtime": columns_of(
            "runtime",
            len(called["start"]),
            thread=called["thread"],
            name=called["name"],
            correlation=called["correlation"],
            **_times(called, first),
        ),
        "operator_names": operators.names,
        "operators": columns_of(
            "operators", len(ran["start"]), thread=ran["thread"], name=ran["name"], **_times(ran, first)
        ),
        "stream_waits": columns_of("stream_waits", len(waits["start"]), ts=_us(waits.pop("start") - first), **waits),
    }


def _times(columns: Mapping[str, Int64s], first: int) -> dict[str, np.typing.NDArray[np.float64]]:
    return {"ts": _us(columns["start"] - first), "dur": _us(columns["end"] - columns["start"])}


def _annotation(mark: Range, first: int) -> Annotation:
    return Annotation(
        mark.name, mark.thread, (mark.start - first) / 1000, (mark.end - mark.start) / 1000, None, None, None
    )


def _comm_row(row: Mapping[str, Any], first: int) -> dict[str, Any]:
    return dict(row) | ({"ts": (row["ts"] - first) / 1000} if "ts" in row else {})


def _peer_copy(copy: tuple[int, int]) -> dict[str, Any]:
    """The arguments of a copy between GPUs, as Kineto's reader gives them."""
    correlation, size = copy
    return {
        "source": "kernel", "correlation": correlation, "op": "peer_copy", "dtype": "Byte", "in_elems": size,
        "out_elems": size,
    }  # fmt: skip


def _us(ns: Int64s) -> np.typing.NDArray[np.float64]:
    """Times in us as in a recording: exact below 2^53 ns."""
    return ns / 1000
