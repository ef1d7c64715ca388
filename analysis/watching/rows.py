"""The tables of one profiling cycle -> its row of `cycles`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import pandas as pd

from ...common.wording import counted, ranges_of
from ..core.schema import Row, records
from ..results.analysis import Analysis

_MAIN = ["collective", "size_bytes", "group_size"]


def cycle_row(tables: Analysis) -> Row:
    """What `cycles` says of a cycle, but for its name, its number and the limits that it passed."""
    run = tables.run
    times = _times(tables)
    verdict, communicates, split = records(tables.verdicts.head(1)), len(tables.calls) > 0, times["exposed_wait_frac"]
    notes = [
        *([] if times["steps"] else ["no steps are marked"]),
        *([] if communicates else ["no communication was traced"]),
        *(["no call could be split into wait and transfer"] if communicates and split is None else []),
        *run.failed,
        *_repaired(run),
    ]
    return {
        "ended_utc": _utc(run.ends_ns),
        "ranks": len(run.ranks),
        "world_size": run.world_size,
        "missing": ranges_of(run.missing_ranks) or None,
        **times,
        **_main_collective(tables.collectives),
        **_blamed(tables.ranks),
        "verdict": verdict[0]["verdict"] if verdict else None,
        "note": _sentences(notes),
        "partial": bool(run.partial_ranks),
    }


def _repaired(run: Any) -> Iterable[str]:
    """How much of the traces was repaired; of a damaged one `partial` says that it was not used whole."""
    whole = run.traces[~run.traces["partial"].fillna(False).astype(bool)]
    repaired = int(whole["not_understood_bytes"].fillna(0).sum())
    if repaired:
        yield f"repaired {counted(repaired, 'byte')} of invalid JSON"


def unusable_row(reason: str) -> Row:
    """The row of a cycle of which no file could be used."""
    return {"ranks": 0, "steps": 0, "note": reason, "partial": False}


def _times(tables: Analysis) -> Row:
    steps = tables.breakdown_steps
    table = steps if len(steps) else tables.breakdown
    split = table[table["exposed_wait_ns"].notna()]
    return {
        "steps": steps["step"].nunique(),
        "step_ns": round(steps["window_ns"].mean()) if len(steps) else None,
        "exposed_comm_frac": _ratio(table["exposed_comm_ns"], table["window_ns"]),
        "exposed_wait_frac": _ratio(split["exposed_wait_ns"], split["window_ns"]),
    }


def _ratio(part: pd.Series[Any], whole: pd.Series[Any]) -> float | None:
    """As floats: with wrong clocks, sums may exceed 64 bits."""
    total = float(whole.astype("float64").sum())
    return float(part.astype("Float64").sum()) / total if total else None


def _main_collective(collectives: pd.DataFrame) -> Row:
    known = collectives.dropna(subset=["busbw_gb_per_s", "transfer_ns"])
    known = known[known["transfer_ns"] > 0]
    if not len(known):
        return {}
    time_ns = known["transfer_ns"].astype("float64")
    keys = [known[column] for column in _MAIN]
    sums = pd.DataFrame({"ns": time_ns, "moved": known["busbw_gb_per_s"] * time_ns}).groupby(keys, dropna=False).sum()
    longest = int(sums["ns"].to_numpy().argmax())
    named = records(sums.index.to_frame(index=False).iloc[[longest]])[0]
    rate = float(sums["moved"].iloc[longest] / sums["ns"].iloc[longest])
    return {"collective": named["collective"], "size_bytes": named["size_bytes"], "busbw_gb_per_s": rate}


def _blamed(ranks: pd.DataFrame) -> Row:
    causing = ranks[ranks["caused_wait_ns"].fillna(0) > 0]
    if not len(causing):
        return {}
    worst = records(causing.sort_values("caused_wait_ns", ascending=False, kind="stable").head(1))[0]
    return {"blamed_rank": worst["rank"], "caused_wait_frac": worst["caused_wait_frac"]}


def _utc(ends_ns: pd.Series[int]) -> str | None:
    if not len(ends_ns):
        return None
    middle_ns = int(ends_ns.sort_values().iloc[(len(ends_ns) - 1) // 2])
    return datetime.fromtimestamp(middle_ns // 10**9, timezone.utc).isoformat()


def _sentences(notes: Iterable[str]) -> str | None:
    return "; ".join(dict.fromkeys(notes)) or None
