"""Verdicts on runs with durations only: how much of communication is waiting, not how much it costs."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from ...core.schema import Row
from .culprits import Culprits, Waited
from .thresholds import LATENCY_FACTOR, LEAST_SPLIT, NAMED_FROM, SKEW_FROM


class Durations(NamedTuple):
    """The verdict on a run, and the part of the time of its calls that is waiting, None if none could be split.

    `waited` says for whom, None if it is too little; `unsplit` is the part of all calls that could not be split, and
    `why` the kind of reason (`unsplit.reason`).
    """

    verdict: str
    waiting: float | None
    waited: Waited | None
    unsplit: float
    why: str


def of_durations(row: Row, waiting: float | None, latency_us: float | None, *, is_split: bool) -> str:
    """The verdict on the calls of one size, of which enough could be split if `is_split`.

    `row` is their row of `verdicts`, `latency_us` is the latency of the collective, None if not known.
    """
    if not is_split or waiting is None:
        return "inconclusive"
    if waiting >= SKEW_FROM:
        return "skew-bound"
    is_latency = latency_us is not None and row["transfer_us"] < LATENCY_FACTOR * latency_us
    return "latency-bound" if is_latency else "transfer-bound"


def run_of_durations(calls: pd.DataFrame, culprits: Culprits, why: str) -> Durations:
    """The verdict on the run; `why` is the kind of reason why calls could not be split."""
    waiting = waiting_of(calls)
    if waiting is None:
        return Durations("inconclusive", None, None, 1.0, why)
    unsplit = float(calls["dur_ns"][calls["wait_ns"].isna()].sum() / max(calls["dur_ns"].sum(), 1))
    verdict = "skew-bound" if waiting >= SKEW_FROM else "transfer-bound"
    return Durations(
        "inconclusive" if unsplit > 1 - LEAST_SPLIT else verdict,
        waiting,
        culprits.waited() if waiting >= NAMED_FROM else None,
        unsplit,
        why,
    )


def waiting_of(calls: pd.DataFrame) -> float | None:
    """Waiting as a fraction of the time of split calls; None if there is none."""
    split = calls[calls["wait_ns"].notna()]
    took = int(split["dur_ns"].sum())
    return int(split["wait_ns"].sum()) / took if took else None
