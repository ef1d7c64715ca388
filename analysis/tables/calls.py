"""Every communication call of every rank. `metrics/calls/calls.py` finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, value
from ..core.schema import Schema
from ..core.tables.columns import (
    COLLECTIVE,
    CYCLE,
    DEVICE,
    DTYPE,
    GROUP,
    PARTIAL,
    PG_RANKS,
    RANK,
    ROOT,
    SIZE,
    STEP,
    TURN,
)
from ..core.tables.communication import PENDING

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.calls.calls import Communication
    from ..run.run import Run

CALLS = Schema("calls", "rank and collective call", {
    "call_id": ("int64", "number of the call in this run, by rank and start"),
    "rank": RANK,
    "cycle": CYCLE,
    "device": DEVICE,
    "stream": ("int64", "stream; on CPU runs the thread"),
    "step": STEP,
    "name": ("string", "kernel, or gloo operation"),
    "collective": COLLECTIVE,
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "group_size": ("Int64", "ranks in the process group"),
    "dtype": DTYPE,
    "in_elems": ("Int64", "input elements of this rank"),
    "out_elems": ("Int64", "output elements of this rank"),
    "in_split": ("string", "all_to_all: rows of dimension 0 for each rank of the group, as recorded"),
    "out_split": ("string", "all_to_all: rows of dimension 0 from each rank of the group, as recorded"),
    "size_bytes": SIZE,
    "seq": ("Int64", "sequence number within the process group"),
    "comms_id": ("string", "id that is equal on all ranks of one collective"),
    "root": ROOT,
    "turn": TURN,
    "batch": ("Int64", "number of the first of the sends and receives that run as one kernel; NA for a single one"),
    "issue_ns": ("Int64", "start of its launch, or c10d operator; NA if enqueued before the profiler started"),
    "start_ns": ("int64", "start on that rank's clock"),
    "dur_ns": ("int64", "duration, waiting included"),
    "metadata_from": ("string", "kernel, record_param_comms, annotation, c10d, name, dump or none"),
    "partial": PARTIAL,
})  # fmt: skip


@value
def found_calls(run: Run) -> Communication:
    """All calls of the run as its files show them, and those that were issued but do not run in any."""
    from ..metrics.calls.calls import Communication, calls_of_run

    events = run.tables.whole
    found = calls_of_run(
        activities=events.activities,
        launches=events.launches,
        annotations=events.annotations,
        comm_args=events.comm_args,
        process_groups=run.process_groups,
        hosts=run.hosts,
    )
    return Communication(CALLS.frame(found.calls), PENDING.frame(found.pending))


@value
def pending(found_calls: Communication) -> pd.DataFrame:
    """One row per call that was issued, but that no trace shows running."""
    return found_calls.pending


@TableEntry(
    CALLS,
    Topic.communication,
    "Every communication call of every rank.",
    "calls.md#what-is-known-of-a-call",
    command="table calls",
    after="copies",
    shown=(
        "rank", "device", "stream", "step", "collective", "process_group", "group_size", "dtype", "size_bytes",
        "seq", "start_ns", "dur_ns", "metadata_from", "partial",
    ),
    narrow=(
        "rank", "device", "step", "collective", "size_bytes", "start_ns", "dur_ns", "process_group", "seq",
        "group_size", "dtype",
    ),
)  # fmt: skip
def calls(found_calls: Communication) -> pd.DataFrame:
    """One row per rank and collective call."""
    from ..metrics.calls.calls import shown_once

    return CALLS.conform(shown_once(found_calls.calls))
