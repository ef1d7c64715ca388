"""Read the JSON of rocprofv3: an object with an element for each process.

Source: rocprofiler-sdk, "JSON output schema" in docs/how-to/using-rocprofv3.rst, and lib/output/generateJSON.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from ...core.escaping import encodable
from ...errors import DamagedTrace, NotATrace, UnreadableFile
from ...recording.arrays import Int64s
from ...recording.compression import BrokenPacking, all_bytes, packed_bytes
from ...recording.database_columns import LATEST_NS, LONGEST_NS, looked_up_by_id
from ...recording.options import Progress, ReadOptions
from ...recording.row_bytes import tables_bytes
from ...recording.values import MISSING, Int64
from ..nccl_functions import Range
from .process import AGAIN, Agent, ProcessFacts, RecordedProcess, any_communicates, is_read

_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_TIMES_BYTES = 3
"""Decoded, a document takes at most so many times its bytes."""
_GPU, _MARKER = 2, "MARKER"
_MOST_AGENTS = 1 << 16
_ANY_ENCODING = "replace"


class _Id(msgspec.Struct, gc=False, frozen=True):
    handle: int = 0


class _Ids(msgspec.Struct, gc=False, frozen=True):
    internal: int = 0
    ancestor: int = 0


class _Size(msgspec.Struct, gc=False, frozen=True):
    x: int = 0
    y: int = 0
    z: int = 0


class _Dispatch(msgspec.Struct, gc=False):
    agent_id: _Id
    kernel_id: int
    queue_id: _Id = _Id()
    workgroup_size: _Size = _Size()
    grid_size: _Size = _Size()


class _Timed(msgspec.Struct, gc=False, kw_only=True):
    start_timestamp: Int64
    end_timestamp: Int64
    correlation_id: _Ids = _Ids()


class _Kernel(_Timed, gc=False, kw_only=True):
    dispatch_info: _Dispatch
    stream_id: _Id = _Id()


class _Copy(_Timed, gc=False, kw_only=True):
    src_agent_id: _Id
    dst_agent_id: _Id
    bytes: int = MISSING
    stream_id: _Id = _Id()


class _Call(_Timed, gc=False, kw_only=True):
    kind: int
    operation: int
    thread_id: int = 0


class _Records(msgspec.Struct):
    kernel_dispatch: list[_Kernel] = []
    memory_copy: list[_Copy] = []
    hip_api: list[_Call] = []
    hsa_api: list[_Call] = []
    rccl_api: list[_Call] = []
    marker_api: list[_Call] = []


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Text(msgspec.Struct, gc=False):
    key: int
    value: str


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Text] = []


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Agent(msgspec.Struct, gc=False):
    id: _Id
    type: int = 0
    logical_node_type_id: int | None = None
    product_name: str = ""
    name: str = ""
    cu_count: int = 0


class _Node(msgspec.Struct):
    hostname: str | None = None


class _Metadata(msgspec.Struct):
    pid: int
    node: _Node = msgspec.field(default_factory=_Node)


class _Process(msgspec.Struct):
    metadata: _Metadata
    agents: list[_Agent] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Records = msgspec.field(default_factory=_Records)


class _Document(msgspec.Struct):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool")


class _Used(msgspec.Struct):
    kernel_dispatch: list[_Kernel] = []


class _ProcessUsed(msgspec.Struct):
    metadata: _Metadata
    agents: list[_Agent] = []
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Used = msgspec.field(default_factory=_Used)


class _DocumentUsed(msgspec.Struct):
    processes: list[_ProcessUsed] = msgspec.field(name="rocprofiler-sdk-tool")


_D = TypeVar("_D", _Document, _DocumentUsed)


def processes_in_document(path: Path, options: ReadOptions) -> list[ProcessFacts]:
    """The processes in a document. Raises UnreadableFile, NotATrace, DamagedTrace, TooLarge."""
    document, _ = _decoded(path, options, None, _DocumentUsed)
    return [_facts(one) for one in document.processes]


def read_document(path: Path, options: ReadOptions, pid: int | None, progress: Progress | None) -> RecordedProcess:
    """One process of a document, the only one if `pid` is None.

    Raises UnreadableFile, NotATrace, DamagedTrace, TooLarge.
    """
    document, size = _decoded(path, options, progress, _Document)
    chosen = [one for one in document.processes if pid in (None, one.metadata.pid)]
    if len(chosen) > 1:
        raise NotATrace(
            f"{path}: holds {len(chosen)} processes, so as many ranks; expected the path of one of them, such as "
            f"{path}/rank0-pid{chosen[0].metadata.pid}"
        )
    if not chosen:
        raise NotATrace(f"{path}: holds no process{'' if pid is None else f' {pid}'}; {AGAIN}")
    return _recorded(path, chosen[0], size, options)


def _decoded(path: Path, options: ReadOptions, progress: Progress | None, kind: type[_D]) -> tuple[_D, int]:
    budget = options.budget(packed_bytes(path))
    try:
        with path.open("rb") as file:
            data = all_bytes(path, file, budget)
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror or err}") from err
    except BrokenPacking as err:
        raise DamagedTrace(f"{path}: {err}; copy it again, or {AGAIN}") from err
    if progress:
        progress(packed_bytes(path))
    budget.check(f"{path}: the events in it", (1 + _TIMES_BYTES) * len(data))
    try:
        return _as(data, kind), len(data)
    except _BROKEN as err:
        why = encodable(" ".join(str(err).split()))
        raise DamagedTrace(f"{path}: is not as rocprofv3 writes JSON ({why}); copy it again, or {AGAIN}") from err


def _as(data: bytes, kind: type[_D]) -> _D:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):  # msgspec says one or the other, by its version
        text = data.decode("utf-8", _ANY_ENCODING)  # names that a compiler made of other bytes
        if text.encode() == data:
            raise
        return msgspec.json.decode(text, type=kind)


def _facts(process: _Process | _ProcessUsed) -> ProcessFacts:
    agents, symbols = _agents(process.agents), {one.kernel_id: _name(one) for one in process.kernel_symbols}
    kernels = process.buffer_records.kernel_dispatch
    names = [symbols.get(number, "") for number in {one.dispatch_info.kernel_id for one in kernels}]
    used = {_small(one.dispatch_info.agent_id.handle) for one in kernels}
    gpus = tuple(sorted({agents[number].number for number in used & agents.keys()}))
    span = None
    if kernels:
        span = min(one.start_timestamp for one in kernels), max(one.end_timestamp for one in kernels)
    metadata = process.metadata
    return ProcessFacts(metadata.pid, metadata.node.hostname or None, None, None, gpus, any_communicates(names), span)


def _name(symbol: _Symbol) -> str:
    return symbol.formatted_kernel_name or symbol.kernel_name


def _agents(listed: Sequence[_Agent]) -> dict[int, Agent]:
    gpus = [one for one in listed if one.type == _GPU]
    counted = {one.id.handle: place for place, one in enumerate(gpus)}
    return {
        _small(one.id.handle): Agent(
            one.type == _GPU, _gpu_number(one, counted.get(one.id.handle, 0)), one.product_name or one.name or None,
            one.cu_count if 0 < one.cu_count < _MOST_AGENTS else None,
        )
        for one in listed
    }  # fmt: skip


def _gpu_number(agent: _Agent, place: int) -> int:
    number = agent.logical_node_type_id
    return place if number is None or not 0 <= number < _MOST_AGENTS else number


def _recorded(path: Path, process: _Process, size: int, options: ReadOptions) -> RecordedProcess:
    records = process.buffer_records
    symbols = {one.kernel_id: _name(one) for one in process.kernel_symbols}
    kernel_names: dict[str, int] = {}
    for one in records.kernel_dispatch:
        kernel_names.setdefault(symbols.get(one.dispatch_info.kernel_id) or "unknown", len(kernel_names))
    lacking = {one.dispatch_info.kernel_id for one in records.kernel_dispatch} - symbols.keys()
    notes = [f"{len(lacking)} names of kernels are not among its kernel_symbols"] if lacking else []
    kernels = _times(path, records.kernel_dispatch) | _columns(records.kernel_dispatch, {
        "name": lambda one: kernel_names[symbols.get(one.dispatch_info.kernel_id) or "unknown"],
        "agent": lambda one: one.dispatch_info.agent_id.handle,
        "queue": lambda one: one.dispatch_info.queue_id.handle,
        "stream": lambda one: one.stream_id.handle,
        "blocks": lambda one: _blocks(one.dispatch_info),
        "correlation": _of_call,
    })  # fmt: skip
    copies = _times(path, records.memory_copy) | _columns(records.memory_copy, {
        "source": lambda one: one.src_agent_id.handle,
        "target": lambda one: one.dst_agent_id.handle,
        "size": lambda one: one.bytes if one.bytes >= 0 else MISSING,
        "stream": lambda one: one.stream_id.handle,
        "correlation": _of_call,
    })  # fmt: skip
    calls, call_names = _calls(path, process, np.concatenate([kernels["correlation"], copies["correlation"]]), options)
    needed = tables_bytes(activities=len(kernels["start"]) + len(copies["start"]), runtime=len(calls["start"]),
                          annotations=len(records.marker_api))  # fmt: skip
    options.budget().check(f"{path}: what it holds", needed)
    return RecordedProcess(
        _facts(process), _agents(process.agents), kernels, list(kernel_names), copies, calls, call_names,
        _marks(path, process), read_bytes=size, notes=notes,
    )  # fmt: skip


def _calls(
    path: Path, process: _Process, launching: Int64s, options: ReadOptions
) -> tuple[dict[str, Int64s], list[str]]:
    records, kinds = process.buffer_records, process.strings.buffer_records
    of_all = [one for one in (*records.hip_api, *records.rccl_api, *records.hsa_api) if is_read(_function(kinds, one))]
    names: dict[str, int] = {}
    for one in of_all:
        names.setdefault(_function(kinds, one), len(names))
    columns = _times(path, of_all) | _columns(of_all, {
        "name": lambda one: names[_function(kinds, one)],
        "thread": lambda one: one.thread_id,
        "own": _of_call,
        "ancestor": lambda one: one.correlation_id.ancestor or MISSING,
    })  # fmt: skip
    if not options.details:
        is_rccl = np.array([name.startswith("nccl") for name in names], dtype=bool)
        around = looked_up_by_id(launching, columns["own"], columns["ancestor"])
        wanted = np.isin(columns["own"], launching) | np.isin(columns["own"], around)
        wanted |= is_rccl[columns["name"]] if len(of_all) else wanted
        columns = {key: values[wanted] for key, values in columns.items()}
    return columns, list(names)


def _marks(path: Path, process: _Process) -> list[Range]:
    kinds, marked = process.strings.buffer_records, process.buffer_records.marker_api
    texts = {one.key: one.value for one in process.strings.marker_api}
    times = _times(path, marked)
    return [
        Range(texts[one.correlation_id.internal], process.metadata.pid, _small(one.thread_id), start, end)
        for one, start, end in zip(marked, times["start"].tolist(), times["end"].tolist(), strict=True)
        if texts.get(one.correlation_id.internal) and _MARKER in _kind(kinds, one)
    ]


def _kind(kinds: Sequence[_Kind], call: _Call) -> str:
    return kinds[call.kind].kind if 0 <= call.kind < len(kinds) else ""


def _function(kinds: Sequence[_Kind], call: _Call) -> str:
    operations = kinds[call.kind].operations if 0 <= call.kind < len(kinds) else []
    return operations[call.operation] if 0 <= call.operation < len(operations) else ""


def _of_call(one: _Timed) -> int:
    return one.correlation_id.internal or MISSING


def _blocks(dispatch: _Dispatch) -> int:
    blocks = 1
    for axis in "xyz":
        threads, of_block = getattr(dispatch.grid_size, axis), getattr(dispatch.workgroup_size, axis)
        if not 0 < of_block <= threads < 2**31:
            return MISSING
        blocks *= threads // of_block
    return blocks if blocks < 2**53 else MISSING


def _times(path: Path, records: Sequence[_Timed]) -> dict[str, Int64s]:
    """Start and end of each record. Raises DamagedTrace."""
    times = _columns(records, {"start": lambda one: one.start_timestamp, "end": lambda one: one.end_timestamp})
    start, end = times["start"], times["end"]
    possible = (start >= 0) & (start < LATEST_NS) & (end >= 0) & (end < LATEST_NS)
    possible[possible] = np.abs(end[possible] - start[possible]) < LONGEST_NS
    if not possible.all():
        at = int(np.flatnonzero(~possible)[0])
        raise DamagedTrace(f"{path}: has an event from {start[at]} to {end[at]} ns, which is not possible; {AGAIN}")
    return times


def _columns(records: Iterable[Any], of: dict[str, Callable[[Any], int]]) -> dict[str, Int64s]:
    every = list(records)
    return {key: np.array([_small(value(one)) for one in every], dtype=np.int64) for key, value in of.items()}


def _small(number: int) -> int:
    """A number of 64 bits without a sign, as one with it: handles are addresses."""
    return (number + 2**63) % 2**64 - 2**63
