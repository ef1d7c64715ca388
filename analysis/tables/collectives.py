"""Every collective, all ranks together. `metrics/waiting.py` measures them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from ...common.wording import counted
from ..core.declaring import TableEntry, Topic, value
from ..core.schema import Schema
from ..core.tables.columns import COLLECTIVE, DTYPE, GROUP, PARTIAL_MEMBER, PG_RANKS

if TYPE_CHECKING:
    import pandas as pd

    from ..run.run import Run

COLLECTIVES = Schema("collectives", "collective, all ranks together", {
    "collective_id": ("int64", "number of the collective in this run, by first start"),
    "collective": COLLECTIVE,
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "group_size": ("Int64", "ranks in the process group; 2 for send_recv"),
    "dtype": DTYPE,
    "size_bytes": ("Int64", "size S; for an uneven all_to_all, the largest over the ranks"),
    "seq": ("Int64", "sequence number within the process group"),
    "matched_by": ("string", "comms_id, seq, step, order, time, or none: a call that could not be matched"),
    "certain": ("boolean", "no other pairing of the calls fits as well; False for an unmatched call"),
    "note": ("string", "why it is unmatched, uncertain or partial, or has no transfer time"),
    "ranks": ("string", "ranks seen, ascending, separated by spaces"),
    "complete": ("boolean", "every rank of the process group was seen"),
    "hot_rank": ("Int64", "rank that sends or receives most in an uneven all_to_all; NA if it is even"),
    "imbalance_frac": ("Float64", "how far that is above the mean over the ranks"),
    "first_start_ns": ("int64", "earliest start"),
    "last_start_ns": ("Int64", "latest start: the last rank arrives"),
    "last_end_ns": ("int64", "latest end"),
    "first_rank": ("Int64", "rank that arrived first"),
    "last_rank": ("Int64", "rank that arrived last, of those seen"),
    "last_by_ns": ("Int64", "how much later the last rank arrived than the one before it"),
    "arrival_skew_ns": ("Int64", "latest start - earliest start"),
    "end_skew_ns": ("Int64", "latest end - earliest end"),
    "min_dur_ns": ("int64", "shortest duration"),
    "last_arrival_to_last_end_ns": ("Int64", "latest end - latest start"),
    "transfer_low_ns": ("Int64", "lower bound: min_dur_ns, without clocks; less for a receiving CPU or if ends differ"),
    "transfer_high_ns": ("Int64", "upper bound: from when data could move to the latest end, or a receiving CPU's"),
    "transfer_ns": ("Int64", "median of durations without waiting, of ranks that end together; a receiving CPU's"),
    "algbw_gb_per_s": ("Float64", "size_bytes / transfer_ns"),
    "algbw_low_gb_per_s": ("Float64", "size_bytes / transfer_high_ns"),
    "algbw_high_gb_per_s": ("Float64", "size_bytes / transfer_low_ns"),
    "busbw_gb_per_s": ("Float64", "algbw x bus factor"),
    "busbw_low_gb_per_s": ("Float64", "algbw_low x bus factor"),
    "busbw_high_gb_per_s": ("Float64", "algbw_high x bus factor"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip


_LOG = logging.getLogger("commtrace.analysis")


@value
def matches(run: Run, calls: pd.DataFrame, pending: pd.DataFrame) -> pd.DataFrame:
    """Which collective each call belongs to."""
    from ..metrics.matching.ladder import Evidence, matches_of

    evidence = Evidence(
        probes=run.clock_probes,
        pending=pending,
        groups=run.process_groups,
        world_size=run.world_size,
        has_starts=run.has_starts,
    )
    _LOG.info("matching %s of %s", counted(len(calls), "call"), counted(len(run.ranks), "rank"))
    return matches_of(calls, run.hosts, evidence)


@TableEntry(
    COLLECTIVES,
    Topic.communication,
    "Every collective: arrival skew, transfer time, bandwidth.",
    "matching.md#methods",
    command="table collectives",
    after="calls",
    shown=(
        "collective_id", "collective", "process_group", "ranks", "dtype", "size_bytes", "matched_by",
        "first_start_ns", "arrival_skew_ns", "last_rank", "transfer_ns", "algbw_gb_per_s", "busbw_gb_per_s",
        "busbw_low_gb_per_s", "busbw_high_gb_per_s", "note", "partial",
    ),
    narrow=(
        "collective_id", "collective", "size_bytes", "arrival_skew_ns", "last_rank", "transfer_ns",
        "busbw_gb_per_s", "matched_by", "process_group", "first_start_ns", "dtype", "busbw_low_gb_per_s",
        "busbw_high_gb_per_s", "algbw_gb_per_s", "ranks", "note",
    ),
)  # fmt: skip
def collectives(
    calls: pd.DataFrame,
    matches: pd.DataFrame,
    split_calls: pd.DataFrame,
    clocks: pd.DataFrame,
    world_size_at_most: int | None,
    sharing: Collection[int] = frozenset(),
) -> pd.DataFrame:
    """One row per collective, all ranks together."""
    from ..metrics.waiting import measured_collectives

    return COLLECTIVES.conform(measured_collectives(calls, matches, split_calls, clocks, world_size_at_most, sharing))
