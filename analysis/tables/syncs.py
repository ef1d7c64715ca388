"""What calls of the runtime that block or allocate cost. `metrics/device/syncs.py` finds them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, each_rank, value
from ..core.schema import Schema
from ..core.tables.columns import PARTIAL, RANK, STEP_OF_CALL
from ..metrics.over_steps import in_steps

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.device.idle import DeviceGaps, HostTables

_KIND_OF_CALL = (
    "sync: waits for the device; alloc: allocates or frees memory; copy: copies to pageable memory; "
    "long: none of these, or an operator, and takes 1 ms and 100 times as long as usual or more, mostly while a device "
    "is idle; compile: a range in which something compiles"
)
_LOST = (
    "starved time of devices during these calls: sync_ns of `idle` if sync, alloc_ns if alloc; "
    "of long calls the time of launching as well"
)
_COLUMNS = {
    "kind": ("string", _KIND_OF_CALL),
    "name": ("string", "cudaStreamSynchronize, cudaMalloc, cudaFree, ...; or an operator that is long, or a range"),
    "operator": ("string", "innermost CPU operator around it; NA outside of all"),
    "annotation": ("string", "innermost annotation around it, steps excepted; NA outside of all"),
    "calls": ("int64", "how often"),
    "total_ns": ("int64", "sum of the durations; of operators and ranges, of their own time"),
    "longest_ns": ("int64", "longest"),
    "lost_ns": ("int64", _LOST),
    "partial": PARTIAL,
}  # fmt: skip
SYNCS = Schema("syncs", "rank, call of the runtime that blocks or allocates, and operator", {"rank": RANK, **_COLUMNS})
SYNCS_STEPS = Schema("syncs_steps", "rank, step, call of the runtime that blocks or allocates, and operator", {
    "rank": RANK, "step": STEP_OF_CALL, **_COLUMNS,
})  # fmt: skip

_SHOWN = ("lost_ns", "calls", "total_ns", "longest_ns", "kind", "name", "operator", "annotation")
_NARROW = ("name", "operator", "calls", "lost_ns", "total_ns", "annotation", "longest_ns", "kind")
_KEYS = ["kind", "name", "operator", "annotation"]


@value
@each_rank
def calls_that_block(device_gaps: list[DeviceGaps], host_tables: HostTables) -> pd.DataFrame:
    """One row per call or operator that blocks, allocates or is long, and what it costs."""
    from ..metrics.device.syncs import blocking_calls

    return blocking_calls(device_gaps, host_tables)


@TableEntry(
    SYNCS,
    Topic.time,
    "Calls of the runtime that block or allocate, and what they cost.",
    "idle.md#blocking-and-allocating-calls",
    command="table syncs",
    after="gaps",
    shown=("rank", *_SHOWN, "partial"),
    narrow=("rank", *_NARROW),
    none_found="no call of the runtime blocked or allocated",
    none_measured="no call of the runtime blocked or allocated",
    in_steps=True,
)
def syncs(calls_that_block: pd.DataFrame, counted_steps: Collection[int]) -> pd.DataFrame:
    """One row per rank, blocking or allocating call, and operator. None where calls were not read, see `idle`.

    The most costly of a rank are first.
    """
    known = in_steps(calls_that_block, counted_steps)
    # Without steps idle time is that between what a device ran, as in `idle`.
    return SYNCS.conform(_summed(known if counted_steps else known.assign(lost_ns=known["lost_between_ns"]), ["rank"]))


@TableEntry(
    SYNCS_STEPS,
    Topic.time,
    "The same, by step.",
    "idle.md#blocking-and-allocating-calls",
    command="table syncs --by step",
    shown=("rank", "step", *_SHOWN, "partial"),
    narrow=("rank", "step", *_NARROW),
    none_found="no call of the runtime blocked or allocated",
    none_measured="no call of the runtime blocked or allocated",
)
def syncs_steps(calls_that_block: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, blocking or allocating call, operator and step."""
    return SYNCS_STEPS.conform(_summed(calls_that_block, ["rank", "step"]))


def _summed(calls: pd.DataFrame, over: list[str]) -> pd.DataFrame:
    groups = calls.groupby([*over, *_KEYS], dropna=False, sort=True)
    sums = groups.agg(
        calls=("dur_ns", "size"), total_ns=("dur_ns", "sum"), longest_ns=("dur_ns", "max"), lost_ns=("lost_ns", "sum")
    ).reset_index()
    down = ["lost_ns", "total_ns"]
    order = [*(True for _ in over), *(False for _ in down)]
    return sums.sort_values([*over, *down], ascending=order, kind="stable", ignore_index=True)
