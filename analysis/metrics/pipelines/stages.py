"""How long the stages of pipelines take, over several steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .pieces import FORWARD, FULL_BACKWARD, INPUT_BACKWARD, WEIGHT_BACKWARD
from .table import PipelineStep

_COLUMNS = {
    FORWARD: "forward_ns",
    FULL_BACKWARD: "backward_ns",
    INPUT_BACKWARD: "backward_ns",
    WEIGHT_BACKWARD: "weight_ns",
}


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
