"""What the last rank was doing while the others waited: compared with them, since the collective before.

All ranks leave a collective at nearly the same time. What the last one to the next did longer in between, against the
median of the others, is why it was late: more compute (and in which kernel), copies, other communication, or nothing at
all, because the CPU did not hand over work in time.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from .intervals import Spans, Times, covered, spans, subtract, union
from .kinds import COMM, COMPUTE, MEMORY
from .nccl_tests import SYNCHRONISING
from .schema import LATENESS, Row

_PARTS = ("compute", "memory", "comm", "idle")


def lateness(
    activities: pd.DataFrame, collectives: pd.DataFrame, participation: pd.DataFrame, clocks: pd.DataFrame
) -> pd.DataFrame:
    """One row per complete synchronising collective whose last rank was later than the clocks are uncertain."""
    uncertain = int(clocks["uncertainty_ns"].max())
    late = collectives[
        collectives["complete"].fillna(False)
        & collectives["collective"].isin(SYNCHRONISING)
        & (collectives["last_by_ns"] > uncertain).fillna(False)
    ]
    if not len(late):
        return LATENESS.empty()
    waits = participation.groupby("collective_id")["wait_ns"].sum(min_count=1)
    gaps = _gaps(collectives, participation, set(late["collective_id"]))
    spent = _spent(activities, gaps)
    rows = []
    for number, rank, by in zip(late["collective_id"], late["last_rank"], late["last_by_ns"], strict=True):
        known = spent[spent["collective_id"] == number]
        rows.append(
            {"collective_id": number, "rank": rank, "late_ns": by, "caused_wait_ns": waits[number]}
            | _extra(activities, known, int(rank))
        )
    return LATENESS.frame(rows)


def _gaps(collectives: pd.DataFrame, participation: pd.DataFrame, wanted: set[int]) -> pd.DataFrame:
    """Per late collective and rank: from the end of the group's previous collective to the arrival, on its own clock.

    Only where that previous collective is the same for all ranks.
    """
    group = collectives[["collective_id", "process_group", "pg_ranks", "collective"]]
    calls = participation.merge(group, on="collective_id").sort_values(["rank", "device", "start_ns"])
    calls = calls[calls["collective"].isin(SYNCHRONISING)]
    before = calls.groupby(["rank", "device", "process_group", "pg_ranks"], dropna=False)
    ends = calls["start_ns"] + calls["dur_ns"]
    calls = calls.assign(
        previous=before["collective_id"].shift(1).astype("Int64"),
        gap_start_ns=ends.groupby([calls[c] for c in ("rank", "device", "process_group", "pg_ranks")], dropna=False)
        .shift(1)
        .astype("Int64"),
    )
    calls = calls[calls["collective_id"].isin(wanted)]
    same = calls.groupby("collective_id")["previous"].transform(lambda p: p.notna().all() and p.nunique() == 1)
    return calls[same.astype(bool)][["collective_id", "rank", "device", "gap_start_ns", "start_ns"]]


def _spent(activities: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """`gaps` with what each rank did in them: compute, memory and comm alone, idle, in ns."""
    parts = []
    for (rank, device), own in gaps.groupby(["rank", "device"], sort=False):
        here = activities[(activities["rank"] == rank) & (activities["device"] == device)]
        of = {kind: _spans(here[here["kind"] == kind]) for kind in (COMPUTE, MEMORY, COMM)}
        memory = subtract(of[MEMORY], of[COMPUTE])
        comm = subtract(of[COMM], union(of[COMPUTE], of[MEMORY]))
        start = own["gap_start_ns"].to_numpy(dtype=np.int64)
        end = np.maximum(own["start_ns"].to_numpy(), start)
        spent: dict[str, Times] = {
            "compute": covered(of[COMPUTE], start, end),
            "memory": covered(memory, start, end),
            "comm": covered(comm, start, end),
        }
        spent["idle"] = end - start - spent["compute"] - spent["memory"] - spent["comm"]
        parts.append(own.assign(**spent))
    return pd.concat(parts) if parts else gaps.assign(**dict.fromkeys(_PARTS, 0))


def _spans(activities: pd.DataFrame) -> Spans:
    starts = activities["start_ns"].to_numpy()
    return spans(starts, starts + activities["dur_ns"].to_numpy())


def _extra(activities: pd.DataFrame, spent: pd.DataFrame, rank: int) -> Row:
    """What the late rank did longer than the median of the others; nothing known without a common collective before."""
    own, others = spent[spent["rank"] == rank], spent[spent["rank"] != rank]
    if not len(own) or not len(others):
        return {}
    extra = {part: int(own[part].iloc[0] - others[part].median()) for part in _PARTS}
    because = max(extra, key=lambda part: extra[part])
    row: Row = {f"extra_{part}_ns": value for part, value in extra.items()}
    if extra[because] <= 0:  # it only left the collective before late
        return row
    row["because"] = because
    if because == "compute":
        row["kernel"], row["kernel_extra_ns"] = _kernel(activities, own, others)
    return row


def _kernel(activities: pd.DataFrame, own: pd.DataFrame, others: pd.DataFrame) -> tuple[str | None, int | None]:
    """The kernel or operator that ran longest beyond the median of the other ranks, and how much."""
    mine = _by_name(activities, own.iloc[0])
    theirs = pd.DataFrame([_by_name(activities, gap) for _, gap in others.iterrows()])
    more = mine - theirs.fillna(0).median().reindex(mine.index).fillna(0) if len(theirs.columns) else mine
    if not len(more):
        return None, None
    return str(more.idxmax()), int(more.max())


def _by_name(activities: pd.DataFrame, gap: pd.Series[int]) -> pd.Series[int]:
    """Compute time in a gap by name of the kernel, in ns."""
    own = activities[
        (activities["rank"] == gap["rank"]) & (activities["device"] == gap["device"]) & (activities["kind"] == COMPUTE)
    ]
    start = own["start_ns"].clip(lower=int(gap["gap_start_ns"]))
    end = (own["start_ns"] + own["dur_ns"]).clip(upper=int(gap["start_ns"]))
    inside = end > start
    return (end - start)[inside].groupby(own["name"][inside].astype(str)).sum()
