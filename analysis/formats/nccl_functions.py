"""Arguments of kernels of NCCL and RCCL, from the ranges of its functions around their launches.

A function launches its kernel itself, unless it is called between ncclGroupStart and ncclGroupEnd: then the last
ncclGroupEnd does, and one kernel may be worth many functions. torch makes an all_to_all of sends and receives in a
group, and names it in a range of its own around them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ...common.nccl_tests import collective_name
from ..core import markers

_BEGIN, _END, _COUNT = "ncclGroupStart", "ncclGroupEnd", "ncclCommCount"
_OPERATIONS = {
    "ncclAllReduce": "allreduce", "ncclBroadcast": "broadcast", "ncclReduce": "reduce", "ncclAllGather": "allgather",
    "ncclReduceScatter": "reduce_scatter", "ncclSend": "send", "ncclRecv": "recv", "ncclAlltoAll": "alltoall",
    "ncclAllToAll": "alltoall", "ncclAllToAllv": "alltoall", "ncclGather": "gather", "ncclScatter": "scatter",
}  # fmt: skip
_MOST_NESTED = 8
_SENDING, _RECEIVING, _LEAST_EXCHANGE = "send", "recv", 2
# A payload has the bytes of one rank's share of an array that all of them have together.
_GROWS, _SHRINKS, _EXCHANGES = ("allgather", "gather"), ("reduce_scatter", "scatter"), ("alltoall",)
_MOST_BYTES = 1 << 53
_NCCL = re.compile(r"p?nccl[A-Z]\w*")


class Payload(NamedTuple):
    """What a call of NCCL is known to get: the communicator's hash, its ranks, and this rank; None where missing."""

    comm: int | None = None
    bytes: int | None = None
    ranks: int | None = None
    rank: int | None = None
    peer: int | None = None
    root: int | None = None


class Range(NamedTuple):
    """A range of a thread, in ns as in the file, with its stored `payload` and its domain."""

    name: str
    process: int
    thread: int
    start: int
    end: int
    domain: int | None = None
    payload: object = None

    @property
    def is_nccl(self) -> bool:
        """Whether it is an NCCL function."""
        return is_nccl_function(self.name)


def is_nccl_function(name: str) -> bool:
    """Whether it is the name of a function of NCCL."""
    return _NCCL.fullmatch(name) is not None


class KernelLaunch(NamedTuple):
    """The launch of an NCCL kernel."""

    correlation: int
    thread: int
    at: int


class Function(NamedTuple):
    """A call of an NCCL function that communicates."""

    op: str
    at: int
    payload: Payload


@dataclass
class LaunchedTogether:
    """Functions launched together, within a span of one thread; not `whole` if some may be missing.

    They are `counted` if the number of ranks was asked for just before, as torch does for an all_to_all.
    """

    thread: int
    start: int
    end: int
    functions: list[Function] = field(default_factory=list)
    whole: bool = True
    counted: bool = False


@dataclass(frozen=True)
class CollectiveArguments:
    """Rows of arguments, and ranges `nccl:coalesced` to put around launches of several calls."""

    rows: list[dict[str, Any]]
    coalesced: list[Range]


def collective_arguments(
    ranges: Sequence[Range],
    payload_of: Callable[[Range], Payload],
    launches: Iterable[KernelLaunch],
    group_sizes: Mapping[int, int],
) -> CollectiveArguments:
    """Arguments of the kernels of one process, from the ranges around their launches, by start; times in ns."""
    by_thread: dict[int, list[Range]] = {}
    for marked in ranges:
        by_thread.setdefault(marked.thread, []).append(marked)
    batch_around = _enclosing(batch for of_thread in by_thread.values() for batch in _batches(of_thread, payload_of))
    mark_around = _enclosing(marked for marked in ranges if marked.name.startswith(markers.NCCL_MARK))
    kernels = [(launch, batch_around(launch.thread, launch.at, launch.at)) for launch in launches]
    in_batch = Counter(id(batch) for _, batch in kernels)
    arguments = CollectiveArguments([], [])
    for launch, batch in kernels:
        # Which of several kernels did what is not known.
        if batch is not None and batch.whole and in_batch[id(batch)] == 1:
            _add_arguments(arguments, launch, batch, mark_around(batch.thread, batch.start, batch.end), group_sizes)
    return arguments


_S = TypeVar("_S", Range, LaunchedTogether)


def _enclosing(spans: Iterable[_S]) -> Callable[[int, int, int], _S | None]:
    """Make a function (thread, start, end) -> the innermost of these ordered spans around that, or None."""
    threads: dict[int, tuple[list[int], list[_S]]] = {}
    for span in spans:
        starts, of_thread = threads.setdefault(span.thread, ([], []))
        starts.append(span.start)
        of_thread.append(span)

    def find(thread: int, start: int, end: int) -> _S | None:
        starts, of_thread = threads.get(thread, ([], []))
        place = bisect_right(starts, start)
        return next(
            (span for span in reversed(of_thread[max(0, place - _MOST_NESTED) : place]) if span.end >= end), None
        )

    return find


