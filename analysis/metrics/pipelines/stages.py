"""How long the stages of pipelines take, over several steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .pieces import FORWARD, FULL_BACKWARD, INPUT_BACKWARD, WEIGHT_BACKWARD
from .table import PipelineStep

_COLUMNS = {
    FORWARD: "forward_ns",
    FULL_BACKWARD: "backward_ns",
    INPUT_BACKWARD: "backward_ns",
    WEIGHT_BACKWARD: "weight_ns",
}


_HEAVY = 1.1
"""So many times the median of the other stages takes one that is heavier than they are."""


class HeavyStage(NamedTuple):
    """A stage that takes `times` as long as the others, so that its rank computes `ms_per_step` longer.

    `is_alone` where the other stages of its rank are no heavier, so that it is no slow device. `given_frac` of it would
    have to go to the others for equal shares, by which a step of this `schedule` gains `even_ms`.
    """

    stage: int
    times: float
    ms_per_step: float
    is_alone: bool
    given_frac: float
    even_ms: float
    schedule: str | None


def heavy_stages(steps: Sequence[PipelineStep]) -> dict[int, HeavyStage]:
    """The heaviest stage of each rank that has one, of these steps, as far as they are known."""
    of_pipeline: dict[tuple[int, ...], list[PipelineStep]] = defaultdict(list)
    for each in steps:
        if each.account is not None:
            of_pipeline[each.ranks].append(each)
    found: dict[int, HeavyStage] = {}
    for own in of_pipeline.values():
        rows = [*rows_of_stages(own)]
        for row in rows:
            others = [other["work_frac"] for other in rows if other["stage"] != row["stage"]]
            usual = float(np.median([frac or 0.0 for frac in others])) if others else 0.0
            # One that is longer than most, but not than their mean, has nothing to give away.
            if not usual or row["work_frac"] < _HEAVY * max(usual, 1.0):
                continue
            beside = [other for other in rows if other["rank"] == row["rank"] and other["stage"] != row["stage"]]
            took_ns = sum(row.get(name) or 0 for name in dict.fromkeys(_COLUMNS.values()))
            times = row["work_frac"] / usual
            heavy = HeavyStage(
                row["stage"],
                times,
                took_ns * (1 - 1 / times) * row["microbatches"] / 1e6,
                bool(beside) and all(other["work_frac"] < _HEAVY * usual for other in beside),
                1 - 1 / row["work_frac"],
                row["even_gain_ns"] / 1e6,
                row["schedule"],
            )
            if row["rank"] not in found or heavy.ms_per_step > found[row["rank"]].ms_per_step:
                found[row["rank"]] = heavy
    return found


def rows_of_stages(steps: Sequence[PipelineStep]) -> Iterator[dict[str, Any]]:
    """Yield a row for each stage of each pipeline, of these steps, whose parts are known."""
    of_pipeline: dict[tuple[int, ...], list[PipelineStep]] = defaultdict(list)
    for each in steps:
        of_pipeline[each.ranks].append(each)
    for own in of_pipeline.values():
        rows = [_row(own, rank, stage) for rank, stage in _stages(own)]
        usual = float(np.mean([row["work_ns"] for row in rows]))
        for row in rows:
            yield row | {"work_frac": row.pop("work_ns") / usual if usual else None}


def _stages(steps: Sequence[PipelineStep]) -> list[tuple[int, int]]:
    return sorted({(rank, stage) for each in steps if each.schedule for stage, rank in each.schedule.of.items()})


def _row(steps: Sequence[PipelineStep], rank: int, stage: int) -> dict[str, Any]:
    took: dict[str, list[float]] = defaultdict(list)
    of_microbatch: dict[tuple[int, int], float] = defaultdict(float)
    for each in steps:
        for piece in each.schedule.pieces[rank] if each.schedule else ():
            if piece.stage == stage:
                took[_COLUMNS[piece.way]].append(piece.dur_ns)
                of_microbatch[each.step, piece.microbatch] += piece.dur_ns
    low, middle, high = np.percentile(list(of_microbatch.values()), [10, 50, 90]).tolist()
    schedules = {each.schedule.name for each in steps if each.schedule}
    return {
        "rank": rank,
        "stage": stage,
        "schedule": schedules.pop() if len(schedules) == 1 else None,
        "steps": len(steps),
        "microbatches": max(each.schedule.microbatches for each in steps if each.schedule),
        **{name: round(float(np.median(durs))) for name, durs in took.items()},
        "spread_frac": (high - low) / middle if middle else None,
        "work_ns": middle,
        "gain_ns": round(float(np.mean([each.account.gains[stage] for each in steps if each.account]))),
        "even_gain_ns": round(float(np.mean([each.account.even_gain for each in steps if each.account]))),
    }
