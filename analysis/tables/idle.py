"""Why devices are idle: what the host did meanwhile. `metrics/device/idle.py` looks for it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from ..core.declaring import Later, TableEntry, Topic, Worst, each_rank, played, value
from ..core.schema import Schema
from ..core.tables.columns import DEVICE, NO_STEPS_MARKED, PARTIAL, RANK, STEP_NUMBER
from ..metrics.over_steps import over_steps

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.device.idle import DeviceGaps
    from ..metrics.device.largest_gaps import IdlePlaces
    from ..metrics.device.longer import Longer
    from ..metrics.typical_step import TypicalStep
    from ..run.run import Run

_COLUMNS = {
    "window_ns": ("int64", "as in `breakdown`"),
    "idle_ns": ("int64", "part of it in which nothing ran: no kernel, no copy, no fill"),
    "starved_ns": ("Int64", "the call that launched what ended the gap had not begun: the host was not there yet"),
    "launching_ns": ("Int64", "in that call"),
    "queued_ns": ("Int64", "after that call: the device was slow to begin, or waited for another stream"),
    "unknown_ns": ("Int64", "no call in the trace launched what ended the gap"),
    "sync_ns": ("Int64", "part of starved_ns: the launching thread was in a blocking call, cudaStreamSynchronize ..."),
    "alloc_ns": ("Int64", "part of starved_ns: otherwise in a call that allocates or frees, cudaMalloc, cudaFree ..."),
    "data_ns": ("Int64", "part of starved_ns: otherwise it was getting a batch from the DataLoader"),
    "operator_ns": ("Int64", "part of starved_ns: otherwise it was in any other operator"),
    "outside_ns": ("Int64", "part of starved_ns: it was in none of these; mostly Python of the user"),
    "gc_ns": (
        "Int64",
        "part of operator_ns and outside_ns: Python collected garbage; NA where the run has no record of that",
    ),
    "cpu_comm_ns": ("Int64", "likewise: otherwise its CPU communicated, or waited for those of others: gloo, barrier"),
    "compile_ns": ("Int64", "likewise: otherwise torch.compile, NVRTC or another compiler was at work"),
    "python_ns": ("Int64", "part of outside_ns: none of these three either; mostly Python of the user"),
    "drained_ns": ("Int64", "starved_ns of gaps that began within a blocking call of that thread"),
    "note": ("string", "why something is NA"),
    "partial": PARTIAL,
}  # fmt: skip

IDLE = Schema("idle", "rank and device", {"rank": RANK, "device": DEVICE, **_COLUMNS})

IDLE_STEPS = Schema("idle_steps", "rank, device and step", {
    "rank": RANK, "device": DEVICE, "step": STEP_NUMBER, **_COLUMNS,
})  # fmt: skip

_SHOWN = (
    "window_ns", "idle_ns", "starved_ns", "launching_ns", "queued_ns", "unknown_ns", "sync_ns", "alloc_ns", "data_ns",
    "operator_ns", "outside_ns", "gc_ns", "cpu_comm_ns", "compile_ns", "python_ns", "drained_ns",
)  # fmt: skip
_NARROW = (
    "idle_ns", "starved_ns", "sync_ns", "alloc_ns", "data_ns", "operator_ns", "outside_ns", "queued_ns",
    "launching_ns", "unknown_ns", "drained_ns", "gc_ns", "cpu_comm_ns", "compile_ns", "python_ns", "window_ns", "note",
)  # fmt: skip


class IdleTables(NamedTuple):
    """`idle`, a row per rank and device over all that was recorded, and `idle_steps`, a row per step of these."""

    whole: pd.DataFrame
    steps: pd.DataFrame


@value
@each_rank
def idle_tables(device_gaps: list[DeviceGaps]) -> IdleTables:
    """Idle time of every device by cause."""
    from ..metrics.device.idle import rows_of_idle

    whole, steps = rows_of_idle(device_gaps)
    return IdleTables(IDLE.frame(whole), IDLE_STEPS.frame(steps))


@TableEntry(
    IDLE,
    Topic.time,
    "Why every device was idle: what the host did meanwhile.",
    "idle.md#why-a-device-is-idle",
    command="idle",
    after="serving_fits",
    shown=("rank", "device", *_SHOWN, "note", "partial"),
    narrow=("rank", "device", *_NARROW),
    worst=Worst("idle_ns"),
    in_steps=True,
)  # fmt: skip
def idle(idle_tables: IdleTables, counted_steps: Collection[int]) -> pd.DataFrame:
    """One row per rank and device: idle time by what the host did. The causes need a run with `details`."""
    return over_steps(idle_tables.whole, idle_tables.steps, counted_steps)


@TableEntry(
    IDLE_STEPS,
    Topic.time,
    "The same, by step.",
    "idle.md#by-step",
    command="idle --by step",
    shown=("rank", "device", "step", *_SHOWN, "note", "partial"),
    none_measured=f"{NO_STEPS_MARKED}, or use `idle` without --by step",
    narrow=("rank", "device", "step", *_NARROW),
)  # fmt: skip
def idle_steps(idle_tables: IdleTables) -> pd.DataFrame:
    """One row per rank, device and step: idle time by what the host did."""
    return idle_tables.steps


@value
def idle_of_typical_step(idle_steps: pd.DataFrame, idle: pd.DataFrame, typical_step: TypicalStep) -> pd.DataFrame:
    """Rows of the steps that the typical step is a mean of; of all that was recorded, without."""
    return idle_steps[idle_steps["step"].isin(typical_step.steps)] if len(idle_steps) else idle


@value
@played
def played_step(typical_step: TypicalStep) -> TypicalStep:
    """The typical step of the part that is played again."""
    return typical_step


@value
def idle_like_part(typical_step: TypicalStep, played_step: TypicalStep) -> float:
    """Idle time of a typical step, over that of the part that is played: what is known of that one says why."""
    idle_ns, of_part_ns = (each.parts["idle_ns"] for each in (typical_step, played_step))
    return idle_ns / of_part_ns if of_part_ns else 0.0


@value
@played
def causes_in_part(run: Run, idle_of_typical_step: Later[pd.DataFrame]) -> dict[str, float] | None:
    """Why devices are idle in a typical step of the part that is played, in ns by cause; None if that is not known."""
    from ..metrics.verdicts.of_idle import idle_causes

    return idle_causes(idle_of_typical_step()) if run.details else None


@value
def causes_of_idle(causes_in_part: dict[str, float] | None, idle_like_part: float) -> dict[str, float] | None:
    """Why devices are idle in a typical step, in ns by cause; None where that is not known."""
    return causes_in_part and {cause: idle_like_part * ns for cause, ns in causes_in_part.items()}


@value
@played
def idle_places(
    run: Run, is_playable: bool, typical_step: TypicalStep, device_gaps: Later[list[DeviceGaps]]
) -> IdlePlaces:
    """Where idle time of a typical step of the part that is played lies."""
    from ..metrics.device import largest_gaps as gaps

    if not is_playable:
        return gaps.NO_PLACES
    idle = (device_gaps(), typical_step.steps, typical_step.windows)
    return gaps.IdlePlaces(
        gaps.largest_gaps(*idle),
        {} if run.runs_python else gaps.idle_in_ranges(*idle),
        gaps.holders_in_idle(*idle),
    )


@value
@played
def longer_steps(
    run: Run, is_playable: bool, device_gaps: Later[list[DeviceGaps]], idle_steps: Later[pd.DataFrame]
) -> Longer | None:
    """What says why some steps of the part that is played are longer than others; None if that is not known."""
    from ..metrics.device.longer import Longer

    return Longer(run.activities, device_gaps(), idle_steps()) if is_playable else None