def _batches(ranges: Iterable[Range], payload_of: Callable[[Range], Payload]) -> Iterator[LaunchedTogether]:
    """Yield the functions that each launch starts, in order; `ranges` are those of one thread."""
    depth, within, counted, before = 0, -1, False, ""
    open_: list[Function] | None = None
    for marked in ranges:
        if not marked.is_nccl or marked.start < within:
            continue  # what a function calls itself
        name = marked.name.removeprefix("p")
        if name == _BEGIN:
            counted = before == _COUNT if open_ is None else counted
            depth, open_ = depth + 1, [] if open_ is None else open_
        elif name == _END:
            depth -= 1
            if depth <= 0:
                whole = depth == 0 and open_ is not None
                yield LaunchedTogether(marked.thread, marked.start, marked.end, open_ or [], whole, counted)
                depth, open_ = 0, None
        elif name in _OPERATIONS:
            within = marked.end
            function = Function(_OPERATIONS[name], marked.start, payload_of(marked))
            if open_ is None:
                yield LaunchedTogether(marked.thread, marked.start, marked.end, [function])
            else:
                open_.append(function)
        before = name


def _add_arguments(
    arguments: CollectiveArguments,
    launch: KernelLaunch,
    batch: LaunchedTogether,
    around: Range | None,
    group_sizes: Mapping[int, int],
) -> None:
    parts = [_arguments(function, group_sizes) for function in batch.functions]
    if not parts:
        return
    name = None if around is None or around.name == markers.COALESCED else around.name
    op = None if name is None else name.removeprefix(markers.NCCL_MARK)
    is_named = op is not None and collective_name(op) is not None
    if len(parts) == 1:
        is_barrier = op is not None and collective_name(op) == "barrier"  # torch makes an all_reduce of it
        arguments.rows.append(_row(launch, parts[0] | ({"op": op} if is_barrier else {})))
    elif is_named or _exchange_all(batch, group_sizes):
        arguments.rows.append(_row(launch, _together(parts, op if is_named else "alltoall")))
    elif all(part["process_group"] is not None for part in parts):  # else nothing tells what belongs together
        begin = batch.start if around is None else min(around.start, batch.start)
        if around is None or around.name != markers.COALESCED:
            arguments.coalesced.append(Range(markers.COALESCED, 0, batch.thread, batch.start, batch.end))
        arguments.rows.extend(
            {**part, "source": markers.RECORD, "thread": batch.thread, "ts": min(function.at, begin)}
            for part, function in zip(parts, batch.functions, strict=True)
        )


def _row(launch: KernelLaunch, arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "source": "kernel", "correlation": launch.correlation}


def _arguments(function: Function, group_sizes: Mapping[int, int]) -> dict[str, Any]:
    """The arguments of one function, as a row of arguments."""
    op, payload = function.op, function.payload
    size = None if payload.comm is None else group_sizes.get(payload.comm)
    shared = None if payload.bytes is None or size is None else _possible(payload.bytes * size)
    given = shared if op in (*_SHRINKS, *_EXCHANGES) else payload.bytes
    got = shared if op in (*_GROWS, *_EXCHANGES) else payload.bytes
    return {
        "op": op,
        "in_bytes": given,
        "out_bytes": got,
        "group_size": size,
        "process_group": None if payload.comm is None else group_name(payload.comm),
        "root": payload.peer if op in ("send", "recv") else payload.root,
    }


def _possible(size: int) -> int | None:
    return size if size < _MOST_BYTES else None


def group_name(comm: int) -> str:
    """The name of a communicator as in NCCL's log."""
    return f"0x{comm:x}"


def _exchange_all(batch: LaunchedTogether, group_sizes: Mapping[int, int]) -> bool:
    """Whether the batch sends to and receives from each rank once: an all_to_all.

    If its size is not known, because it was joined before the capture began, torch must have asked for it.
    """
    comms = {function.payload.comm for function in batch.functions}
    comm, ranks = comms.pop(), len(batch.functions) // 2
    size = None if comm is None else group_sizes.get(comm)
    if comms or ranks < _LEAST_EXCHANGE or size not in (None, ranks) or (size is None and not batch.counted):
        return False
    done = Counter((function.op, function.payload.peer) for function in batch.functions)
    peers = [None] * ranks if (_SENDING, None) in done else list(range(ranks))
    return done == Counter((op, peer) for op in (_SENDING, _RECEIVING) for peer in peers)


def _together(parts: Sequence[dict[str, Any]], op: str | None) -> dict[str, Any]:
    """Merge these into one call: sends become its input, receives its output."""
    result = dict(parts[0]) | {"op": op, "root": None}
    for key, other in (("in_bytes", "recv"), ("out_bytes", "send")):
        values = [part[key] for part in parts if part["op"] != other]
        result[key] = _possible(sum(values)) if values and None not in values else None
    if len({part["process_group"] for part in parts}) > 1:
        result |= {"in_bytes": None, "out_bytes": None, "process_group": None, "group_size": None}
    return result
