"""Every communication activity of a rank with its metadata: which collective, over whom, how much.

The ladder, best first: arguments on the kernel; the record_param_comms of the same External id; the `nccl:` annotation
around the launch, with the input shapes; the kernel's name. Runs on gloo: `gloo_calls.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from .gloo_calls import gloo_rows
from .kinds import COMM, COMPUTE, collective_in_name
from .nccl_tests import POINT_TO_POINT, ROOTED, collective_name, dtype_name, elements, item_bytes, size_elems
from .schema import CALLS, Row, bare, grouped, plain, records

if TYPE_CHECKING:
    import pandas as pd

_FROM_ARGS = ("in_elems", "out_elems", "group_size", "process_group", "pg_ranks", "seq", "comms_id", "root", "peer")


def calls(
    activities: pd.DataFrame,
    launches: pd.DataFrame,
    annotations: pd.DataFrame,
    comm_args: pd.DataFrame,
    process_groups: pd.DataFrame,
) -> pd.DataFrame:
    """One row per communication call, by rank and start; what no source tells is NA."""
    of_kind = bare(activities["kind"])
    communicating = activities[of_kind == COMM].sort_values(["rank", "cycle", "start_ns"], kind="stable")
    ran, launched = dict(grouped(activities, _KEY)), dict(grouped(launches, _KEY))
    if "cpu" not in communicating["device"].unique():  # then what c10d and steps say is of no use
        annotations = annotations[annotations["name"].str.startswith("nccl:", na=False)]
    annotated, with_args = _rows_by_rank(annotations), _rows_by_rank(comm_args)
    groups_of = _rows_by(process_groups, ["rank"])
    rows: list[Row] = []
    for key, own in _rows_by_rank(communicating[[*_KEPT, "correlation", "external_id"]]).items():
        groups = groups_of.get(key[:1], [])
        around = annotated.get(key, [])
        if own[0]["device"] == "cpu":
            found = gloo_rows(own, around, _only_group(groups))
        else:
            sources = _Sources(own, launched.get(key, launches[:0]), around, with_args.get(key, []), groups)
            found = _grouped_by_stream(sources.rows(), ran[key])
        rows += [_finished(row, groups) for row in found]
    return CALLS.frame({"call_id": i, **row} for i, row in enumerate(rows))


_KEY = ["rank", "cycle"]


def _rows_by_rank(table: pd.DataFrame) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each rank and cycle, in order."""
    return _rows_by(table, _KEY)


def _rows_by(table: pd.DataFrame, keys: list[str]) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    columns = plain(table)
    of_rows = zip(*(columns.columns[key] for key in keys), strict=True)
    for key, row in zip(of_rows, columns.rows, strict=True):
        found.setdefault(key, []).append(row)
    return found


def _grouped_by_stream(rows: list[Row], activities: pd.DataFrame) -> list[Row]:
    """NCCL's kernels without a process group get that of the others on their stream, if those are of one.

    NCCL gives every communicator a stream of its own, but for collectives that run on a stream that computes.
    """
    lacking = [r for r in rows if r.get("process_group") is None and r["name"].lower().startswith(("nccl", "rccl"))]
    if not lacking:
        return rows
    groups: dict[tuple[object, object], set[tuple[object, ...]]] = {}
    for row in rows:
        if row.get("process_group") is not None:
            on = groups.setdefault((row["device"], row["stream"]), set())
            on.add(tuple(row.get(key) for key in _GROUP))
    computing = activities.loc[activities["kind"] == COMPUTE, ["device", "stream"]].drop_duplicates()
    for stream in zip(computing["device"], computing["stream"], strict=True):
        groups.pop(stream, None)
    for row in lacking:
        on = groups.get((row["device"], row["stream"]), set())
        if len(on) == 1:
            row |= dict(zip(_GROUP, next(iter(on)), strict=True))
    return rows


class _Sources:
    """Where the metadata of one rank's kernels may stand, indexed."""

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
        self.record = _by("external_id", (args for args in comm_args if args["source"] == "record_param_comms"))
        self.launch = _by("correlation", records(launches.loc[of_activities, _LAUNCH]))
        self.group = _only_group(groups)
        # torch ~2.0 writes the correlation as External id on kernels: it names no operator there.
        self.ids_name_ops = any(map(_names_operator, activities)) or bool(
            (launches["external_id"] != launches["correlation"]).any()
        )
        self.annotation_of = _enclosing(a for a in annotations if (a["name"] or "").startswith("nccl:"))
        self.activities = activities
        self.around = [self._around(activity["correlation"]) for activity in self.activities]
        self.kernels_in = Counter(id(annotation) for annotation in self.around)

    def rows(self) -> list[Row]:
        """The call of each activity."""
        return [self._row(*each) for each in zip(self.activities, self.around, strict=True)]

    def _row(self, activity: Row, annotation: Row | None) -> Row:
        kernel = self.kernel.get(activity["correlation"])
        record = self._record(activity)
        launch = self.launch.get(activity["correlation"])
        row = {key: activity[key] for key in _KEPT} | {"issue_ns": launch["start_ns"] if launch else None}
        if kernel is not None:
            # The root is on the record only.
            root = record["root"] if record is not None else kernel["root"]
            return row | _from_args(kernel) | {"root": root, "metadata_from": "kernel"}
        if record is not None:
            return row | _from_args(record) | {"metadata_from": "record_param_comms"}
        if annotation is not None:
            return row | self._from_annotation(annotation)
        name = collective_in_name(activity["name"])
        group = self.group if name != "peer_copy" else {}
        return row | group | {"collective": name, "metadata_from": "name" if name else "none"}

    def _record(self, activity: Row) -> Row | None:
        if self.ids_name_ops and activity["external_id"] is not None:
            found = self.record.get(activity["external_id"])
            if found is not None:
                return found
        launch = self.launch.get(activity["correlation"])
        if launch is None or not self.ids_name_ops:
            return None
        return self.record.get(launch["external_id"])

    def _around(self, correlation: object) -> Row | None:
        launch = self.launch.get(correlation)
        return None if launch is None else self.annotation_of(launch["thread"], launch["start_ns"])

    def _from_annotation(self, annotation: Row) -> Row:
        op = annotation["name"].removeprefix("nccl:")
        row: Row = {**self.group, "collective": collective_name(op), "metadata_from": "annotation"}
        if op.startswith(("send ", "recv ")):
            row["root"] = _peer(op)
        # Shapes of an annotation around several kernels are those of all of them together.
        if annotation["in_dims"] and self.kernels_in[id(annotation)] == 1:
            elems = elements(shape for shape in annotation["in_dims"] if isinstance(shape, list))
            types = {t for t in annotation["in_types"] or () if t}
            row["dtype"] = dtype_name(types.pop()) if len(types) == 1 else None
            row["in_elems"], row["out_elems"] = elems, _out_elems(row["collective"], elems, row.get("group_size"))
        return row


