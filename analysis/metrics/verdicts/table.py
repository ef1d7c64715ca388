"""The table `verdicts`. Thresholds and rules: docs/metrics/verdicts.md."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pandas as pd

from ...core.schema import Row, records
from ...core.tables.lateness import VERDICTS
from ...core.wording import counted
from ..causes.blame import kernel_of
from .culprits import Culprits, length
from .durations import of_durations, run_of_durations
from .thresholds import (
    EXPOSED_BELOW,
    HIDDEN_BELOW,
    LATENCY_FACTOR,
    LEAST_SPLIT,
    MENTIONED_FROM,
    NAMED_FROM,
    SKEW_FROM,
)
from .unsplit import reason

_KEYS = ["process_group", "pg_ranks", "collective", "dtype", "size_bytes"]
_SURELY_HANGS_NS = 1_000_000_000


class Measured(NamedTuple):
    """The tables a verdict rests on; `missing` ranks of the job have no trace, `world_size` is None if not known.

    If not `has_starts`, only durations are known, and nothing of what was exposed.
    """

    breakdown: pd.DataFrame
    collectives: pd.DataFrame
    participation: pd.DataFrame
    fits: pd.DataFrame
    hangs: pd.DataFrame
    missing: list[int]
    world_size: int | None
    has_starts: bool = True


def verdicts(measured: Measured, culprits: Culprits) -> pd.DataFrame:
    """The run first, then one row per process group, collective, dtype and size, the longest exposed first."""
    calls = measured.participation.merge(measured.collectives[["collective_id", *_KEYS]], on="collective_id")
    if not len(calls) and not len(measured.hangs):
        return VERDICTS.empty()
    rows: list[tuple[int, Row]] = []
    for keys, own in calls.groupby(_KEYS, dropna=False):
        row = _measured(dict(zip(_KEYS, keys, strict=True)), own)
        why = "" if row["split_frac"] is not None and row["split_frac"] >= LEAST_SPLIT else _reason(own, measured)
        if measured.has_starts:
            row["verdict"], row["because"] = _of_size(row, _latency_us(row, measured.fits), why)
        else:
            row |= _NOTHING_EXPOSED
            latency_us = partial(_latency_us, row, measured.fits)
            row["verdict"], row["because"] = of_durations(row, own, why, latency_us)
        rows.append((int(own["dur_ns"].sum()), row))
    run = _measured({"collective": "run"}, calls)
    if measured.has_starts:
        rows = [(row["exposed_ns"] or 0, row) for _, row in rows]
        run["verdict"], run["because"] = _of_run(measured, culprits, run)
    else:
        run |= _NOTHING_EXPOSED
        run["verdict"], run["because"] = run_of_durations(calls, culprits, _reason(calls, measured))
    rows.sort(key=lambda row: -row[0])
    return VERDICTS.frame([run, *(row for _, row in rows)])


_NOTHING_EXPOSED: Row = {"exposed_ns": None, "exposed_wait_frac": None, "hidden_frac": None}


def _reason(calls: pd.DataFrame, measured: Measured) -> str:
    ranks = set(measured.breakdown["rank"]) if measured.has_starts else set(measured.participation["rank"])
    return reason(
        calls,
        measured.collectives,
        ranks,
        some_missing=bool(measured.missing),
        has_starts=measured.has_starts,
    )


def _measured(row: Row, calls: pd.DataFrame) -> Row:
    """Counts and shares. Sends and receives that one kernel does count once."""
    kernels = calls[~kernel_of(calls).duplicated()]
    split = kernels[kernels["wait_ns"].notna()]
    wait, transfer = int(split["exposed_wait_ns"].sum()), int(split["exposed_transfer_ns"].sum())
    spent, every = int(split["dur_ns"].sum()), int(kernels["dur_ns"].sum())
    return row | {
        "calls": len(calls),
        "split_calls": int(calls["wait_ns"].notna().sum()),
        "split_frac": spent / every if every else None,
        "exposed_ns": wait + transfer if len(split) else None,
        "exposed_wait_frac": wait / (wait + transfer) if wait + transfer else None,
        "hidden_frac": 1 - (wait + transfer) / spent if spent else None,
        "transfer_us": float(split["transfer_ns"].median()) / 1000 if len(split) else None,
    }


def _latency_us(row: Row, fits: pd.DataFrame) -> float | None:
    same = fits["collective"] == row["collective"]
    for key in ("process_group", "pg_ranks"):
        same &= (fits[key] == row[key]).fillna(False) | (fits[key].isna() & pd.isna(row[key]))
    return float(fits.loc[same, "latency_us"].iloc[0]) if same.any() else None


def _of_size(row: Row, latency_us: float | None, why: str) -> tuple[str, str]:
    if (row["split_frac"] or 0) < LEAST_SPLIT:
        return "inconclusive", f"{_unsplit_calls(row)}, because {why}"
    waiting, hidden = row["exposed_wait_frac"], row["hidden_frac"]
    if hidden is not None and hidden > 1 - HIDDEN_BELOW:
        return "hidden", f"{hidden:.0%} of its time lies behind compute"
    if waiting is not None and waiting >= SKEW_FROM:
        return "skew-bound", f"{waiting:.0%} of its exposed time is waiting for other ranks"
    if latency_us is not None and row["transfer_us"] < LATENCY_FACTOR * latency_us:
        return "latency-bound", f"moving it takes {row['transfer_us']:.0f} us, of which {latency_us:.0f} us are latency"
    return "transfer-bound", f"{1 - (waiting or 0):.0%} of its exposed time moves data"


def _alone(participation: pd.DataFrame) -> str:
    """What durations alone say: how much longer calls take than the fastest similar ones."""
    known = participation[participation["excess_ns"].notna()]
    spent = int(known["dur_ns"].sum())
    if not spent:
        return ""
    more = int(known["excess_ns"].sum()) / spent
    if more < MENTIONED_FROM:
        return ""
    return (
        f"; not measured, but seen: {more:.0%} of the calls' time is beyond the fastest call like it, probably waiting"
    )


def _unsplit_calls(row: Row) -> str:
    return f"only {row['split_calls']} of {row['calls']} calls could be split into wait and transfer"


def _of_run(measured: Measured, culprits: Culprits, row: Row) -> tuple[str, str]:
    if len(measured.hangs):
        return "hang", _hang(records(measured.hangs.head(1))[0])
    sums = measured.breakdown[[f"exposed_{part}_ns" for part in ("comm", "wait", "transfer", "unsplit")]].sum()
    comm, wait, transfer, unsplit = (float(ns) for ns in sums)
    share = comm / max(float(measured.breakdown["window_ns"].astype("float64").sum()), 1.0)
    text = f"{_of_job(measured)}{share:.0%} of the time is exposed communication"
    if share < EXPOSED_BELOW:
        return "hidden", f"{text}; the rest is hidden behind compute, or there is little of it"
    waiting, moving, unknown = (ns / comm if comm else 0.0 for ns in (wait, transfer, unsplit))
    unsplit_text = f", {unknown:.0%} could not be split" if unknown >= MENTIONED_FROM else ""
    parts = f"{text}; {moving:.0%} of that moves data, {waiting:.0%} is waiting{unsplit_text}"
    why = _reason(measured.participation, measured) if unknown >= MENTIONED_FROM else ""
    at_least = _waited_at_least(measured, wait) / comm if comm else 0.0
    if at_least >= SKEW_FROM > waiting:
        return "skew-bound", f"{text}; at least {at_least:.0%} of that is waiting{culprits.named()} ({why})"
    if not row["split_calls"]:
        return "inconclusive", f"{text}; {_unsplit_calls(row)}, because {why}{_alone(measured.participation)}"
    if unknown > abs(waiting - moving) or unknown > 1 - LEAST_SPLIT:
        low = f", at least {at_least:.0%} in all is waiting" if at_least - waiting >= MENTIONED_FROM else ""
        return "inconclusive", f"{parts}{low}, because {why}"
    cost = wait / 1e6 / len(measured.breakdown) / max(culprits.steps, 1)
    per = f" ({length(cost)} per step and rank)" if culprits.steps else ""
    because = f" ({why})" if why else ""
    if waiting < moving:
        who = culprits.named() if waiting >= NAMED_FROM else ""
        return "transfer-bound", parts.replace("is waiting", "is waiting" + (who or " for other ranks")) + because
    told = f"{text}; {waiting:.0%} of that is waiting{per}{culprits.sentence()}"
    return "skew-bound", told + (f"; {unknown:.0%} of the exposed time could not be split{because}" if because else "")


def _waited_at_least(measured: Measured, wait_ns: float) -> float:
    """Exposed waiting, including the least that calls that could not be split waited, in ns."""
    kernels = measured.participation[~kernel_of(measured.participation).duplicated()]
    unsplit = kernels[kernels["wait_ns"].isna()]
    return wait_ns + float(unsplit["exposed_wait_low_ns"].sum())


def _of_job(measured: Measured) -> str:
    """`of 7 of 8 ranks: `, where traces are missing."""
    if not measured.missing:
        return ""
    seen = measured.breakdown["rank"].nunique()
    return f"of {seen} of {measured.world_size} ranks, the others have no trace: "


def _hang(row: Row) -> str:
    number = f" number {row['seq']}" if row["seq"] is not None else ""
    group = f" of group {row['process_group']}" if row["process_group"] is not None else ""
    step = f" in step {row['step']}" if row["step"] is not None else ""
    waiting = row["waiting"].split()
    what = f"{row['collective'] or 'a collective'}{number}{group}{step}"
    usual = f", where {length(row['usual_ns'] / 1e6)} is the longest otherwise" if row["usual_ns"] else ""
    longest = f"{length(row['waited_ns'] / 1e6)}{usual}"
    if not row["missing"]:
        return f"{what} was issued on all {counted(len(waiting), 'rank')} and did not end on any within {longest}"
    missing = row["missing"].split()
    who = f"rank {', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}"
    doubt = "" if row["waited_ns"] >= _SURELY_HANGS_NS else "; or the capture ended in a pause"
    return f"{who} never issued {what}; {_count(len(waiting))} for it for {longest}{doubt}"


def _count(ranks: int) -> str:
    return f"{ranks} ranks wait" if ranks > 1 else "1 rank waits"
