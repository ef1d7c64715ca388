"""Calls of a gloo run: gloo's operations joined to the c10d operators that issued them.

No id links the two. But gloo starts work of one kind and shape in the order in which it was issued: so the first
operator of that kind and shape belongs to the first operation. Sends and receives begin inside their operator, on its
thread. The c10d operator determines the kind of the collective, since gloo runs a reduce_scatter as one or more
all_reduce.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from ....common.nccl_tests import collective_name, dtype_name, elements
from ...core import markers
from ...core.schema import Row

_NUMBER = re.compile(r"[0-9]{1,18}")
_SPLIT = re.compile(r"\[[0-9]{1,18}(?:, [0-9]{1,18})*(?:, \.\.\.)?\]")


@dataclass(frozen=True)
class Operator:
    """A c10d operator: its gloo operation, and the positions of its input, output and root among the arguments.

    Of an all_to_all of unequal parts, those of the rows for each rank, and from each.
    """

    collective: str
    gloo: str
    input: int | None = None
    output: int | None = None
    root: int | None = None
    in_split: int | None = None
    out_split: int | None = None


C10D_OPERATORS = {
    "allreduce_": Operator("all_reduce", "all_reduce", input=0),
    "allreduce_coalesced_": Operator("all_reduce", "all_reduce", input=0),
    "broadcast_": Operator("broadcast", "broadcast", input=0, root=2),
    "reduce_": Operator("reduce", "reduce", input=0, root=3),
    "allgather_": Operator("all_gather", "all_gather", input=1),
    "allgather_coalesced_": Operator("all_gather", "all_gather", input=1),
    "allgather_into_tensor_coalesced_": Operator("all_gather", "all_gather", input=1, output=0),
    "_allgather_base_": Operator("all_gather", "all_gather", input=1, output=0),
    "reduce_scatter_": Operator("reduce_scatter", "all_reduce", output=0),
    "reduce_scatter_tensor_coalesced_": Operator("reduce_scatter", "all_reduce", input=1, output=0),
    "_reduce_scatter_base_": Operator("reduce_scatter", "all_reduce", input=1, output=0),
    "alltoall_base_": Operator("all_to_all", "all_to_all", input=1, output=0, in_split=4, out_split=3),
    "alltoall_": Operator("all_to_all", "all_to_all", input=1, output=0),
    "gather_": Operator("gather", "gather", input=1, root=3),
    "scatter_": Operator("scatter", "scatter", output=0, root=3),
    "barrier": Operator("barrier", "barrier"),
    "monitored_barrier_": Operator("barrier", "barrier"),
    "send": Operator("send", "send", input=0, root=2),
    "recv_": Operator("recv", "recv", input=0, root=2),
    "recv_any_source_": Operator("recv", "recvAnySource", input=0),
}
"""c10d operators by name, without the prefix."""


_WITHIN_OPERATOR = ("send", "recv", "recvAnySource")


@dataclass
class _Issued:
    """A c10d operator in the trace: its call's metadata, and how many gloo operations it may still start.

    `row` is its call once the first of these has started.
    """

    op: Operator
    start_ns: int
    end_ns: int
    thread: int
    shapes: list[list[int]] | None
    in_elems: int | None
    out_elems: int | None
    types: list[str]
    root: int | None
    in_split: str | None
    out_split: str | None
    uses_left: int
    row: Row | None = None


def gloo_rows(
    activities: list[Row], annotations: list[Row], group: Mapping[str, Any], of_threads: Mapping[int, Row]
) -> tuple[list[Row], list[Row]]:
    """The calls of one rank from its gloo activities, by start; and those that were issued but do not run in the trace.

    `group` has the columns of the process group of all calls, as far as they are known; `of_threads` those of the group
    of a single thread of gloo, where that is known.
    """
    size = group.get("group_size")
    c10d = sorted(_named(markers.C10D, annotations), key=itemgetter("start_ns"))
    issued = [i for a in c10d if (i := _issued(a, size)) is not None]
    unused: dict[str, deque[_Issued]] = defaultdict(deque)
    for each in issued:
        unused[each.op.gloo].append(each)
    # A send begins earlier as an activity than as an annotation, but both end at the same time.
    by_end = {(a["thread"], a["start_ns"] + a["dur_ns"]): a for a in _named(markers.GLOO_MARK, annotations)}
    rows: list[Row] = []
    for activity in activities:
        annotation = by_end[activity["stream"], activity["start_ns"] + activity["dur_ns"]]
        source = _issuer(annotation, unused)
        if source is not None and source.row is not None:
            end_ns = activity["start_ns"] + activity["dur_ns"]
            source.row["dur_ns"] = max(source.row["dur_ns"], end_ns - source.row["start_ns"])
            continue
        of_group = of_threads.get(activity["stream"], group)
        row = {key: activity[key] for key in _KEPT} | dict(of_group) | _metadata(annotation, source)
        rows.append(row)
        if source is not None:
            source.row = row
    place = {key: activities[0][key] for key in ("rank", "cycle")}
    return rows, [place | dict(group) | _columns_of_issuer(source) for source in issued if source.row is None]


_KEPT = ("rank", "cycle", "device", "stream", "step", "name", "start_ns", "dur_ns")


def _named(prefix: str, annotations: list[Row]) -> list[Row]:
    return [annotation for annotation in annotations if (annotation["name"] or "").startswith(prefix)]


def _issued(annotation: Row, group_size: int | None) -> _Issued | None:
    op = C10D_OPERATORS.get(annotation["name"].removeprefix(markers.C10D))
    if op is None:
        return None
    given, got = _tensors(annotation, op.input), _tensors(annotation, op.output)
    in_elems, out_elems = _elems(given), _elems(got)
    if op.collective in ("reduce_scatter", "scatter") and in_elems is None and out_elems is not None and group_size:
        in_elems = out_elems * group_size
    if out_elems is None and in_elems is not None:
        gathers = op.collective in ("all_gather", "gather")
        out_elems = (in_elems * group_size if group_size else None) if gathers else in_elems
    if op.collective == "barrier":
        in_elems = out_elems = 0
    # A list of outputs is reduced shard by shard, one all_reduce for every rank.
    shards = group_size if op.gloo == "all_reduce" and op.input is None and group_size else 1
    compared = given if op.input is not None else got
    return _Issued(
        op=op,
        start_ns=annotation["start_ns"],
        end_ns=annotation["start_ns"] + annotation["dur_ns"],
        thread=annotation["thread"],
        shapes=compared if op.collective not in ("scatter", "barrier") else None,
        in_elems=in_elems,
        out_elems=out_elems,
        types=[t for t in annotation["in_types"] or () if dtype_name(t)],
        root=_scalar(annotation, op.root),
        in_split=_split(annotation, op.in_split),
        out_split=_split(annotation, op.out_split),
        uses_left=shards,
    )


def _issuer(annotation: Row, unused: Mapping[str, deque[_Issued]]) -> _Issued | None:
    """The earliest operator that may have issued this gloo operation; uses up one of its operations. None if none.

    `unused` are operators by what they issue, in their order; those that have no operation left at its beginning go.
    """
    kind, shapes, start_ns = (
        annotation["name"].removeprefix(markers.GLOO_MARK),
        annotation["in_dims"],
        annotation["start_ns"],
    )
    issued = unused.get(kind, deque())
    while issued and not issued[0].uses_left:
        issued.popleft()
    for candidate in issued:
        if candidate.start_ns > start_ns:
            return None
        fits = candidate.shapes is None or shapes is None or candidate.shapes == shapes
        if kind in _WITHIN_OPERATOR:
            fits = fits and candidate.thread == annotation["thread"] and start_ns <= candidate.end_ns
        if candidate.uses_left and fits:
            candidate.uses_left -= 1
            return candidate
    return None


def _metadata(annotation: Row, source: _Issued | None) -> Row:
    types = {t for t in annotation["in_types"] or () if dtype_name(t)} or set(source.types if source else ())
    dtype = dtype_name(types.pop()) if len(types) == 1 else None
    if source is not None:
        return _columns_of_issuer(source) | {"dtype": dtype, "metadata_from": "c10d"}
    elems = _elems(annotation["in_dims"])
    collective = collective_name(annotation["name"].removeprefix(markers.GLOO_MARK))
    symmetric = collective in ("all_reduce", "broadcast", "reduce", "all_to_all", "send", "recv")
    return {
        "collective": collective,
        "dtype": dtype,
        "in_elems": elems,
        "out_elems": elems if symmetric else None,
        "metadata_from": "annotation",
    }


def _columns_of_issuer(source: _Issued) -> Row:
    """Columns of a call that its issuing operator determines."""
    dtypes = {dtype_name(t) for t in source.types}
    return {
        "collective": source.op.collective,
        "dtype": dtypes.pop() if len(dtypes) == 1 else None,
        "in_elems": source.in_elems,
        "out_elems": source.out_elems,
        "root": source.root,
        "in_split": source.in_split,
        "out_split": source.out_split,
        "issue_ns": source.start_ns,
        "issued_ns": source.start_ns,
    }


def _tensors(annotation: Row, position: int | None) -> list[list[int]] | None:
    """Shapes of the tensor or list of tensors at this argument."""
    dims = annotation["in_dims"]
    if position is None or dims is None or position >= len(dims):
        return None
    shapes = dims[position]
    if shapes and isinstance(shapes[0], list):
        return list(shapes)
    types = annotation["in_types"] or []
    is_list = position < len(types) and types[position] in ("TensorList", "ScalarList", "")
    return None if is_list and not shapes else [shapes]


def _elems(shapes: list[Any] | None) -> int | None:
    return None if shapes is None else elements(shapes)


def _scalar(annotation: Row, position: int | None) -> int | None:
    text = _value(annotation, position)
    return int(text) if _NUMBER.fullmatch(text) else None


def _split(annotation: Row, position: int | None) -> str | None:
    """The rows for each rank, or from each; None where the parts are equal, and the operator was given no list."""
    text = _value(annotation, position)
    return text if _SPLIT.fullmatch(text) else None


def _value(annotation: Row, position: int | None) -> str:
    """A scalar argument, or a list of these, as it was recorded; empty where it was not."""
    values = annotation["in_values"]
    return "" if position is None or values is None or position >= len(values) else str(values[position])
