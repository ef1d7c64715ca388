"""One row per communication call of a rank, with its metadata: collective, process group, size.

On GPUs the metadata come from the first of these that is there:

1. arguments on the kernel itself;
2. the record_param_comms of the same External id; for a coalesced launch, those before it;
3. the `nccl:` annotation around the launch, with the shapes of the input, and the c10d operator around that, with the
   shapes of the output;
4. the kernel's name.

Runs on gloo: `gloo.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from ....common.nccl_tests import POINT_TO_POINT, ROOTED, item_bytes, size_elems
from ...core import markers
from ...core.kinds import COMM
from ...core.schema import Row, bare, grouped, plain
from .gloo import gloo_rows
from .gloo_groups import groups_of_threads
from .gpu import KEPT, Sources, grouped_by_stream, only_group
from .issued import number_calls, same_collective, set_steps, together

if TYPE_CHECKING:
    import pandas as pd


class Communication(NamedTuple):
    """The tables `calls`, of what ran, and `pending`, of what was issued but does not run in the trace."""

    calls: pd.DataFrame
    pending: pd.DataFrame


class CallRows(NamedTuple):
    """The rows of these tables."""

    calls: list[Row]
    pending: list[Row]


class Metadata(NamedTuple):
    """The rows of one rank and cycle that describe its calls: annotations, arguments and process groups.

    `of_threads` has the process group of each thread of gloo, where several ranks had to be compared to know it.
    """

    annotations: list[Row]
    comm_args: list[Row]
    groups: list[Row]
    of_threads: Mapping[int, Row] = {}


def calls_of_run(
    activities: pd.DataFrame,
    launches: pd.DataFrame,
    annotations: pd.DataFrame,
    comm_args: pd.DataFrame,
    process_groups: pd.DataFrame,
    hosts: Mapping[int, str | None],
) -> CallRows:
    """All communication calls by rank and start, without what no source has; and all pending calls.

    The arguments are the tables of these names, and the host of each rank, None where it is not known.
    """
    ran, launched = dict(grouped(activities, _KEY)), dict(grouped(launches, _KEY))
    names = annotations["name"].str
    marked = names.startswith(markers.PROFILER_STEP, na=False)
    of_threads: dict[int, dict[int, Row]] = {}
    if (activities["device"] == "cpu").any():
        marked |= True
        of_threads = groups_of_threads(annotations, process_groups, hosts)
    else:  # c10d's annotations are needed only where no call has arguments
        marked |= names.startswith((*markers.OF_BACKENDS, *([] if len(comm_args) else [markers.C10D])), na=False)
    annotated, with_args = _rows_by(annotations[marked], _KEY), _rows_by(comm_args, _KEY)
    groups_of = _rows_by(process_groups, ["rank"])
    rows: list[Row] = []
    pending: list[Row] = []
    for key in sorted({*ran, *with_args}):
        told = annotated.get(key, []), with_args.get(key, []), groups_of.get(key[:1], [])
        metadata = Metadata(*told, of_threads.get(key[0], {}))
        ran_here, others = _of_one_file(ran.get(key, activities[:0]), launched.get(key, launches[:0]), metadata)
        rows += _numbered(ran_here, len(rows))
        pending += others
    return CallRows(_with_ids(rows), pending)


def calls_of_file(activities: pd.DataFrame, launches: pd.DataFrame, metadata: Metadata) -> CallRows:
    """The communication calls of one rank and cycle."""
    found = _of_one_file(activities, launches, metadata)
    return CallRows(_with_ids(_numbered(found.calls, 0)), found.pending)


def _of_one_file(activities: pd.DataFrame, launches: pd.DataFrame, metadata: Metadata) -> CallRows:
    if not len(activities):  # without a device, it is not known which of the issued calls ran
        return CallRows([], [])
    communicating = activities[bare(activities["kind"]) == COMM].sort_values("start_ns", kind="stable")
    kernels = plain(communicating[[*KEPT, "correlation", "external_id"]]).rows
    if not kernels and not metadata.comm_args:
        return CallRows([], [])
    if kernels and kernels[0]["device"] == "cpu":
        rows, others = gloo_rows(kernels, metadata.annotations, only_group(metadata.groups), metadata.of_threads)
    else:
        sources = Sources(kernels, launches, metadata.annotations, metadata.comm_args, metadata.groups)
        rows = grouped_by_stream(sources.rows(), activities)
        others = sources.pending()
    marks = [(row["name"] or "", row["start_ns"], row["dur_ns"]) for row in metadata.annotations]
    steps = [mark for mark in marks if mark[0].startswith(markers.PROFILER_STEP)]
    return _in_order(rows, others, metadata.groups, steps)


def _with_ids(rows: list[Row]) -> list[Row]:
    return [{"call_id": number, **row} for number, row in enumerate(rows)]


def _in_order(rows: list[Row], pending: list[Row], groups: list[Row], marks: list[tuple[str, int, int]]) -> CallRows:
    """Both lists with sizes and groups filled in, numbered in the order of issue."""
    known = _Known(groups)
    rows, pending = [_finished(row, known) for row in rows], [_finished(row, known) for row in pending]
    rows = _merged(rows)
    issued = [row for row in (*rows, *pending) if row.get("issued_ns") is not None]
    set_steps([row for row in issued if row.get("device") == "cpu" or "device" not in row], marks)
    number_calls(issued)
    return CallRows(rows, pending)


def _merged(rows: list[Row]) -> list[Row]:
    """Merge the rows of a batch that form one collective."""
    merged: list[Row] = []
    for batch, parts in groupby(rows, key=lambda row: row.get("batch")):
        listed = list(parts)
        is_one = batch is not None and same_collective(listed)
        merged += [together(listed) | {"batch": None}] if is_one else listed
    return merged


def _numbered(rows: list[Row], before: int) -> list[Row]:
    """Number each batch by its first call; `before` rows come before these."""
    first: dict[int, int] = {}
    for index, row in enumerate(rows, before):
        if row.get("batch") is not None:
            row["batch"] = first.setdefault(row["batch"], index)
    return rows


_KEY = ["rank", "cycle"]


def _rows_by(table: pd.DataFrame, keys: list[str]) -> dict[tuple[Any, ...], list[Row]]:
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    columns = plain(table)
    of_rows = zip(*(columns.columns[key] for key in keys), strict=True)
    for key, row in zip(of_rows, columns.rows, strict=True):
        grouped.setdefault(key, []).append(row)
    return grouped


def shown_once(calls: pd.DataFrame) -> pd.DataFrame:
    """Drop calls that another cycle of the rank shows as well; the copy with the most values stays.

    A kernel that was launched in one window and ran in the next may be in both traces.
    """
    if not (calls["cycle"] > 0).any():
        return calls
    keys = ["rank", "device", "stream", "start_ns", "dur_ns", "name"]
    ordered = calls.assign(place=range(len(calls)), part=calls.groupby([*keys, "cycle"], dropna=False).cumcount())
    ordered = ordered.sort_values("issue_ns", kind="stable")  # calls that were not seen being issued come last
    kept = ordered.drop_duplicates([*keys, "part"]).sort_values("place")
    if len(kept) == len(calls):
        return calls
    number = dict(zip(kept["call_id"].tolist(), range(len(kept)), strict=True))
    batch = kept["batch"].map(number).astype("Int64")
    return kept.drop(columns=["place", "part"]).assign(call_id=range(len(kept)), batch=batch)


_HAVE_ROOT = ROOTED | POINT_TO_POINT


class _Known:
    """The process groups of a rank. Lists of ranks are long, so each is split once and not once per call."""

    def __init__(self, groups: list[Row]) -> None:
        self._split: dict[str, list[str]] = {}
        self._lists: dict[str, set[str]] = {}
        for group in groups:
            if group["pg_ranks"] is not None:
                self._lists.setdefault(group["process_group"], set()).add(group["pg_ranks"])

    def ranks(self, pg_ranks: str | None) -> list[str]:
        """Split a list of ranks."""
        listed = pg_ranks or ""
        if listed not in self._split:
            self._split[listed] = listed.split()
        return self._split[listed]

    def list_of(self, row: Mapping[str, Any]) -> str | None:
        """Ranks of the row's group from the trace's header: events cut the list, or leave it empty, for some groups."""
        lists = self._lists.get(row["process_group"], ())
        fitting = [ranks for ranks in lists if row.get("group_size") in (None, len(self.ranks(ranks)))]
        return fitting[0] if len(fitting) == 1 else None


def _finished(row: Row, known: _Known) -> Row:
    """Fill in the group's ranks, the root as a global rank, and the size, where these follow from the row."""
    if row.get("process_group") is not None and row.get("pg_ranks") is None:
        row["pg_ranks"] = known.list_of(row)
    root, peer = row.get("root"), row.pop("peer", None)
    row["root"] = None
    if row.get("collective") in POINT_TO_POINT and peer is not None:
        row["root"] = peer
    elif row.get("collective") in _HAVE_ROOT and root is not None:
        ranks = known.ranks(row.get("pg_ranks"))
        row["root"] = int(ranks[root]) if 0 <= root < len(ranks) else None
    if row.get("collective") in POINT_TO_POINT and row["root"] is None:
        row["root"] = _only_other(row["rank"], known.ranks(row.get("pg_ranks")))
    row["size_bytes"] = _size_bytes(row, row.pop("in_bytes", None), row.pop("out_bytes", None))
    return row


def _only_other(rank: int, ranks: list[str]) -> int | None:
    """The other rank of a process group of two; None for any other group."""
    others = [int(other) for other in ranks if int(other) != rank] if len(ranks) <= 2 else []
    return others[0] if len(others) == 1 else None


def _size_bytes(row: Mapping[str, Any], in_bytes: int | None, out_bytes: int | None) -> int | None:
    """Size of a call in bytes, from its elements, else from the bytes of its input and output."""
    collective, dtype, in_elems, out_elems = (row.get(k) for k in ("collective", "dtype", "in_elems", "out_elems"))
    size_bytes: int | None = row.get("size_bytes")
    if size_bytes is not None:
        return size_bytes
    if collective == "barrier":
        return 0
    if collective is None:
        return None
    if collective in ("reduce_scatter", "scatter"):
        out_elems = in_elems  # the size is that of the input
    elif collective in ("all_gather", "gather"):
        in_elems = out_elems
    if dtype is not None and in_elems is not None and out_elems is not None:
        return size_elems(collective, in_elems, out_elems) * item_bytes(dtype)
    # The rule for elements holds for bytes as well.
    return None if in_bytes is None or out_bytes is None else size_elems(collective, in_bytes, out_bytes)
