"""Verdicts on runs with durations only: how much of communication is waiting, not how much it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd

from ...core.schema import Row
from .culprits import Culprits
from .thresholds import LATENCY_FACTOR, LEAST_SPLIT, MENTIONED_FROM, NAMED_FROM, SKEW_FROM

_NOT_KNOWN = "; how much of it compute hid, these files do not tell"


def of_durations(row: Row, calls: pd.DataFrame, why: str, latency_us: Callable[[], float | None]) -> tuple[str, str]:
    """The verdict on the calls of one size, and its sentence; `why` says why too few could be split, if so.

    `row` is their row of `verdicts`, `latency_us` gives the latency of the collective, None if not known.
    """
    waiting = _waiting(calls)
    if why or waiting is None:
        return "inconclusive", f"only {row['split_calls']} of {row['calls']} calls could be split, because {why}"
    if waiting >= SKEW_FROM:
        return "skew-bound", f"{waiting:.0%} of its time is waiting for other ranks"
    latency = latency_us()
    if latency is not None and row["transfer_us"] < LATENCY_FACTOR * latency:
        return "latency-bound", f"moving it takes {row['transfer_us']:.0f} us, of which {latency:.0f} us are latency"
    return "transfer-bound", f"{1 - waiting:.0%} of its time moves data"


def run_of_durations(calls: pd.DataFrame, culprits: Culprits, why: str) -> tuple[str, str]:
    """The verdict on the run, and its sentence; `why` says why calls could not be split."""
    waiting = _waiting(calls)
    if waiting is None:
        return "inconclusive", f"no call could be split into wait and transfer, because {why}"
    unsplit = float(calls["dur_ns"][calls["wait_ns"].isna()].sum() / max(calls["dur_ns"].sum(), 1))
    text = f"{1 - waiting:.0%} of the time in collectives moves data, {waiting:.0%} is waiting"
    who = "" if waiting < NAMED_FROM else culprits.sentence() if waiting >= SKEW_FROM else culprits.named()
    rest = "".join(_rest(unsplit, why))
    if unsplit > 1 - LEAST_SPLIT:
        return "inconclusive", f"{text}{who}{rest}"
    return "skew-bound" if waiting >= SKEW_FROM else "transfer-bound", f"{text}{who}{rest}{_NOT_KNOWN}"


def _rest(unsplit: float, why: str) -> Iterator[str]:
    if unsplit >= MENTIONED_FROM:
        yield f"; besides, {unsplit:.0%} of all calls' time could not be split, because {why}"


def _waiting(calls: pd.DataFrame) -> float | None:
    """Waiting as a fraction of the time of split calls."""
    split = calls[calls["wait_ns"].notna()]
    took = int(split["dur_ns"].sum())
    return int(split["wait_ns"].sum()) / took if took else None
