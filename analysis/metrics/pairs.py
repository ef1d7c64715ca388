"""Pairs of ranks: who waits because of whom."""

from __future__ import annotations

import pandas as pd

from ..core.tables.lateness import WAITS
from .causes.blame import blamed


def waits(participation: pd.DataFrame, lateness: pd.DataFrame) -> pd.DataFrame:
    """One row per rank that waited and rank to blame; summed by `blamed_rank` it is `caused_wait_ns` of `ranks`."""
    waiting = blamed(participation, lateness)
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
