"""Collectives that hang: some ranks issued them, no kernel shows that they ran, and a member never issued them.

Any trace ends with calls that were issued and have not run yet. So a call counts only if a member of its
group had far more time to issue it than members usually differ by; or if all have issued it, and it ran nowhere for
very long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..core.declaring import TableEntry, Topic
from ..core.frames import pd
from ..core.schema import Row, Schema, records
from ..core.tables.columns import COLLECTIVE, GROUP, PARTIAL_MEMBER, PG_RANKS, SIZE, STEP

if TYPE_CHECKING:
    from ..run.run import Run

HANGS = Schema("hangs", "collective that some ranks issued, but that never ran", {
    "collective": COLLECTIVE,
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "size_bytes": SIZE,
    "seq": ("Int64", "sequence number within the process group"),
    "step": STEP,
    "waiting": ("string", "ranks that issued it, ascending, separated by spaces"),
    "missing": ("string", "ranks of the group that did not, of those with a trace"),
    "waited_ns": ("int64", "from its last issue to the end of the traces of those that did not issue it, or of all"),
    "usual_ns": ("int64", "the largest time between members of the group issuing a collective; or its longest call"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip

_GROUP = ["process_group", "pg_ranks"]
# Multiples of what is usual in the group: how far apart members issue the same collective, and how long a call takes.
_FAR_LONGER, _ENDLESS = 5, 30
_LEAST_NS, _LEAST_ENDLESS_NS = 5_000_000, 1_000_000_000


@TableEntry(
    HANGS,
    Topic.waiting,
    "Collectives that some ranks issued and others never did.",
    "hangs.md#when-a-collective-hangs",
    command="hang",
    after="late_work",
    needs_starts=True,
    none_found="no collective hangs",
)
def hangs(
    run: Run, pending: pd.DataFrame, calls: pd.DataFrame, matches: pd.DataFrame, clocks: pd.DataFrame
) -> pd.DataFrame:
    """One row per process group with a collective that some ranks issued, but that never ran.

    They are in the order in which they were issued.
    """
    if not len(pending):
        return HANGS.empty()
    issued = calls[calls["issue_ns"].notna()]
    done = issued.assign(issued_ns=_common(issued["issue_ns"], issued["rank"], clocks)).merge(matches, on="call_id")
    stuck = pending.assign(issued_ns=_common(pending["issue_ns"], pending["rank"], clocks))
    ends = run.ends_ns
    ended = _common(ends, pd.Series(ends.index, ends.index), clocks)
    of_group = dict(list(done.groupby(_GROUP)))
    rows: list[tuple[int, Row]] = []
    for keys, calls_of_group in stuck.groupby(_GROUP):
        rows += _of_group(calls_of_group, of_group.get(keys, done[:0]), ended)
    everywhere = {rank for _, row in rows for rank in row["waiting"].split()}
    # A rank that waits elsewhere is only held up.
    rows.sort(key=lambda found: (bool(everywhere & set(found[1]["missing"].split())), found[0]))
    return HANGS.frame(row for _, row in rows)


def _common(times: pd.Series[int], rank: pd.Series[int], clocks: pd.DataFrame) -> pd.Series[int]:
    from ..metrics.clocks.table import aligned

    return aligned(times.astype("int64"), rank, clocks)


class _Usual(NamedTuple):
    """How far apart ranks issued a call of a group, and how long one took, at most; in ns."""

    apart_ns: int
    took_ns: int

    @classmethod
    def of(cls, done: pd.DataFrame) -> _Usual:
        times = done.groupby("collective_id")["issued_ns"]
        apart = (times.max() - times.min()).max() if len(done) else 0
        return cls(int(apart), int(done["dur_ns"].max()) if len(done) else 0)


def _of_group(pending: pd.DataFrame, done: pd.DataFrame, ends: pd.Series[int]) -> Iterator[tuple[int, Row]]:
    """The first pending collective of a group if it hangs, with the time at which the last rank issued it."""
    last = pending["rank"].map(done.groupby("rank")["issued_ns"].max()).fillna(-1)
    stuck = pending[pending["issued_ns"] > last].sort_values("issued_ns").drop_duplicates("rank")
    if not len(stuck):
        return
    first = records(stuck.head(1))[0]
    stuck = stuck[[_same(row, first) for row in records(stuck)]]
    issued, usual = int(stuck["issued_ns"].max()), _Usual.of(done)
    absent = {int(r) for r in str(first["pg_ranks"]).split()} - set(stuck["rank"])
    missing = sorted(absent & set(ends.index))
    if missing:
        waited = int(ends[missing].min()) - issued
        stopped = all(_stopped(rank, set(stuck["rank"]), done, pending) for rank in missing)
        hanging = stopped and waited > max(_FAR_LONGER * usual.apart_ns, _LEAST_NS)
    else:
        waited = int((stuck["rank"].map(ends) - issued).min())
        hanging = not absent and waited > max(_ENDLESS * usual.took_ns, _LEAST_ENDLESS_NS)
    if hanging:
        yield (
            issued,
            {
                **{key: first[key] for key in ("collective", "process_group", "pg_ranks", "size_bytes", "seq", "step")},
                "waiting": " ".join(map(str, sorted(stuck["rank"]))),
                "missing": " ".join(map(str, missing)),
                "waited_ns": waited,
                "usual_ns": usual.apart_ns if missing else usual.took_ns,
            },
        )


def _same(row: Row, first: Row) -> bool:
    """Whether two rows are the same collective, by the numbers that both have."""
    keys = ("seq",) if first["seq"] is not None and row["seq"] is not None else ("step", "turn")
    return all(row[key] is None or first[key] is None or row[key] == first[key] for key in keys)


def _stopped(rank: int, waiting: set[int], done: pd.DataFrame, pending: pd.DataFrame) -> bool:
    """Whether the last collective that a rank issued ran, with the ranks that wait now.

    If it ran without them, the trace lost the kernel of their call. For a rank that issued nothing in its trace, it is
    not known whether it would have.
    """
    together = done["collective_id"].isin(done["collective_id"][done["rank"].isin(waiting)])
    of_rank = done["rank"] == rank
    last = done["issued_ns"][of_rank & together].max()
    later = (of_rank & (done["issued_ns"] > last)).any() or (
        (pending["rank"] == rank) & (pending["issued_ns"] > last)
    ).any()
    return bool((of_rank & together).any() and not later)
