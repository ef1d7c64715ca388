"""Every gap of a device: how it divides by cause, and what the host did. `metrics/device/gaps.py` finds them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, each_rank
from ..core.schema import Schema
from ..core.tables.columns import DEVICE, PARTIAL, RANK
from .idle import IDLE

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.device.idle import DeviceGaps

GAPS = Schema("gaps", "gap in what a device ran", {
    "rank": RANK,
    "device": DEVICE,
    "step": ("Int64", "N of the ProfilerStep#N in whose window it lies; NA outside of all"),
    "start_ns": ("int64", "when the device began to be idle, on that rank's clock"),
    "idle_ns": ("int64", "length: nothing ran, no kernel, no copy, no fill"),
    **{name: column for name, column in IDLE.columns.items() if name.endswith("_ns") and column[0] == "Int64"},
    "cause": ("string", "the largest part: sync, alloc, data, operator, outside, launching, queued, unknown"),
    "thread": ("Int64", "thread that launched what ended the gap"),
    "call": ("string", "blocking or allocating call of that thread that covers most of starved_ns; NA without one"),
    "operator": (
        "string", "operator of that thread that took most, or innermost one when it began what else `cause` says; or NA"
    ),
    "annotation": ("string", "innermost annotation at that moment, steps excepted; NA outside of all"),
    "module": ("string", "innermost nn.Module at that moment, Linear_3; NA outside of all, and where none is recorded"),
    "before": ("string", "kernel, copy or fill that ended last"),
    "after": ("string", "kernel, copy or fill that ended the gap"),
    "note": ("string", "why something is NA"),
    "partial": PARTIAL,
})  # fmt: skip

_GAPS = (
    "idle_ns", "cause", "call", "operator", "annotation", "module", "before", "after", "starved_ns", "launching_ns",
    "queued_ns", "unknown_ns", "sync_ns", "alloc_ns", "data_ns", "operator_ns", "outside_ns", "thread", "start_ns",
    "note", "partial",
)  # fmt: skip
_GAPS_NARROW = (
    "idle_ns", "cause", "call", "operator", "annotation", "module", "after", "before", "starved_ns", "queued_ns",
    "launching_ns", "start_ns", "thread",
)  # fmt: skip


@TableEntry(
    GAPS,
    Topic.time,
    "The longest gaps of each device, and what the host did in them.",
    "idle.md#gaps",
    command="table gaps",
    after="account_waits",
    shown=("rank", "device", "step", *_GAPS),
    narrow=("rank", "device", "step", *_GAPS_NARROW),
    none_found="no device was idle between its first activity and its last",
    none_measured="no device was idle between its first activity and its last",
    in_steps=True,
)  # fmt: skip
@each_rank
def gaps(device_gaps: list[DeviceGaps], counted_steps: Collection[int] = ()) -> pd.DataFrame:
    """One row per gap in what a device ran, the longest first: its parts as in `idle`, and what the host did.

    They are of these steps or, without any, between what a device ran.
    """
    from ..metrics.device.gaps import rows_of_gaps

    every = GAPS.concat(map(GAPS.conform, rows_of_gaps(device_gaps)))
    is_between = every["before"].notna() & every["after"].notna()
    every = every[every["step"].isin(counted_steps) if counted_steps else is_between]
    order = ["rank", "device", "idle_ns", "start_ns"]
    return every.sort_values(order, ascending=[True, True, False, True], kind="stable", ignore_index=True)
