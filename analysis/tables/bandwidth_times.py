"""Bandwidth and waiting in every minute. `metrics/over_time.py` adds them up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic
from ..core.schema import Schema
from ..core.tables.columns import COLLECTIVE, GROUP, PARTIAL_MEMBER, PG_RANKS

if TYPE_CHECKING:
    import pandas as pd

_MINUTE_NS = 60_000_000_000

BANDWIDTH_TIMES = Schema("bandwidth_times", "interval, process group, collective and size class", {
    "begin": ("string", "when the interval begins, in UTC"),
    "begin_ns": ("int64", "the same since 1970"),
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "group_size": ("Int64", "ranks in the process group"),
    "collective": COLLECTIVE,
    "size_from_bytes": ("Int64", "sizes S from this to less than twice as much; NA where they are not known"),
    "calls": ("int64", "collectives of which any rank shows its call"),
    "split_calls": ("int64", "collectives that could be split into wait and transfer"),
    "busbw_gb_per_s": ("Float64", "bus bandwidth: sum of sizes x bus factor / sum of transfer times"),
    "busbw_median_gb_per_s": ("Float64", "median over the collectives, to 0.14 %"),
    "busbw_p95_gb_per_s": ("Float64", "95th percentile over the collectives, to 0.14 %"),
    "busbw_min_gb_per_s": ("Float64", "that of the slowest"),
    "busbw_low_gb_per_s": ("Float64", "with the upper bound of every transfer time"),
    "busbw_high_gb_per_s": ("Float64", "with the lower bound of every transfer time"),
    "busbw_from_dur_gb_per_s": ("Float64", "from whole durations, waiting included"),
    "busbw_logged_gb_per_s": ("Float64", "mean of what NCCL Inspector itself logged, waiting included; NA for traces"),
    "wait_frac": ("Float64", "waiting / time in the collectives that could be split, over all ranks"),
    "wait_low_frac": ("Float64", "waiting / time in all collectives, where ranks are missing at least so much"),
    "straggler_rank": ("Int64", "the rank for which the others waited longest as the last to arrive"),
    "straggler_frac": ("Float64", "part of the waiting that was for this rank"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip


@TableEntry(
    BANDWIDTH_TIMES,
    Topic.communication,
    "Bandwidth, waiting, and the rank waited for, in every minute.",
    "over-time.md#by-time",
    command="bandwidth --by time",
    after="bandwidth",
    shown=(
        "begin", "process_group", "group_size", "collective", "size_from_bytes", "calls", "split_calls",
        "busbw_gb_per_s", "busbw_median_gb_per_s", "busbw_p95_gb_per_s", "busbw_min_gb_per_s",
        "busbw_logged_gb_per_s", "wait_frac", "straggler_rank", "straggler_frac", "partial",
    ),
    narrow=(
        "begin", "collective", "size_from_bytes", "calls", "busbw_gb_per_s", "wait_frac", "straggler_rank",
        "busbw_min_gb_per_s", "busbw_logged_gb_per_s", "process_group", "straggler_frac", "split_calls",
    ),
)  # fmt: skip
def bandwidth_times(collectives: pd.DataFrame, members: pd.DataFrame) -> pd.DataFrame:
    """One row per minute, process group, collective and size class."""
    return bandwidth_over_time(collectives, members, _MINUTE_NS)


def bandwidth_over_time(collectives: pd.DataFrame, members: pd.DataFrame, every_ns: int) -> pd.DataFrame:
    """One row per interval of `every_ns`, process group, collective and size class."""
    from ..metrics.over_time import collectives_over_time

    return BANDWIDTH_TIMES.frame(collectives_over_time(collectives, members, every_ns))
