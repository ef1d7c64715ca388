"""What NCCL kernels and record_param_comms say of a collective, by version of torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from .ops import Comm, Group, Kernel, Message
from .world import Layout

_MOST_LISTED = 30
_NAMES = {
    # as recorded, of the annotation behind `nccl:`, of the operator behind `c10d::`, in the kernel's name
    "all_reduce": ("allreduce", "all_reduce", "allreduce_", "AllReduce_Sum_{}_RING_LL"),
    "all_gather": ("_allgather_base", "_all_gather_base", "_allgather_base_", "AllGather_RING_LL"),
    "reduce_scatter": (
        "_reduce_scatter_base",
        "_reduce_scatter_base",
        "_reduce_scatter_base_",
        "ReduceScatter_Sum_{}_RING_LL",
    ),
    "all_to_all": ("all_to_allv", "all_to_all", "alltoall_base_", "SendRecv"),
    "broadcast": ("broadcast", "broadcast", "broadcast_", "Broadcast_RING_LL"),
    "reduce": ("reduce", "reduce", "reduce_", "Reduce_Sum_{}_RING_LL"),
    "gather": ("gather", "gather", "gather_", "SendRecv"),
    "scatter": ("scatter", "scatter", "scatter_", "SendRecv"),
    "barrier": ("barrier", "all_reduce_barrier", "barrier", "AllReduce_Sum_{}_RING_LL"),
    "send": ("send", "send {}->{}", "send", "SendRecv"),
    "recv": ("recv", "recv {}<-{}", "recv_", "SendRecv"),
}
_TYPES = {
    "Byte": ("u8", "unsigned char"),
    "BFloat16": ("bf16", "c10::BFloat16"),
    "Half": ("f16", "c10::Half"),
    "Float": ("f32", "float"),
    "Long": ("i64", "long int"),
}
_SHARED_NAMES = ("default", "tp", "dp", "ep", "pp", "pp_grad", "cp", "norm", "row", "column", "side")


@dataclass(frozen=True)
class CallRecord:
    """One call in the trace of one rank: `op` as torch has it, elements in and out, `peer` or root."""

    op: str
    group: Group
    rank: int
    dtype: str
    in_elems: int
    out_elems: int
    peer: int | None = None
    in_split: tuple[int, ...] = ()
    out_split: tuple[int, ...] = ()
    asynchronous: bool = False


@lru_cache(maxsize=1 << 16)
def call_record(op: Comm, rank: int) -> CallRecord:
    """A collective as the trace of one rank records it."""
    size, elems = len(op.group.ranks), op.elems
    given, got = elems, elems
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    if op.op in ("all_gather", "gather"):
        given = elems // size
    elif op.op in ("reduce_scatter", "scatter"):
        got = elems // size
    elif op.splits:
        at = op.group.ranks.index(rank)
        splits = (op.splits[at], tuple(row[at] for row in op.splits))
        given, got = (sum(split) * op.width for split in splits)
    return CallRecord(op.op, op.group, rank, op.dtype, given, got, op.root, *splits, bool(op.work))


def message_record(message: Message, group: Group, rank: int, dtype: str) -> CallRecord:
    """A message as the trace of one rank records it."""
    return CallRecord(message.op, group, rank, dtype, message.elems, message.elems, message.peer, asynchronous=True)


def recorded_name(record: CallRecord) -> str:
    return _NAMES[record.op][0]


def annotation_name(record: CallRecord) -> str:
    """Such as `nccl:all_reduce`, or `nccl:send 0->1` with ranks of the group."""
    ranks = record.group.ranks
    name = _NAMES[record.op][1]
    if record.op in ("send", "recv"):
        assert record.peer is not None
        name = name.format(ranks.index(record.rank), ranks.index(record.peer))
    return f"nccl:{name}"


def operator_name(record: CallRecord) -> str:
    return f"c10d::{_NAMES[record.op][2]}"


def kernel_name(op: str, dtype: str) -> str:
    """The name of NCCL's kernel."""
    return f"ncclDevKernel_{_NAMES[op][3].format(_TYPES[dtype][0])}(ncclDevKernelArgsStorage<4096ul>)"


