"""Read one process that rocprofv3 recorded, which is one rank: its events as torch would write them for the same GPU.

So there is one meaning of kernels, copies, calls and marks. The functions of RCCL around a launch name the collective,
as in exports of Nsight Systems; sizes and groups are not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...core import markers
from ...core.copy_names import NOT_SAID, copy_name
from ...core.escaping import encodable
from ...core.kinds import COMM, kernel_kind
from ...errors import NotATrace
from ...recording.arrays import Int64s
from ...recording.building import header_of
from ...recording.compression import first_bytes
from ...recording.database_columns import LONGEST_NS, looked_up_by_id
from ...recording.options import Progress, ReadOptions
from ...recording.recording import RawTrace
from ...recording.shared_files import file_of, shared_rank
from ...recording.values import MISSING
from ..kineto.reader import read_texts
from ..kineto.written import (
    CALL_CATEGORY,
    MARK_CATEGORY,
    OPERATOR_CATEGORY,
    WORK_CATEGORIES,
    Where,
    call_arguments,
    event_text,
    work_arguments,
)
from ..nccl_functions import KernelLaunch, Payload, Range, collective_arguments, is_nccl_function
from ..others import SQLITE
from .database import read_database
from .document import read_document
from .process import CAPTURE, HSA, Agent, RecordedProcess

_DEVICE = "Device"
_MOST_AROUND = 8
"""Calls lie in each other no deeper: HIP in RCCL, HSA in HIP."""
_LARGEST_STREAM = 2**31
_OPERATOR = "::"
# torch.autograd.profiler.emit_nvtx: `aten::mm, seq = 3, op_id = 17`.
_ADDED = (", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ")


def read_rocprof(path: Path, options: ReadOptions, progress: Progress | None = None) -> RawTrace:
    """Read one process of a file. For files with several, use the paths from `processes_as_ranks`.

    Raises UnreadableFile, NotATrace, DamagedTrace; TooLarge if the data and its tables would take more memory than the
    options allow.
    """
    file, shared = file_of(path), shared_rank(path)
    pid = None if shared is None else shared.number
    read = read_database if _is_database(file) else read_document
    recorded = read(file, options, pid, progress)
    kernels, copies = recorded.kernels, recorded.copies
    if not len(kernels["start"]) and not len(copies["start"]) and recorded.damage is None:
        raise NotATrace(f"{file}: shows nothing that a GPU did; capture with {CAPTURE}")
    first = min((int(one["start"].min()) for one in (kernels, copies) if len(one["start"])), default=0)
    calls, launched_by = _launches(recorded)
    known = header_of(
        rank=recorded.facts.rank if shared is None else shared.rank,
        world_size=recorded.facts.world_size if shared is None else shared.world_size,
        host=recorded.facts.host,
        device_names=_device_names(recorded.agents),
        base_ns=first,
    )
    writing = _Writing(recorded, calls, launched_by, first)
    trace = read_texts(path, writing.texts(), known, recorded.read_bytes, options)
    trace.pids = [recorded.facts.pid, *trace.pids[1:]]
    trace.damage = recorded.damage
    if recorded.damage is not None:
        trace.extent = type(trace.extent)(trace.extent.read_bytes, None)
    trace.notes = [*trace.notes, *(f"{encodable(file.name)}: {note}" for note in writing.notes())]
    return trace


def _is_database(file: Path) -> bool:
    return first_bytes(file).startswith(SQLITE) or file.name.lower().endswith((".db", ".rpd"))


def _launches(recorded: RecordedProcess) -> tuple[dict[str, Int64s], dict[str, Int64s]]:
    """The calls, and for kernels and copies the ids of those that launched them, as `kernels` and `copies`.

    An activity names the innermost call that was traced. Where that is one of HSA, the one of HIP or RCCL around it is
    what a person called.
    """
    calls = recorded.calls
    is_hsa = np.array([name.startswith(HSA) for name in recorded.call_names], dtype=bool)
    inner = is_hsa[calls["name"]] if len(calls["name"]) else np.zeros(0, dtype=bool)
    own, around = calls["own"][inner], calls["ancestor"][inner]
    found: dict[str, Int64s] = {}
    for key, activities in (("kernels", recorded.kernels), ("copies", recorded.copies)):
        of_call = activities["correlation"]
        for _ in range(_MOST_AROUND):
            outer = looked_up_by_id(of_call, own, around)
            outer = np.where(np.isin(outer, calls["own"]), outer, MISSING)
            of_call = np.where(outer == MISSING, of_call, outer)
        found[key] = of_call
    return calls, found


def _device_names(agents: Mapping[int, Agent]) -> tuple[str, ...]:
    named = {one.number: one.name or "" for one in agents.values() if one.is_gpu}
    return tuple(named.get(number, "") for number in range(max(named, default=-1) + 1))


class _Writing:
    """The events of a process being written as torch writes them, by start of their sort."""

    def __init__(
        self, recorded: RecordedProcess, calls: Mapping[str, Int64s], launched_by: Mapping[str, Int64s], first: int
    ) -> None:
        self._recorded, self._calls, self._launched_by, self._first = recorded, calls, launched_by, first
        self._pid = recorded.facts.pid
        self._gpus = {number: one for number, one in recorded.agents.items() if one.is_gpu}
        self._streams = _Streams(recorded)
        self._operations = self._collectives()

    def texts(self) -> Iterator[bytes]:
        """All events."""
        yield from self._of_kernels()
        yield from self._of_copies()
        yield from self._of_calls()
        yield from self._of_marks()

    def notes(self) -> Iterator[str]:
        """What the file does not tell."""
        recorded = self._recorded
        yield from recorded.notes
        if any(kernel_kind(name) == COMM for name in recorded.kernel_names):
            functions = any(is_nccl_function(name) for name in recorded.call_names)
            yield (
                "sizes and groups of collectives are not recorded by rocprofv3, so their bandwidth is not known, and "
                "they are matched by their order"
                if functions
                else f"has no calls of RCCL, so kernels do not tell which collectives they are; capture with {CAPTURE}"
            )
        if recorded.unread_marks:
            yield f"{recorded.unread_marks:,} marks are compressed in it and not read"

    def _collectives(self) -> dict[int, str]:
        """What each communication kernel did, by the id of the call that launched it."""
        recorded, calls = self._recorded, self._calls
        named = [calls[key].tolist() for key in ("name", "thread", "start", "end")]
        of_rccl = [
            Range(recorded.call_names[name], self._pid, thread, start, end)
            for name, thread, start, end in zip(*named, strict=True)
            if is_nccl_function(recorded.call_names[name])
        ]
        if not of_rccl:
            return {}
        is_comm = np.array([kernel_kind(name) == COMM for name in recorded.kernel_names], dtype=bool)
        wanted = set(self._launched_by["kernels"][is_comm[recorded.kernels["name"]]].tolist()) - {MISSING}
        by_own = zip(*(calls[key].tolist() for key in ("own", "thread", "start")), strict=True)
        launches = {own: KernelLaunch(own, thread, at) for own, thread, at in by_own if own in wanted}
        marked = [mark for mark in recorded.marks if mark.name.startswith(markers.NCCL_MARK)]
        ranges = sorted([*of_rccl, *marked], key=lambda one: (one.start, -one.end))
        of_functions = collective_arguments(ranges, lambda _: Payload(), launches.values(), {})
        return {row["correlation"]: row["op"] for row in of_functions.rows if row["op"] is not None}

    def _of_kernels(self) -> Iterator[bytes]:
        recorded = self._recorded
        kernels, names = recorded.kernels, recorded.kernel_names
        columns = [kernels[key].tolist() for key in ("start", "end", "name", "agent", "queue", "stream", "blocks")]
        for start, end, name, agent, queue, stream, blocks, call in zip(
            *columns, self._launched_by["kernels"].tolist(), strict=True
        ):
            gpu = self._gpus.get(agent, _UNKNOWN)
            of_unit = blocks / gpu.units if blocks != MISSING and gpu.units else None
            operation = self._operations.get(call) if kernel_kind(names[name]) == COMM else None
            arguments = work_arguments(
                gpu.number, self._streams.of_kernel(queue, stream), _known(call), operation=operation,
                blocks_per_unit=of_unit,
            )  # fmt: skip
            yield self._text(WORK_CATEGORIES["Kernel"], names[name], (gpu.number, 0), start, end, arguments)

    def _of_copies(self) -> Iterator[bytes]:
        copies = self._recorded.copies
        used = set(self._recorded.kernels["agent"].tolist())
        columns = [copies[key].tolist() for key in ("start", "end", "source", "target", "size", "stream")]
        for start, end, source, target, size, stream, call in zip(
            *columns, self._launched_by["copies"].tolist(), strict=True
        ):
            gpus = [number for number in (source, target) if number in self._gpus]
            number = next((one for one in gpus if one in used), gpus[0] if gpus else None)
            gpu = _UNKNOWN if number is None else self._gpus[number]
            arguments = work_arguments(gpu.number, self._streams.of_copy(stream), _known(call), size=_known(size))
            name = self._copy_name(source, target)
            yield self._text(WORK_CATEGORIES["Memcpy"], name, (gpu.number, 0), start, end, arguments)

    def _copy_name(self, source: int, target: int) -> str:
        agents = self._recorded.agents
        ends = [agents.get(number) for number in (source, target)]
        letters = "".join("X" if one is None else "D" if one.is_gpu else "H" for one in ends)
        direction = NOT_SAID if "X" in letters else f"{letters[0]}to{letters[1]}"
        if direction == "DtoD" and source != target:
            direction = "PtoP"
        memories = [_DEVICE if one is not None and one.is_gpu else NOT_SAID for one in ends]
        return copy_name(direction, *memories)

    def _of_calls(self) -> Iterator[bytes]:
        recorded, calls = self._recorded, self._calls
        launched = set(np.concatenate(list(self._launched_by.values())).tolist())
        columns = (calls[key].tolist() for key in ("start", "end", "name", "thread", "own"))
        for start, end, name, thread, own in zip(*columns, strict=True):
            function = recorded.call_names[name]
            if own in launched or not (function.startswith(HSA) or is_nccl_function(function)):
                where = (self._pid, thread)
                yield self._text(CALL_CATEGORY, function, where, start, end, call_arguments(_known(own)))

    def _of_marks(self) -> Iterator[bytes]:
        for mark in self._recorded.marks:
            name = _plain(mark.name)
            is_operator = _OPERATOR in name and not name.startswith(markers.NCCL_MARK)
            category = OPERATOR_CATEGORY if is_operator else MARK_CATEGORY
            yield self._text(category, name, (mark.process, mark.thread), mark.start, mark.end, {})

    def _text(
        self, category: str, name: str, where: Where, start: int, end: int, arguments: Mapping[str, Any]
    ) -> bytes:
        since = max(-LONGEST_NS, min(LONGEST_NS, start - self._first))
        return event_text(category, name, where, since / 1000, (end - start) / 1000, arguments)


_UNKNOWN = Agent(is_gpu=True, number=0, name=None, units=None)


class _Streams:
    """The streams of HIP, if they were recorded; else the queues of HSA, on which streams take turns."""

    def __init__(self, recorded: RecordedProcess) -> None:
        kernels, copies = recorded.kernels, recorded.copies
        streams = np.concatenate([kernels["stream"], copies["stream"]])
        self._by_stream = bool(((streams != MISSING) & (streams != 0)).any())
        used = streams if self._by_stream else kernels["queue"]
        distinct = np.unique(used).tolist()
        small = all(0 <= number < _LARGEST_STREAM for number in distinct)
        self._numbers = {number: number if small else place for place, number in enumerate(distinct)}
        self._of_copies = max(self._numbers.values(), default=-1) + 1

    def of_kernel(self, queue: int, stream: int) -> int:
        """The stream of a kernel."""
        return self._numbers[stream if self._by_stream else queue]

    def of_copy(self, stream: int) -> int:
        """The stream of a copy; without streams one of its own, as copies have no queue."""
        return self._numbers[stream] if self._by_stream else self._of_copies


def _known(number: int) -> int | None:
    return None if number == MISSING else number


def _plain(name: str) -> str:
    """The name of a mark, without what torch adds to those of operators."""
    return name[: min((at for added in _ADDED if (at := name.find(added)) >= 0), default=len(name))]
