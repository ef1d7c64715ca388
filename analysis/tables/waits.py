"""Pairs of ranks: who waits because of whom."""

from __future__ import annotations

from ..core.declaring import TableEntry, Topic
from ..core.frames import pd
from ..core.schema import Schema
from ..core.tables.columns import PARTIAL_MEMBER
from ..metrics.causes.blame import blamed
from .ranks import Waiting

WAITS = Schema("waits", "rank that waited, and rank that is to blame for it", {
    "rank": ("int64", "rank that waited"),
    "blamed_rank": ("Int64", "rank it waited for, or the one that had made that rank late; NA if none is to blame"),
    "calls": ("int64", "calls in which it waited so"),
    "wait_ns": ("int64", "sum of that waiting"),
    "wait_frac": ("Float64", "wait_ns / waiting of all ranks"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip


@TableEntry(
    WAITS,
    Topic.waiting,
    "Who waits because of whom: one row per pair of ranks.",
    "ranks-and-hosts.md#pairs",
    command="table waits",
    after="rank_steps",
    none_found="no rank waited in the calls that could be split",
    narrow=("rank", "blamed_rank", "wait_ns", "wait_frac", "calls"),
    in_steps=True,
)  # fmt: skip
def waits(counted_waiting: Waiting) -> pd.DataFrame:
    """One row per rank that waited, and rank that is to blame for it.

    Summed by `blamed_rank` it is `caused_wait_ns` of `ranks`.
    """
    waiting = blamed(counted_waiting.participation, counted_waiting.lateness)
    waiting = waiting[waiting["wait_ns"] > 0]
    # A rank that had made itself wait, through another one, is nobody's victim.
    waiting = waiting.assign(blamed_rank=waiting["blamed"].mask((waiting["blamed"] == waiting["rank"]).fillna(False)))
    everything = int(waiting["wait_ns"].sum())
    grouped = waiting.groupby(["rank", "blamed_rank"], dropna=False)["wait_ns"]
    table = grouped.agg(["size", "sum"]).reset_index()
    return WAITS.conform(
        pd.DataFrame(
            {
                "rank": table["rank"],
                "blamed_rank": table["blamed_rank"],
                "calls": table["size"],
                "wait_ns": table["sum"],
                "wait_frac": table["sum"].astype("float64") / everything if everything else None,
            }
        )
    )
