"""Epochs that are timed and not profiled, waiting for data apart from the rest."""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ..base.contract.rank import EpochPhase, EpochTime
from ..sessions.step_clock import finish, mark
from ..workloads.data import Batch


def timed_epoch(
    epoch: int,
    phase: EpochPhase,
    steps: int,
    batches: Iterator[Batch],
    step: Callable[[Batch], Tensor | None],
    where: torch.device,
) -> tuple[EpochTime, Tensor | None]:
    """Run `step` on `steps` batches; their times in ns, and the last loss that `step` returned.

    The boundaries between waiting and working are marks: on CUDA events on the stream, which the host does not wait for
    but at the end. So the host runs ahead as in training that nobody times, and `data_ns` is what the device waited,
    not what the host did while the device was busy.
    """
    finish(where)
    start_unix_ns, samples, loss = time.time_ns(), 0, None
    marks = [mark(where)]
    for _ in range(steps):
        batch = next(batches)
        marks.append(mark(where))
        loss = step(batch)
        marks.append(mark(where))
        samples += len(batch[0])
    finish(where)
    parts_ns = [begin.ns_until(end) for begin, end in pairwise(marks)]
    data_ns, step_ns = sum(parts_ns[0::2]), sum(parts_ns[1::2])
    found = EpochTime(epoch, phase, steps, samples, start_unix_ns, data_ns + step_ns, data_ns, step_ns)
    return found, loss
