"""What limits communication, in one sentence a person understands, with the numbers it rests on."""

from __future__ import annotations

import pandas as pd

from .schema import VERDICTS, Row

# Thresholds; docs/metrics.md, "Verdict", says them to users.
LEAST_SPLIT = 0.5  # of the calls: below, too little is known
HIDDEN_BELOW = 0.1  # of the calls' time is exposed: below, it is hidden
EXPOSED_BELOW = 0.05  # of the window of a run is exposed communication: below, it does not matter
SKEW_FROM = 0.5  # of the exposed time is waiting: from there, skew
LATENCY_FACTOR = 2.0  # a transfer that takes less than twice the latency is latency

_KEYS = ["process_group", "pg_ranks", "collective", "dtype", "size_bytes"]


def verdicts(
    breakdown: pd.DataFrame,
    collectives: pd.DataFrame,
    participation: pd.DataFrame,
    fits: pd.DataFrame,
    ranks: pd.DataFrame,
    lateness: pd.DataFrame,
) -> pd.DataFrame:
    """The run first, then one row per process group, collective, dtype and size, the longest exposed first."""
    calls = participation.merge(collectives[["collective_id", *_KEYS]], on="collective_id")
    if not len(calls):
        return VERDICTS.empty()
    rows = [_measured(dict(zip(_KEYS, keys, strict=True)), own) for keys, own in calls.groupby(_KEYS, dropna=False)]
    for row in rows:
        row["verdict"], row["because"] = _of_size(row, _latency_us(row, fits))
    rows.sort(key=lambda row: -(row["exposed_ns"] or 0))
    run = _measured({"collective": "run"}, calls)
    run["verdict"], run["because"] = _of_run(run, breakdown, ranks, lateness)
    return VERDICTS.frame([run, *rows])


def _measured(row: Row, calls: pd.DataFrame) -> Row:
    split = calls[calls["wait_ns"].notna()]
    wait, transfer = int(split["exposed_wait_ns"].sum()), int(split["exposed_transfer_ns"].sum())
    spent = int(split["dur_ns"].sum())
    return row | {
        "calls": len(calls),
        "split_calls": len(split),
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


def _of_size(row: Row, latency_us: float | None) -> tuple[str, str]:
    verdict = _inconclusive(row)
    if verdict is not None:
        return verdict
    waiting, hidden = row["exposed_wait_frac"], row["hidden_frac"]
    if hidden is not None and hidden > 1 - HIDDEN_BELOW:
        return "hidden", f"{hidden:.0%} of its time lies behind compute"
    if waiting is not None and waiting >= SKEW_FROM:
        return "skew-bound", f"{waiting:.0%} of its exposed time is waiting for other ranks"
    if latency_us is not None and row["transfer_us"] < LATENCY_FACTOR * latency_us:
        return "latency-bound", f"moving it takes {row['transfer_us']:.0f} us, of which {latency_us:.0f} us are latency"
    return "transfer-bound", f"{1 - (waiting or 0):.0%} of its exposed time moves data"


def _inconclusive(row: Row) -> tuple[str, str] | None:
    if row["split_calls"] < LEAST_SPLIT * row["calls"] or not row["split_calls"]:
        return (
            "inconclusive",
            f"only {row['split_calls']} of {row['calls']} calls could be split into wait and transfer",
        )
    return None


def _of_run(row: Row, breakdown: pd.DataFrame, ranks: pd.DataFrame, lateness: pd.DataFrame) -> tuple[str, str]:
    exposed = float(breakdown["exposed_comm_ns"].sum()) / float(breakdown["window_ns"].sum())
    share = f"{exposed:.0%} of the time is exposed communication"
    unknown = _inconclusive(row)
    if unknown is not None:
        return unknown[0], f"{share}; {unknown[1]}"
    if exposed < EXPOSED_BELOW:
        return "hidden", f"{share}; the rest is hidden behind compute, or there is little of it"
    waiting = row["exposed_wait_frac"] or 0
    if waiting < SKEW_FROM:
        return (
            "transfer-bound",
            f"{share}; {1 - waiting:.0%} of that moves data, {waiting:.0%} is waiting for other ranks",
        )
    return "skew-bound", f"{share}; {waiting:.0%} of that is waiting{_for_whom(ranks, lateness)}"


def _for_whom(ranks: pd.DataFrame, lateness: pd.DataFrame) -> str:
    caused = ranks["caused_wait_ns"].fillna(0).astype("float64")
    if caused.sum() == 0:
        return " for other ranks"
    rank = int(ranks["rank"].iloc[int(caused.to_numpy().argmax())])
    own = lateness[lateness["rank"] == rank]
    text = f", {caused.max() / caused.sum():.0%} of it for rank {rank}"
    reasons = own[own["because"].notna()]
    if not len(reasons):
        return text
    because = str(reasons.groupby("because")["late_ns"].sum().idxmax())
    extra_ms = float(reasons.loc[reasons["because"] == because, f"extra_{because}_ns"].median()) / 1e6
    kernel = ranks.loc[ranks["rank"] == rank, "kernel"].iloc[0]
    where = f", mostly in {_short(str(kernel))}" if because == "compute" and not pd.isna(kernel) else ""
    longer = f"{extra_ms:.1f} ms" if extra_ms >= 0.1 else f"{extra_ms * 1000:.0f} us"
    return text + f", which {_DOES[because]} {longer} longer than the others{where}"


_DOES = {
    "compute": "computes",
    "memory": "copies",
    "comm": "is in other communication",
    "idle": "gets no work from its CPU",
}


def _short(name: str) -> str:
    """A kernel's name without template arguments and parameters."""
    plain = name.removeprefix("void ").split("<")[0].split("(")[0].strip()
    return plain[-60:] or name[:60]