@lru_cache(maxsize=1 << 12)
def group_name(group: Group, layout: Layout) -> str:
    """The name that traces bear: 0 for the default group, then a number that like groups share, or a hash."""
    if group.kind == "default":
        return "0"
    if layout.shared_names:
        return str(_SHARED_NAMES.index(group.kind))
    return blake2b(f"{group}".encode(), digest_size=8).hexdigest()


def group_description(group: Group) -> str:
    return "default_pg" if group.kind == "default" else f"mesh_{group.kind}"


def listed(values: Sequence[int]) -> str:
    """A list as a trace has it: text, cut after 30 entries."""
    return f"[{', '.join(map(str, values[:_MOST_LISTED]))}{', ...' if len(values) > _MOST_LISTED else ''}]"


def stride_of(ranks: Sequence[int]) -> int | None:
    """How far ranks are apart, None if that differs."""
    apart = {b - a for a, b in pairwise(ranks)}
    return apart.pop() if len(apart) == 1 else (None if apart else 1)


@lru_cache(maxsize=1 << 16)
def fixed_args(record: CallRecord, layout: Layout, on_kernel: bool) -> str:
    """The arguments that do not differ from call to call, as the inside of a JSON object; empty before torch 2.2."""
    if not layout.since("2.2"):
        return ""
    counts = ("In msg nelems", "Out msg nelems") if layout.since("2.4") else ("In msg size", "Out msg size")
    args: dict[str, Any] = {"Collective name": recorded_name(record)}
    args |= {counts[0]: record.in_elems, counts[1]: record.out_elems}
    args |= {"Group size": len(record.group.ranks), "dtype": record.dtype}
    if layout.since("2.4"):
        stride = stride_of(record.group.ranks)
        args |= {
            "In split size": listed(record.in_split),
            "Out split size": listed(record.out_split),
            "Process Group Name": group_name(record.group, layout),
            "Process Group Description": group_description(record.group),
            "Process Group Ranks": "[]" if stride is None else listed(record.group.ranks),
        }
        if not on_kernel and stride is not None:
            args |= {"Global rank start": record.group.ranks[0], "Global rank stride": stride}
    if layout.since("2.5"):
        args |= _peers(record, on_kernel)
    if layout.since("2.12") and not on_kernel:
        args["Is asynchronized op"] = int(record.asynchronous)
    return json.dumps(args)[1:-1]


def _peers(record: CallRecord, on_kernel: bool) -> dict[str, int]:
    """Rank in the group of the root, the peer, or else this rank itself; global ranks of sends and receives."""
    named = {"send": "Dst Rank", "recv": "Src Rank"}.get(record.op)
    found = {} if on_kernel else {"Rank": record.group.ranks.index(record.rank if record.peer is None else record.peer)}
    return found | ({named: record.peer} if named and record.peer is not None else {})


def counted_args(record: CallRecord, layout: Layout, turn: int) -> str:
    """The arguments that count calls: Seq and Comms Id, the latter equal on all ranks of a collective."""
    if not layout.since("2.12"):
        return ""
    if not layout.since("2.13"):
        return f', "Seq": {turn}'
    of = f"{group_name(record.group, layout)} {turn} {record.op in ('send', 'recv')}"
    number = int.from_bytes(blake2b(of.encode(), digest_size=8).digest(), "little")
    return f', "Seq": {turn}, "Comms Id": {number}'


def shape_args(record: CallRecord, layout: Layout) -> str:
    """Input shapes of an annotation, if they are recorded, as the inside of a JSON object that goes on."""
    if not layout.shapes:
        return ""
    return f', "Input Dims": [[{record.in_elems}]], "Input type": ["{_TYPES[record.dtype][1]}"]'


def work_args(op: Kernel, layout: Layout) -> str:
    """Input shapes of an operator, likewise: the longer its kernel takes, the larger a matrix and a vector."""
    if not layout.shapes:
        return ""
    elems = max(round(op.us * 64), 1)
    return f', "Input Dims": [[{elems}, 64], [64]], "Input type": ["c10::BFloat16", "c10::BFloat16"]'
