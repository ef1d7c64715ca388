"""Time epochs without a profiler, with the wait for data measured separately."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles

import torch
from torch import Tensor

from ...contract.rank import EpochPhase, EpochTime
from ..sessions.step_clock import finish, mark
from ..workloads.data import Batch
from .learning.trainee import TrainOn


@dataclass(frozen=True)
class Epoch:
    """Number of an epoch, from 0, and the number of its steps to run."""

    number: int
    phase: EpochPhase
    steps: int


def timed_epoch(
    epoch: Epoch, batches: Iterator[Batch], step: TrainOn, where: torch.device
) -> tuple[EpochTime, Tensor | None]:
    """Run `step` on the batches of an epoch; return times in ns, and the last loss.

    The boundaries between waiting and working are marks: on CUDA events on the stream, which the host does not wait for
    but at the end. So the host runs ahead as in training that nobody times, and `data_ns` is what the device waited,
    not what the host did while the device was busy.
    """
    finish(where)
    start_unix_ns, samples, loss = time.time_ns(), 0, None
    marks = [mark(where)]
    for _ in range(epoch.steps):
        batch = next(batches)
        marks.append(mark(where))
        loss = step(batch)
        marks.append(mark(where))
        samples += len(batch[0])
    finish(where)
    parts_ns = [begin.ns_until(end) for begin, end in pairwise(marks)]
    data_ns, steps_ns = sum(parts_ns[0::2]), parts_ns[1::2]
    times = {"dur_ns": data_ns + sum(steps_ns), "data_ns": data_ns, "step_ns": sum(steps_ns), **_spread(steps_ns)}
    return EpochTime(epoch.number, epoch.phase, epoch.steps, samples, start_unix_ns, **times), loss


def _spread(steps_ns: Sequence[int]) -> dict[str, int]:
    """Percentiles of step times, as in `EpochTime`; empty for fewer than two."""
    if len(steps_ns) < 2:
        return {}
    cuts = quantiles(steps_ns, n=10, method="inclusive")
    return {"step_p10_ns": round(cuts[0]), "step_median_ns": round(cuts[4]), "step_p90_ns": round(cuts[8])}
