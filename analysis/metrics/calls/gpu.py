"""Calls of a rank's GPU from its communication kernels, and calls that were issued without a kernel.

The metadata of a kernel may stand in several places; see `calls.py` for their order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ....common.nccl_tests import POINT_TO_POINT, collective_name, dtype_name, elements
from ...core import markers
from ...core.kinds import COMPUTE, collective_in_name
from ...core.schema import Row, records
from .gloo import C10D_OPERATORS
from .issued import coalesced_parts
from .phases import with_phases

if TYPE_CHECKING:
    import pandas as pd

GROUP_COLUMNS = ("process_group", "pg_ranks", "group_size")
KEPT = ("rank", "cycle", "device", "stream", "step", "name", "start_ns", "dur_ns")
_FROM_ARGS = (
    "in_elems", "out_elems", "in_bytes", "out_bytes", "size_bytes", "in_split", "out_split", "group_size",
    "process_group", "pg_ranks", "seq", "comms_id", "root", "peer",
)  # fmt: skip


def grouped_by_stream(rows: list[Row], activities: pd.DataFrame) -> list[Row]:
    """Give NCCL kernels without a process group that of the others on their stream, if these share one.

    NCCL gives every communicator its own stream, except for collectives that run on a compute stream.
    """
    lacking = [
        r for r in rows if r.get("process_group") is None and r["name"].lower().startswith(markers.KERNEL_PREFIXES)
    ]
    if not lacking:
        return rows
    groups: dict[tuple[object, object], set[tuple[object, ...]]] = {}
    for row in rows:
        if row.get("process_group") is not None:
            on = groups.setdefault((row["device"], row["stream"]), set())
            on.add(tuple(row.get(key) for key in GROUP_COLUMNS))
    computing = activities.loc[activities["kind"] == COMPUTE, ["device", "stream"]].drop_duplicates()
    for stream in zip(computing["device"], computing["stream"], strict=True):
        groups.pop(stream, None)
    for row in lacking:
        on = groups.get((row["device"], row["stream"]), set())
        if len(on) == 1:
            row |= dict(zip(GROUP_COLUMNS, next(iter(on)), strict=True))
    return rows


class Sources:
    """The metadata of one rank's kernels, indexed by where they may be: kernel, record, launch or annotation.

    `activities` are the rank's communication kernels in one cycle; the rest is what the trace says about them.
    """

    def __init__(
        self,
        activities: list[Row],
        launches: pd.DataFrame,
        annotations: list[Row],
        comm_args: list[Row],
        groups: list[Row],
    ) -> None:
        of_activities = launches["correlation"].isin([a["correlation"] for a in activities])
        self.kernel = _by("correlation", (args for args in comm_args if args["source"] == "kernel"))
        self.records = [args for args in comm_args if args["start_ns"] is not None]
        self.record = _by("external_id", self.records)
        self.launch = _by("correlation", records(launches.loc[of_activities, _LAUNCH]))
        self.group = only_group(groups)
        # torch ~2.0 writes the correlation as External id on kernels, where it does not refer to an operator.
        self.ids_name_ops = any(map(_names_operator, activities)) or bool(
            (launches["external_id"] != launches["correlation"]).any()
        )
        self.annotations = [a for a in annotations if (a["name"] or "").startswith(markers.OF_BACKENDS)]
        self.annotation_of = _enclosing(self.annotations)
        self.operator_of = _enclosing(a for a in annotations if (a["name"] or "").startswith(markers.C10D))
        self.parts_under = coalesced_parts(self.records, self.annotations, launches)
        self.activities = activities
        self.around = [self._around(activity["correlation"]) for activity in self.activities]
        self.kernels_in = Counter(id(annotation) for annotation in self.around)
        self.claimed: set[int] = set()

    def rows(self) -> list[Row]:
        """The calls of all kernels: one per kernel, or several that were coalesced into it."""
        rows: list[Row] = []
        for activity, annotation in zip(self.activities, self.around, strict=True):
            calls = self._rows(activity, annotation)
            batch = len(rows) if len(calls) > 1 else None
            rows += [row | {"batch": batch} for row in calls]
        return with_phases(rows)

    def pending(self) -> list[Row]:
        """Calls that were issued but have no kernel, in no order. Call it after `rows`."""
        rows = [
            {"rank": record["rank"], "cycle": record["cycle"], "issue_ns": record["start_ns"]} | _from_args(record)
            for record in self.records
            if id(record) not in self.claimed
        ]
        if not self.records:
            of_kernels = {id(annotation) for annotation in self.around}
            rows = [
                {"rank": a["rank"], "cycle": a["cycle"], "issue_ns": a["start_ns"]} | self._from_annotation(a)
                for a in self.annotations
                if id(a) not in of_kernels and a["name"] != markers.COALESCED
            ]
        return [row | {"issued_ns": row["issue_ns"]} for row in rows]

    def _rows(self, activity: Row, annotation: Row | None) -> list[Row]:
        launch = self.launch.get(activity["correlation"])
        issue_ns = launch["start_ns"] if launch else None
        row = {key: activity[key] for key in KEPT} | {"issue_ns": issue_ns, "issued_ns": issue_ns}
        kernel = self.kernel.get(activity["correlation"])
        if annotation is not None and annotation["name"] == markers.COALESCED and kernel is None:
            parts = self.parts_under[id(annotation)]
            if parts:
                self.claimed.update(map(id, parts))
                return [row | self._from_record(part) for part in parts]
        record = self._record(activity)
        if kernel is not None:
            # Only the record has the root.
            known = _from_args(kernel) | {"metadata_from": "kernel"}
            known = self._from_record(record) | known | {"root": record["root"]} if record is not None else known
            return [row | _with_peer(known, annotation)]
        if record is not None:
            return [row | _with_peer(self._from_record(record), annotation)]
        if annotation is not None:
            return [row | self._from_annotation(annotation)]
        name = collective_in_name(activity["name"])
        group = self.group if name not in POINT_TO_POINT else {}
        return [row | group | {"collective": name, "metadata_from": "name" if name else "none"}]

    def _from_record(self, record: Row) -> Row:
        self.claimed.add(id(record))
        return _from_args(record) | {"issued_ns": record["start_ns"], "metadata_from": markers.RECORD}

    def _record(self, activity: Row) -> Row | None:
        if self.ids_name_ops and activity["external_id"] is not None:
            record = self.record.get(activity["external_id"])
            if record is not None:
                return record
        launch = self.launch.get(activity["correlation"])
        if launch is None or not self.ids_name_ops:
            return None
        return self.record.get(launch["external_id"])

    def _around(self, correlation: object) -> Row | None:
        launch = self.launch.get(correlation)
        return None if launch is None else self.annotation_of(launch["thread"], launch["start_ns"])

    def _from_annotation(self, annotation: Row) -> Row:
        op = markers.operation(annotation["name"])
        row: Row = {
            **self.group,
            "collective": collective_name(op),
            "issued_ns": annotation["start_ns"],
            "metadata_from": "annotation",
        }
        if op.startswith(("send ", "recv ")):
            row["root"] = _peer(op)
        # Shapes of an annotation around several kernels are those of all of them together.
        if annotation["in_dims"] and self.kernels_in[id(annotation)] == 1:
            elems = elements(shape for shape in annotation["in_dims"] if isinstance(shape, list))
            types = {t for t in annotation["in_types"] or () if t}
            row["dtype"] = dtype_name(types.pop()) if len(types) == 1 else None
            got = self._got_elems(annotation, elems)
            row["group_size"] = row.get("group_size") or _group_size(row["collective"], elems, got)
            row["in_elems"] = elems
            row["out_elems"] = _out_elems(row["collective"], elems, row["group_size"]) if got is None else got
        return row

    def _got_elems(self, annotation: Row, in_elems: int | None) -> int | None:
        """Output elements from the c10d operator around an annotation; None if missing or contradictory."""
        operator = self.operator_of(annotation["thread"], annotation["start_ns"])
        known = None if operator is None else C10D_OPERATORS.get(operator["name"].removeprefix(markers.C10D))
        dims = (operator["in_dims"] or []) if operator is not None else []
        if known is None or known.input is None or known.output is None or len(dims) <= max(known.input, known.output):
            return None
        # Before torch 2.1, lists of tensors are `[]` there, which would be one element.
        return elements([dims[known.output]]) if elements([dims[known.input]]) == in_elems else None


_LAUNCH = ["correlation", "start_ns", "thread", "external_id"]


def _by(key: str, rows: Iterable[Row]) -> dict[Any, Row]:
    """The first row of each known value of the key."""
    first: dict[Any, Row] = {}
    for row in rows:
        if row[key] is not None:
            first.setdefault(row[key], row)
    return first


def _names_operator(activity: Row) -> bool:
    ids = activity["external_id"], activity["correlation"]
    return None not in ids and ids[0] != ids[1]


def _from_args(args: Row) -> Row:
    row = {key: args[key] for key in _FROM_ARGS}
    return row | {"collective": collective_name(args["op"]), "dtype": dtype_name(args["dtype"])}


def only_group(groups: list[Row]) -> Row:
    """Name, ranks and size of the process group if the rank is in only one; else the values that all share."""
    distinct = {(group["process_group"], group["pg_ranks"]) for group in groups}
    lists = {ranks for _, ranks in distinct}
    if len(lists) != 1 or None in lists:
        return {}
    ranks = lists.pop()
    name = distinct.pop()[0] if len(distinct) == 1 else None
    return {"process_group": name, "pg_ranks": ranks, "group_size": len(ranks.split())}


def _enclosing(annotations: Iterable[Row]) -> Callable[[int, int], Row | None]:
    """Make a function (thread, time) -> the innermost annotation there, or None."""
    threads: dict[int, list[Row]] = {}
    for annotation in sorted(annotations, key=itemgetter("start_ns")):
        threads.setdefault(annotation["thread"], []).append(annotation)
    begun = {thread: [row["start_ns"] for row in rows] for thread, rows in threads.items()}

    def find(thread: int, time_ns: int) -> Row | None:
        if thread not in threads:
            return None
        last = bisect_right(begun[thread], time_ns)
        # Annotations nest a few levels at most, so the innermost one around a time is among the last few that began.
        for row in reversed(threads[thread][max(0, last - 8) : last]):
            if time_ns <= row["start_ns"] + row["dur_ns"]:
                return row
        return None

    return find


def _with_peer(row: Row, annotation: Row | None) -> Row:
    """Fill in the peer of a send or receive from its annotation, which torch before 2.5 needs."""
    if row["collective"] in ("send", "recv") and row["root"] is None and row["peer"] is None and annotation:
        return row | {"root": _peer(markers.operation(annotation["name"]))}
    return row


def _group_size(collective: str | None, in_elems: int | None, out_elems: int | None) -> int | None:
    """The number of ranks among which an array is divided, by the elements of both sides; None if these do not tell."""
    sizes = {"all_gather": (out_elems, in_elems), "reduce_scatter": (in_elems, out_elems)}.get(collective or "")
    if sizes is None or not sizes[0] or not sizes[1] or sizes[0] % sizes[1]:
        return None
    return sizes[0] // sizes[1]


def _out_elems(collective: str | None, in_elems: int | None, group_size: int | None) -> int | None:
    """Output elements for given input elements; None where they depend on an unknown group size."""
    if in_elems is None or collective not in ("all_gather", "gather", "reduce_scatter", "scatter"):
        return in_elems
    if group_size is None:
        return None
    return in_elems * group_size if collective.endswith("gather") else in_elems // group_size


def _peer(op: str) -> int | None:
    """Peer in `send 0->1` and `recv 0<-1`: the second number."""
    numbers = op.replace("<-", "->").partition(" ")[2].split("->")
    return int(numbers[1]) if len(numbers) == 2 and numbers[1].isdigit() else None
