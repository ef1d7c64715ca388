"""Pipelines: why a rank has nothing to compute, and how long its stages take. `metrics/pipelines/` finds it out."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, each_rank, value
from ..core.frames import np
from ..core.schema import Row, Schema, records
from ..core.tables.columns import PARTIAL, RANK, STEP_NUMBER
from ..errors import NothingMeasured
from .values import WITH_DETAILS

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.pipelines.stages import HeavyStage
    from ..metrics.pipelines.table import PipelineStep, UsualBubble
    from ..run.run import Run

_SCHEDULE = (
    "string",
    "GPipe, 1F1B, interleaved 1F1B, looped BFS, zero-bubble, ZBV, DualPipeV, or unknown; NA where `note` says why",
)
_MICROBATCHES = ("Int64", "microbatches of the step")
_NOTE = ("string", "why something is NA")

PIPELINE = Schema("pipeline", "rank of a pipeline and step", {
    "rank": RANK,
    "step": STEP_NUMBER,
    "stage": ("string", "stages of the rank, from 0, separated by spaces"),
    "schedule": _SCHEDULE,
    "microbatches": _MICROBATCHES,
    "window_ns": ("int64", "the step on this rank, as in breakdown_steps"),
    "work_ns": ("int64", "compute_ns of breakdown_steps; it and the parts that follow add up to window_ns"),
    "inherent_ns": ("Int64", "bubble of the schedule itself, were all forwards equally long, and all backwards"),
    "imbalance_ns": ("Int64", "more, as stages are not equally long; negative where this rank has more to compute"),
    "jitter_ns": ("Int64", "more, as a stage is not equally long for each microbatch"),
    "transfer_ns": ("Int64", "more, as messages take time"),
    "order_ns": ("Int64", "more, as messages wait for those issued before them, were none to take time itself"),
    "other_ns": ("Int64", "the rest: other communication, launches, whatever is before and after the pipeline"),
    "bubble_frac": ("Float64", "inherent, imbalance, jitter, transfer and order together / window_ns"),
    "note": _NOTE,
    "partial": PARTIAL,
})  # fmt: skip

PIPELINE_STAGES = Schema("pipeline_stages", "rank and stage of a pipeline", {
    "rank": RANK,
    "stage": ("int64", "number of the stage, from 0"),
    "schedule": _SCHEDULE,
    "steps": ("int64", "steps that are summed here: those that count"),
    "microbatches": _MICROBATCHES,
    "forward_ns": ("int64", "median of its forwards"),
    "backward_ns": ("int64", "median of its backwards: whole, or of inputs where those of weights are apart"),
    "weight_ns": ("Int64", "median of its backwards of weights; NA where they are not apart"),
    "spread_frac": ("Float64", "(90th - 10th percentile) / median of what one microbatch takes in all"),
    "work_frac": ("Float64", "what one microbatch takes in all / the mean of that over all stages"),
    "gain_ns": ("Int64", "how much shorter a step would be, were this stage as long as the median of the others"),
    "even_gain_ns": ("Int64", "how much shorter, with the same work in equal shares for all stages"),
    "partial": PARTIAL,
})  # fmt: skip

PIPELINE_CHANGES = Schema("pipeline_changes", "pipeline and change of its schedule", {
    "ranks": ("string", "ranks of the pipeline, ascending, separated by spaces"),
    "change": ("string", "as it is, more microbatches or chunks with as much work in all, or equal shares"),
    "schedule": _SCHEDULE,
    "microbatches": _MICROBATCHES,
    "chunks": ("Int64", "stages of each rank"),
    "pipeline_ns": ("Int64", "how long the pipeline of a step takes, played with the mean pieces of each stage"),
    "gain_ns": ("Int64", "how much shorter than as it is, at most: small pieces fill a GPU less, messages cost time"),
    "bubble_frac": ("Float64", "part of it in which ranks have nothing to compute, mean over the ranks"),
    "note": _NOTE,
    "partial": PARTIAL,
})  # fmt: skip

_MOST_STEPS, _MOST_PIPELINES = 3, 4
"""Of so many the first screen says the bubble: replicas and steps have the same schedule, and hardly another one."""
_NO_PIPELINE = "no rank sends to or receives from a single other one, so there is no pipeline"


@value
@each_rank
def pipeline_pieces(
    activities: pd.DataFrame,
    launches: pd.DataFrame,
    annotations: pd.DataFrame,
    cpu_operators: pd.DataFrame,
    calls: pd.DataFrame,
) -> pd.DataFrame:
    """What each rank of a pipeline computes between its sends and receives, in its order."""
    from ..metrics.pipelines.pieces import pieces_of

    return pieces_of(activities, launches, annotations, cpu_operators, calls)


@value
def pipelines(
    name: str,
    details: bool,
    pipeline_pieces: pd.DataFrame,
    calls: pd.DataFrame,
    collectives: pd.DataFrame,
    matches: pd.DataFrame,
) -> list[PipelineStep]:
    """The steps of all pipelines. Raises NothingMeasured if operators were not read."""
    from ..metrics.pipelines.table import pipeline_steps

    if not details:
        raise NothingMeasured(f"{name}: was read without operators; {WITH_DETAILS}")
    return list(pipeline_steps(pipeline_pieces, calls, collectives, matches))


@value
def some_pipelines(
    run: Run,
    pipeline_pieces: pd.DataFrame,
    counted_steps: Collection[int],
    calls: pd.DataFrame,
    collectives: pd.DataFrame,
    matches: pd.DataFrame,
) -> list[PipelineStep]:
    """Some steps and replicas of pipelines, which stand for all; none where operators were not read."""
    from ..metrics.pipelines.table import pipeline_steps

    if not (run.details and len(pipeline_pieces)):
        return []
    steps = sorted(counted_steps)[:_MOST_STEPS] or None
    some = pipeline_steps(pipeline_pieces, calls, collectives, matches, steps=steps, most_pipelines=_MOST_PIPELINES)
    return list(some)


@value
def bubble_of_schedule(some_pipelines: list[PipelineStep]) -> UsualBubble | None:
    """What the schedule of a pipeline leaves its ranks without work; None without one."""
    from ..metrics.pipelines.table import usual_bubble

    return usual_bubble(some_pipelines)


@value
def heavier_stages(some_pipelines: list[PipelineStep]) -> dict[int, HeavyStage]:
    """The ranks that have a stage which takes longer than the others."""
    from ..metrics.pipelines.stages import heavy_stages

    return heavy_stages(some_pipelines)


@TableEntry(
    PIPELINE,
    Topic.waiting,
    "Pipelines: why ranks have nothing to compute, by step.",
    "pipelines.md#why-a-rank-has-nothing-to-compute",
    command="table pipeline",
    after="releases",
    none_found=_NO_PIPELINE,
    narrow=(
        "rank", "step", "stage", "schedule", "window_ns", "work_ns", "inherent_ns", "imbalance_ns", "jitter_ns",
        "transfer_ns", "order_ns", "other_ns", "bubble_frac", "microbatches", "note",
    ),
    optional=("note",),
)  # fmt: skip
def pipeline(pipelines: list[PipelineStep], breakdown_steps: pd.DataFrame) -> pd.DataFrame:
    """One row per rank and step of a pipeline. What a rank does not compute in a step is told apart, and adds up."""
    times = {
        (row["rank"], row["step"]): (row["window_ns"], row["compute_ns"])
        for row in records(breakdown_steps.groupby(["rank", "step"], as_index=False)[["window_ns", "compute_ns"]].sum())
    }
    rows: list[Row] = []
    for each in pipelines:
        for rank in each.ranks:
            if (rank, each.step) not in times:
                continue
            window, work = times[rank, each.step]
            rows.append({
                "rank": rank, "step": each.step, "window_ns": window, "work_ns": work, "note": each.note,
                **_parts(each, rank, window, work),
            })  # fmt: skip
    return PIPELINE.frame(sorted(rows, key=lambda row: (row["rank"], row["step"])))


def _parts(of: PipelineStep, rank: int, window_ns: int, work_ns: int) -> dict[str, object]:
    if of.schedule is None:
        return {}
    told: dict[str, object] = {
        "stage": " ".join(map(str, of.schedule.stages(rank))),
        "schedule": of.schedule.name,
        "microbatches": of.schedule.microbatches,
    }
    if of.account is None:
        return told
    bubble = of.account.bubbles[rank]
    # Rounded by what they come to together, so that they add up.
    sums = np.cumsum([bubble.inherent, bubble.imbalance, bubble.jitter, bubble.order or 0, bubble.transfer or 0])
    own = np.diff(np.rint(sums).astype(np.int64), prepend=0).tolist()
    told |= dict(zip(("inherent_ns", "imbalance_ns", "jitter_ns", "order_ns", "transfer_ns"), own, strict=True))
    if bubble.order is None or bubble.transfer is None:
        return told | {"order_ns": None, "transfer_ns": None}
    idle = sum(own)
    return told | {"other_ns": window_ns - work_ns - idle, "bubble_frac": idle / window_ns if window_ns else None}


@TableEntry(
    PIPELINE_STAGES,
    Topic.waiting,
    "The stages of pipelines: how long they take, and what a step would gain by curing one.",
    "pipelines.md#why-a-rank-has-nothing-to-compute",
    command="table pipeline --by stage",
    none_found="no schedule of a pipeline was found out; `commtrace table pipeline` says why",
    narrow=(
        "rank",
        "stage",
        "forward_ns",
        "backward_ns",
        "weight_ns",
        "work_frac",
        "gain_ns",
        "even_gain_ns",
        "spread_frac",
    ),
    optional=("weight_ns",),
    in_steps=True,
)
def pipeline_stages(pipelines: list[PipelineStep], counted_steps: Collection[int]) -> pd.DataFrame:
    """One row per rank and stage. Only of steps whose schedule was found out."""
    from ..metrics.pipelines.stages import rows_of_stages

    known = [each for each in pipelines if each.account and (not counted_steps or each.step in counted_steps)]
    return PIPELINE_STAGES.frame(rows_of_stages(known))


@TableEntry(
    PIPELINE_CHANGES,
    Topic.waiting,
    "What a step of a pipeline would gain with more microbatches, more chunks, or stages of equal shares.",
    "pipelines.md#what-another-schedule-would-gain",
    command="table pipeline --by change",
    none_found="no schedule of a pipeline was found out; `commtrace table pipeline` says why",
    narrow=("change", "schedule", "microbatches", "chunks", "pipeline_ns", "gain_ns", "bubble_frac", "ranks", "note"),
    optional=("note",),
    in_steps=True,
)
def pipeline_changes(pipelines: list[PipelineStep], counted_steps: Collection[int]) -> pd.DataFrame:
    """One row per pipeline and change. Only of steps whose schedule was found out."""
    from ..metrics.pipelines.changes import rows_of_changes

    known = [each for each in pipelines if each.account and (not counted_steps or each.step in counted_steps)]
    return PIPELINE_CHANGES.frame(rows_of_changes(known))
