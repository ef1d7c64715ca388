"""Where the time of each device goes: computing, communicating, both, copying, or idle."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, Worst, each_rank, value
from ..core.schema import Schema
from ..core.tables.columns import DEVICE, NO_STEPS_MARKED, PARTIAL, RANK, STEP_NUMBER
from ..metrics.over_steps import breakdown_over

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.device.breakdown import Devices
    from ..metrics.typical_step import TypicalStep

_COUNTS = {
    "n_compute": ("int64", "compute activities"),
    "n_comm": ("int64", "communication activities"),
    "n_memory": ("int64", "copies and fills"),
}
_BREAKDOWN = {
    "window_ns": ("int64", "length of the window: of a step, of all steps that count, or first start to last end"),
    "compute_ns": ("int64", "time with at least one compute kernel running"),
    "comm_ns": ("int64", "time with at least one communication kernel running"),
    "overlap_ns": ("int64", "time with both: communication that is hidden"),
    "exposed_comm_ns": ("int64", "comm_ns - overlap_ns"),
    "exposed_wait_ns": ("Int64", "part of exposed_comm_ns spent waiting for others; NA if none of it could be split"),
    "exposed_transfer_ns": ("Int64", "part of exposed_comm_ns in which data moved; NA if none of it could be split"),
    "exposed_unsplit_ns": ("int64", "part of exposed_comm_ns that is neither: calls not split, sends not yet checked"),
    "exposed_memory_ns": ("int64", "time with only copies and fills running"),
    "idle_ns": ("int64", "time with nothing running"),
    "exposed_comm_frac": ("Float64", "exposed_comm_ns / window_ns"),
    "hidden_comm_frac": ("Float64", "overlap_ns / comm_ns, NA without communication"),
    "partial": PARTIAL,
}  # fmt: skip

BREAKDOWN = Schema("breakdown", "rank and device", {
    "rank": RANK,
    "device": DEVICE,
    "cycles": ("int64", "profiling cycles that were recorded"),
    "steps": ("Int64", "steps summed here, those that count; NA where it is all that was recorded"),
    **_COUNTS,
    "n_no_step": ("int64", "activities launched outside every step, mostly before the profiler started"),
    **_BREAKDOWN,
})  # fmt: skip

BREAKDOWN_STEPS = Schema("breakdown_steps", "rank, device and step", {
    "rank": RANK,
    "device": DEVICE,
    "step": STEP_NUMBER,
    **_COUNTS,
    **_BREAKDOWN,
})  # fmt: skip


@value
@each_rank
def seen_devices(activities: pd.DataFrame, calls: pd.DataFrame, has_starts: bool) -> Devices:
    """What each device did, as far as its own rank tells; nothing where it is not known when."""
    from ..metrics.device.breakdown import device_spans, devices_of

    return devices_of(activities, device_spans(calls)) if has_starts else {}


@value
def recorded_breakdown(seen_devices: Devices, believed_splits: pd.DataFrame) -> pd.DataFrame:
    """The breakdown of all that was recorded."""
    from ..metrics.device.breakdown import breakdown_rows

    return BREAKDOWN.frame(breakdown_rows(seen_devices, believed_splits))


@TableEntry(
    BREAKDOWN,
    Topic.time,
    "Where each device's time went: compute, communication, idle.",
    "breakdown.md#window-and-breakdown",
    command="breakdown",
    after="activities",
    shown=(
        "rank", "device", "window_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "exposed_wait_ns",
        "exposed_transfer_ns", "exposed_unsplit_ns", "exposed_memory_ns", "idle_ns", "exposed_comm_frac",
        "hidden_comm_frac", "partial",
    ),
    title="Where the time went",
    narrow=(
        "rank", "device", "window_ns", "compute_ns", "exposed_comm_ns", "idle_ns", "exposed_wait_ns",
        "exposed_transfer_ns", "exposed_comm_frac", "exposed_memory_ns", "hidden_comm_frac", "comm_ns", "partial",
    ),
    worst=Worst("exposed_comm_ns"),
    in_steps=True,
)  # fmt: skip
def breakdown(
    recorded_breakdown: pd.DataFrame, breakdown_steps: pd.DataFrame, counted_steps: Collection[int]
) -> pd.DataFrame:
    """One row per rank and device."""
    return breakdown_over(recorded_breakdown, breakdown_steps, counted_steps)


@TableEntry(
    BREAKDOWN_STEPS,
    Topic.time,
    "The breakdown by step.",
    "breakdown.md#steps",
    command="breakdown --by step",
    shown=(
        "rank", "device", "step", "window_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns",
        "exposed_wait_ns", "exposed_transfer_ns", "exposed_memory_ns", "idle_ns", "exposed_comm_frac", "partial",
    ),
    none_measured=f"{NO_STEPS_MARKED}, or use `breakdown` without --by step",
    narrow=(
        "rank", "device", "step", "window_ns", "compute_ns", "exposed_comm_ns", "idle_ns", "exposed_wait_ns",
        "exposed_transfer_ns", "exposed_comm_frac", "exposed_memory_ns", "comm_ns", "partial",
    ),
)  # fmt: skip
def breakdown_steps(seen_devices: Devices, believed_splits: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device and step."""
    from ..metrics.device.breakdown import rows_by_step

    return BREAKDOWN_STEPS.frame(rows_by_step(seen_devices, believed_splits))


@value
def breakdown_of_typical_step(
    breakdown_steps: pd.DataFrame, recorded_breakdown: pd.DataFrame, typical_step: TypicalStep
) -> pd.DataFrame:
    """Rows by step of the steps that the typical step is a mean of; of all that was recorded, as step 0, without."""
    if not len(breakdown_steps):
        return recorded_breakdown.assign(step=0)
    return breakdown_steps[breakdown_steps["step"].isin(typical_step.steps)]


@value
def waits_in_steps(seen_devices: Devices, believed_splits: pd.DataFrame) -> pd.DataFrame:
    """The exposed wait of each call, by step."""
    from ..metrics.device.breakdown import exposed_waits

    return exposed_waits(seen_devices, believed_splits)