_GROUP = ("process_group", "pg_ranks", "group_size")
_HAVE_ROOT = ROOTED | POINT_TO_POINT
_KEPT = ("rank", "cycle", "device", "stream", "step", "name", "start_ns", "dur_ns")


_LAUNCH = ["correlation", "start_ns", "thread", "external_id"]


def _by(key: str, rows: Iterable[Row]) -> dict[Any, Row]:
    """The first row of each key that is known."""
    found: dict[Any, Row] = {}
    for row in rows:
        if row[key] is not None:
            found.setdefault(row[key], row)
    return found


def _names_operator(activity: Row) -> bool:
    ids = activity["external_id"], activity["correlation"]
    return None not in ids and ids[0] != ids[1]


def _from_args(args: Row) -> Row:
    row = {key: args[key] for key in _FROM_ARGS}
    return row | {"collective": collective_name(args["op"]), "dtype": dtype_name(args["dtype"])}


def _only_group(groups: list[Row]) -> Row:
    """Name, ranks and size of the process group, if the rank is in one only, else what all of them share."""
    distinct = {(group["process_group"], group["pg_ranks"]) for group in groups}
    lists = {ranks for _, ranks in distinct}
    if len(lists) != 1 or None in lists:
        return {}
    ranks = lists.pop()
    name = distinct.pop()[0] if len(distinct) == 1 else None
    return {"process_group": name, "pg_ranks": ranks, "group_size": len(ranks.split())}


def _enclosing(annotations: Iterable[Row]) -> Callable[[int, int], Row | None]:
    """A function (thread, time) -> the innermost annotation there, or None."""
    threads: dict[int, list[Row]] = {}
    for annotation in sorted(annotations, key=itemgetter("start_ns")):
        threads.setdefault(annotation["thread"], []).append(annotation)
    begun = {thread: [row["start_ns"] for row in rows] for thread, rows in threads.items()}

    def find(thread: int, time_ns: int) -> Row | None:
        if thread not in threads:
            return None
        last = bisect_right(begun[thread], time_ns)
        # Annotations nest a few levels at most, so the innermost that holds the time is among the last few begun.
        for row in reversed(threads[thread][max(0, last - 8) : last]):
            if time_ns <= row["start_ns"] + row["dur_ns"]:
                return row
        return None

    return find


def _out_elems(collective: str | None, in_elems: int | None, group_size: int | None) -> int | None:
    """Output elements for given input elements; None where they depend on an unknown group size."""
    if in_elems is None or collective not in ("all_gather", "gather", "reduce_scatter", "scatter"):
        return in_elems
    if group_size is None:
        return None
    return in_elems * group_size if collective.endswith("gather") else in_elems // group_size


def _peer(op: str) -> int | None:
    """Peer in `send 0->1` and `recv 0<-1`: the second number."""
    numbers = op.replace("<-", "->").split(" ")[1].split("->")
    return int(numbers[1]) if len(numbers) == 2 and numbers[1].isdigit() else None


def _finished(row: Row, groups: list[Row]) -> Row:
    """The row with the group's ranks, the root as global rank, and the size, as far as they follow from the rest."""
    if row.get("process_group") is not None and row.get("pg_ranks") is None:
        row["pg_ranks"] = _ranks_of(row, groups)
    root, peer = row.get("root"), row.pop("peer", None)
    row["root"] = None
    if row.get("collective") in POINT_TO_POINT and peer is not None:
        row["root"] = peer
    elif row.get("collective") in _HAVE_ROOT and root is not None:
        ranks = (row.get("pg_ranks") or "").split()
        row["root"] = int(ranks[root]) if 0 <= root < len(ranks) else None
    row["size_bytes"] = _size_bytes(row)
    return row


def _ranks_of(row: Mapping[str, Any], groups: list[Row]) -> str | None:
    """Ranks of the group from the trace's header: the event's own list is cut, or empty, for some groups."""
    known = {group["pg_ranks"] for group in groups if group["process_group"] == row["process_group"]} - {None}
    fitting = [ranks for ranks in known if row.get("group_size") in (None, len(ranks.split()))]
    return fitting[0] if len(fitting) == 1 else None


def _size_bytes(row: Mapping[str, Any]) -> int | None:
    collective, dtype, in_elems, out_elems = (row.get(k) for k in ("collective", "dtype", "in_elems", "out_elems"))
    if collective == "barrier":
        return 0
    if collective is None or dtype is None or in_elems is None or out_elems is None:
        return None
    return size_elems(collective, in_elems, out_elems) * item_bytes(dtype)
