"""How long each step took, what it consists of, and which steps count. `metrics/typical_step.py` tells them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.declaring import Later, TableEntry, Topic, value
from ..core.schema import Schema
from ..core.tables.columns import KIND, NO_STEPS_MARKED, PARTIAL_RUN, REQUESTS, TOKENS

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.periods import Period
    from ..metrics.typical_step import Replicas, TypicalStep
    from ..run.run import Run

STEPS = Schema("steps", "traced step, all devices together", {
    "step": ("int64", "N of ProfilerStep#N, or place among the annotations that mark steps, from 0"),
    "kind": KIND,
    "requests": REQUESTS,
    "tokens": TOKENS,
    "devices": ("int64", "devices that show it"),
    "window_ns": ("int64", "length of the step, mean over the devices; the parts below add up to it"),
    "compute_alone_ns": ("int64", "mean over the devices: compute without communication beside it"),
    "overlap_ns": ("int64", "mean over the devices: compute and communication at once"),
    "exposed_transfer_ns": ("int64", "mean over the devices: exposed communication that moves data"),
    "exposed_wait_ns": ("int64", "mean over the devices: exposed communication that waits for other ranks"),
    "exposed_unsplit_ns": ("int64", "mean over the devices: exposed communication that may be waiting or transfer"),
    "exposed_memory_ns": ("int64", "mean over the devices: copies and fills beside which nothing else runs"),
    "idle_ns": ("int64", "mean over the devices: nothing runs"),
    "shortest_ns": ("int64", "length of the step on the device where it is shortest"),
    "longest_ns": ("int64", "length of the step on the device where it is longest"),
    "cpu_ns": ("Int64", "how long the annotation of the step is on the CPUs, mean over the ranks; NA without one"),
    "unseen_ns": (
        "Int64",
        (
            "how long launched work was held up by work from before the trace, which is no part of the step: the most "
            "of any rank; NA if it was not"
        ),
    ),
    "period": ("Int64", "steps after which they repeat, as where each fourth one syncs; NA if they do not"),
    "is_long": ("boolean", "of a period: one of the steps in it that take longer"),
    "left_out": (
        "string",
        (
            "NA if the first screen and the verdict count it: a whole step like most others; else why not: beginning, "
            "drain or end, if that part of its window is not the step's own, unshown if a rank's trace lacks what was "
            "launched in it, long or short beside others of its kind, kind, if steps of another kind count, period, if "
            "it is part of no whole period, or other, if a run that it is compared with counts no step of its number"
        ),
    ),
    "note": ("string", "the same in words, and that the trace lacks what came before"),
    "partial": PARTIAL_RUN,
})  # fmt: skip


@TableEntry(
    STEPS,
    Topic.time,
    "How long each step took, what it consists of, and which steps count.",
    "steps.md#which-steps-count",
    command="table steps",
    after="breakdown_steps",
    none_measured=NO_STEPS_MARKED,
    narrow=("step", "window_ns", "shortest_ns", "longest_ns", "cpu_ns", "left_out", "note"),
)  # fmt: skip
def steps(
    run: Run,
    breakdown_steps: pd.DataFrame,
    engine_replicas: Replicas,
    about: str | None,
    period: Period | None,
    compared: frozenset[int] | None,
) -> pd.DataFrame:
    """One row per step, all devices together: how long it took, its parts, and whether it counts."""
    from ..metrics.periods import START_UP_STEPS
    from ..metrics.typical_step import CycleSteps, rows_of_steps

    # Where only some steps are read, the first and last of these are whole unless they are so in the recording.
    recorded = run.recorded_steps
    cycles = [
        CycleSteps(ran.rank, recorded.get((ran.rank, ran.cycle), ran.steps), ran.marked.cpu_ns)
        for ran in run.tables.ran
    ]
    times = run.step_times
    unprofiled = times[(times["phase"] == "idle") & (times["step"] >= START_UP_STEPS)].groupby("step")["dur_ns"].mean()
    return STEPS.frame(
        rows_of_steps(
            breakdown_steps,
            cycles,
            run.step_marks,
            engine_replicas,
            run.unshown_steps,
            about,
            period,
            dict(zip(unprofiled.index.tolist(), unprofiled.tolist(), strict=True)),
            compared,
        )
    )


@value
def typical_step(steps: pd.DataFrame, recorded_breakdown: pd.DataFrame) -> TypicalStep:
    """What a step consists of, on which the first screen and the verdict rest: of steps that count."""
    from ..metrics.typical_step import mean_step

    return mean_step(steps=steps, breakdown=recorded_breakdown)


@value
def counted_steps(whole: bool, recorded_breakdown: pd.DataFrame, typical_step: Later[TypicalStep]) -> tuple[int, ...]:
    """The steps over which tables are sums; none if these are of all that was recorded."""
    return () if whole or not len(recorded_breakdown) else typical_step().steps
