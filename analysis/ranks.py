"""Who waits, and for whom: one row per rank."""

from __future__ import annotations

import pandas as pd

from .nccl_tests import ROOTED
from .schema import RANKS


def ranks(traces: pd.DataFrame, collectives: pd.DataFrame, participation: pd.DataFrame) -> pd.DataFrame:
    """Waiting and lateness of every rank that has a trace.

    A rank counts as last only in collectives all of whose members could be compared, and only if it was later than the
    others at all. In rooted collectives others may not need it, so there only the waiting is counted.
    """
    measured = collectives[collectives["last_rank"].notna() & collectives["complete"].fillna(False)]
    skewed = measured[(measured["arrival_skew_ns"] > 0) & ~measured["collective"].isin([*ROOTED, "send_recv"])]
    waits = participation.groupby("collective_id")["wait_ns"].sum(min_count=1)
    hosts = traces.drop_duplicates("rank").set_index("rank")["host"]
    rows = []
    for rank in sorted(traces["rank"].unique()):
        own = participation[participation["rank"] == rank]
        split = own[own["wait_ns"].notna()]
        last = skewed[skewed["last_rank"] == rank]
        late = last["arrival_skew_ns"]
        rows.append({
            "rank": rank,
            "host": hosts[rank],
            "calls": len(own),
            "split_calls": len(split),
            "comm_call_ns": own["dur_ns"].sum(),
            "wait_ns": split["wait_ns"].sum() if len(split) else None,
            "transfer_ns": split["transfer_ns"].sum() if len(split) else None,
            "times_last": len(last) if len(measured) else None,
            "caused_wait_ns": _caused(waits.reindex(last["collective_id"]), measured=len(measured) > 0),
            "late_median_ns": int(late.median()) if len(last) else None,
            "late_max_ns": late.max() if len(last) else None,
        })  # fmt: skip
    return RANKS.frame(rows)


def _caused(waits: pd.Series[int], *, measured: bool) -> int | None:
    """Sum of the waits; None where collectives were measured but not split, or none were measured."""
    if not measured or (len(waits) and waits.isna().all()):
        return None
    return int(waits.sum())
