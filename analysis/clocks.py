"""Do the ranks share a clock? Waiting can only be told from moving data where they do."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from .nccl_tests import SYNCHRONISING


@dataclass(frozen=True)
class Clock:
    """Whether start times of different ranks can be compared, and why."""

    shared: bool
    reason: str


def clock(traces: pd.DataFrame, calls: pd.DataFrame, matches: pd.DataFrame) -> Clock:
    """One host is one clock. Where hosts are not known, no collective may end on a rank before all have arrived."""
    if traces["rank"].nunique() < 2:
        return Clock(False, "only one rank has a trace")
    hosts = sorted(set(traces["host"].dropna()))
    if len(hosts) > 1:
        return Clock(
            False, f"the ranks ran on {len(hosts)} hosts ({', '.join(hosts[:4])}), whose clocks are not aligned"
        )
    impossible, checked = _impossible(calls, matches)
    if impossible:
        return Clock(
            False,
            f"{impossible} of {checked} matched collectives end on one rank before they start on another: "
            "the clocks differ, or calls were matched wrongly",
        )
    if len(hosts) == 1 and traces["host"].notna().all():
        return Clock(True, f"all ranks ran on {hosts[0]}")
    if not checked:
        return Clock(False, "hosts are not known, and no matched collective could show that the clocks agree")
    return Clock(True, f"hosts are not known; all {checked} matched collectives agree with one clock")


def _impossible(calls: pd.DataFrame, matches: pd.DataFrame) -> tuple[int, int]:
    """How many matched collectives contradict one clock, and how many were looked at."""
    own = calls[calls["collective"].isin(SYNCHRONISING) | calls["collective"].isna()]
    matched = matches[matches["matched_by"] != "none"].merge(own, on="call_id")
    if not len(matched):
        return 0, 0
    ends = matched["start_ns"] + matched["dur_ns"]
    grouped = matched.assign(end_ns=ends).groupby("collective_id")
    wrong = grouped["start_ns"].max() > grouped["end_ns"].min()
    return int(wrong.sum()), len(wrong)
