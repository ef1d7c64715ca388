"""Every collective with a late rank, and why it was late. `metrics/causes/` explains it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, each_rank, value
from ..core.schema import Schema
from ..core.tables.columns import PARTIAL_MEMBER

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.causes.details import Between, KernelTimes
    from ..metrics.causes.table import Explained
    from ..run.event_tables import EventTables
    from ..run.run import Run

LATENESS = Schema("lateness", "collective with a late rank: beyond clock uncertainty, or too often for chance", {
    "collective_id": ("int64", "collective"),
    "rank": ("int64", "rank that arrived last, or, if there is a root, the one that others waited for longest"),
    "late_ns": (
        "int64",
        "how much later than the rank before it, or than the median if several are late; with a root, the longest wait",
    ),
    "chance": (
        "Float64",
        "probability of coming last so often by chance, where clocks are too uncertain for the lateness; else NA",
    ),
    "caused_wait_ns": ("Int64", "waiting of all other ranks in this collective"),
    "extra_compute_ns": ("Int64", "part of its lateness behind the median of the others: how much longer it computed"),
    "extra_memory_ns": ("Int64", "likewise: how much longer it copied"),
    "extra_comm_ns": ("Int64", "likewise: how much longer other communication held it up"),
    "extra_data_ns": ("Int64", "likewise: how much longer its CPU waited for a batch"),
    "extra_cpu_ns": ("Int64", "likewise: how much later its CPU gave it work"),
    "extra_start_ns": ("Int64", "likewise: how much later the first traced step began; why is before the trace"),
    "new_ns": ("Int64", "how much of that arose since the group's previous collective; the rest is older"),
    "because": ("string", "the largest of these: compute, memory, comm, data, cpu or start; NA if unknown"),
    "origin_rank": ("Int64", "rank with which that began: another one, if that made it wait before"),
    "origin_because": ("string", "why that rank was late, in the same words"),
    "kernel": ("string", "the kernel or operator that took the most additional time on that rank"),
    "kernel_extra_ns": ("Int64", "how much longer"),
    "operator": ("string", "the operator its CPU was in while the device had no work, if the trace shows it"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip

_LOG = logging.getLogger("commtrace.analysis")
_COMPARED = (
    "extra_compute_ns", "extra_memory_ns", "extra_comm_ns", "extra_data_ns", "extra_cpu_ns", "extra_start_ns",
    "new_ns", "because", "origin_rank", "origin_because", "kernel", "kernel_extra_ns", "operator",
)  # fmt: skip


@value
def members_issued(calls: pd.DataFrame, collectives: pd.DataFrame, members: pd.DataFrame) -> pd.DataFrame:
    """The calls of all collectives with when they were issued, their steps and groups."""
    from ..metrics.causes.table import issued_calls

    return issued_calls(calls, collectives, members)


@value
def members_looked_at(members_issued: pd.DataFrame) -> pd.DataFrame:
    """The columns by which it is found when calls were ready."""
    from ..metrics.causes.sequences import LOOKED_AT

    return members_issued[LOOKED_AT]


@value
@each_rank
def members_ready(
    activities: pd.DataFrame,
    launches: pd.DataFrame,
    annotations: pd.DataFrame,
    members_looked_at: pd.DataFrame,
    clocks: pd.DataFrame,
) -> pd.DataFrame:
    """When each call could run at the earliest, and what its rank had done until then."""
    from ..metrics.causes.sequences import RanTables, readiness

    return readiness(RanTables(activities, launches, annotations), members_looked_at, clocks)


@value
def kernel_times(run: Run) -> KernelTimes:
    """Look up how long kernels ran between two times of a rank, where the activities of that rank are."""

    def between(wanted: Mapping[int, list[Between]]) -> dict[int, dict[Between, dict[str, int]]]:
        of_ranks = run.tables.by_rank(_kernel_times, {rank: ({rank: times},) for rank, times in wanted.items()})
        return {rank: found for part in of_ranks for rank, found in part.items()}

    return between


def _kernel_times(tables: EventTables, wanted: Mapping[int, list[Between]]) -> dict[int, dict[Between, dict[str, int]]]:
    from ..metrics.causes.details import computed_between

    return computed_between(tables.activities, wanted)


@value
def explained_lateness(
    kernel_times: KernelTimes,
    members_issued: pd.DataFrame,
    members_ready: pd.DataFrame,
    collectives: pd.DataFrame,
    members: pd.DataFrame,
    clocks: pd.DataFrame,
    detailed: Callable[[int], EventTables],
) -> Explained:
    """Why ranks were late, and the parts of their programs in which they fell behind."""
    from ..metrics.causes.table import explained

    _LOG.info("looking for why ranks were late")
    return explained(
        kernel_times=kernel_times,
        members=members_issued,
        ready=members_ready,
        collectives=collectives,
        participation=members,
        clocks=clocks,
        detailed=detailed,
    )


@TableEntry(
    LATENESS,
    Topic.waiting,
    "Every collective with a late rank, and why it was late.",
    "lateness.md#why-a-rank-was-late",
    command="table lateness",
    after="waits",
    shown=(
        "collective_id", "rank", "late_ns", "caused_wait_ns", "new_ns", "because", "origin_rank", "origin_because",
        "kernel", "kernel_extra_ns", "operator", "partial",
    ),
    none_found="no rank was later than the clocks are uncertain",
    narrow=(
        "collective_id", "rank", "late_ns", "caused_wait_ns", "because", "origin_rank", "origin_because", "kernel",
        "kernel_extra_ns", "operator",
    ),
)  # fmt: skip
def lateness(run: Run, explained_lateness: Explained, members: pd.DataFrame) -> pd.DataFrame:
    """One row per collective with a late rank: how late, and what it did longer than the others."""
    found = LATENESS.frame(explained_lateness.rows)
    # A late rank cannot be compared with one whose file is damaged.
    partial = members["collective_id"][members["rank"].isin(run.partial_ranks)]
    hidden = found["collective_id"].isin(partial)
    return found.assign(**{column: found[column].mask(hidden) for column in _COMPARED})
