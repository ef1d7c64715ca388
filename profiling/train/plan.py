"""The plan of `train --epochs`: number of epochs, batch size of each, and learning rate. Knows no torch."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ...contract.rank import EpochPhase
from ..errors import UsageError
from .learning.lr_policy import REFERENCE_BATCH, linearly_scaled, warmed_up

LrScaling = Literal["none", "linear"]
_ENTRY = re.compile(r"\s*([0-9]{1,9})\s*:\s*([0-9]{1,12})\s*")


@dataclass(frozen=True)
class TrainingPlan:
    """Training in epochs, each followed by a test. 0 epochs: no training.

    `lr_scaling` linear: the learning rate is for `lr_reference_batch` samples a step, and scaled to those of a step of
    the first epoch. `batch_size_schedule` holds (epoch, batch size) from which on it is that; epochs count from 0. As
    in Smith et al. 2017, "Don't Decay the Learning Rate, Increase the Batch Size", arXiv:1711.00489, a batch that grows
    takes the place of a learning rate that decays, so the learning rate does not follow it. `test_samples` bounds the
    images that it is tested on; 0: all of them.
    """

    epochs: int = 0
    lr_scaling: LrScaling = "none"
    lr_reference_batch: int = REFERENCE_BATCH
    batch_size_schedule: tuple[tuple[int, int], ...] = ()
    test_samples: int = 0

    def batch_size(self, epoch: int, first: int) -> int:
        """The batch size of an epoch, if `first` is that of the first one."""
        return next((size for begin, size in reversed(self.batch_size_schedule) if begin <= epoch), first)

    def full_lr(self, base_lr: float, global_batch: int) -> float:
        """The learning rate after the warm-up; `global_batch` is that of the first epoch."""
        if self.lr_scaling == "none":
            return base_lr
        return linearly_scaled(base_lr, global_batch, self.lr_reference_batch)


NO_TRAINING = TrainingPlan()


@dataclass(frozen=True)
class PlannedEpoch:
    """One epoch: `steps` of the `full_steps` that the data set has at `batch_size`; `first_step` counts from 0."""

    epoch: int
    phase: EpochPhase
    batch_size: int
    first_step: int
    steps: int
    full_steps: int


def planned_epochs(
    plan: TrainingPlan, warmup_epochs: int, most_steps: int, batch_size: int, full_steps: Callable[[int], int]
) -> list[PlannedEpoch]:
    """All epochs in order. `full_steps` gives the steps of an epoch at a batch size; 0 `most_steps` do not bound them.

    The first `warmup_epochs` are of the phase `warmup`. Raises what `full_steps` raises, so before any training.
    """
    planned: list[PlannedEpoch] = []
    first_step = 0
    for epoch in range(plan.epochs):
        size = plan.batch_size(epoch, batch_size)
        full = full_steps(size)
        steps = min(full, most_steps or full)
        phase: EpochPhase = "warmup" if epoch < warmup_epochs else "timed"
        planned.append(PlannedEpoch(epoch, phase, size, first_step, steps, full))
        first_step += steps
    return planned


@dataclass(frozen=True)
class LrPolicy:
    """The learning rate of a run; `warmup_steps` are the steps of its warm-up epochs."""

    base_lr: float
    full_lr: float
    warmup_steps: int

    def lr(self, step: int) -> float:
        """The rate of a step, counted from 0 over all epochs."""
        return warmed_up(step, self.base_lr, self.full_lr, self.warmup_steps)


def lr_policy(plan: TrainingPlan, base_lr: float, global_batch: int, epochs: list[PlannedEpoch]) -> LrPolicy:
    """The policy of a run whose first epoch has `global_batch` samples per step."""
    warmup_steps = sum(epoch.steps for epoch in epochs if epoch.phase == "warmup")
    return LrPolicy(base_lr, plan.full_lr(base_lr, global_batch), warmup_steps)


def parse_batch_size_schedule(text: str) -> tuple[tuple[int, int], ...]:
    """Parse `3:256,6:512`: batches of 256 from epoch 3, of 512 from epoch 6. Raises UsageError."""
    entries = [_ENTRY.fullmatch(part) for part in text.split(",")]
    if not all(entries):
        raise UsageError(
            f"--batch-size-schedule {text}: expected EPOCH:SIZE,... such as 3:256,6:512; epochs count from 0"
        )
    return tuple((int(entry[1]), int(entry[2])) for entry in entries if entry is not None)


def check_plan(plan: TrainingPlan, batch_size: int, warmup_epochs: int, timed_epochs: int) -> None:
    """Raise UsageError if options contradict each other."""
    if plan.epochs < 0:
        raise UsageError(f"--epochs must be at least 0, found {plan.epochs}")
    if plan.test_samples < 0:
        raise UsageError(f"--test-samples must be at least 0, found {plan.test_samples}")
    if plan.lr_reference_batch < 1:
        raise UsageError(f"--lr-reference-batch must be at least 1, found {plan.lr_reference_batch}")
    if not plan.epochs:
        for option, given in (
            ("--lr-scaling linear", plan.lr_scaling != "none"),
            ("--batch-size-schedule", bool(plan.batch_size_schedule)),
            ("--test-samples", plan.test_samples != 0),
        ):
            if given:
                raise UsageError(f"{option}: is for training in epochs; say how many with --epochs")
        return
    if timed_epochs:
        raise UsageError(
            f"--epochs {plan.epochs} --timed-epochs {timed_epochs}: every epoch of a training is timed; leave "
            "--timed-epochs out"
        )
    if warmup_epochs > plan.epochs:
        raise UsageError(
            f"--warmup-epochs {warmup_epochs}: expected at most {plan.epochs}, since they are the first of --epochs"
        )
    _check_schedule(plan, batch_size)


def _check_schedule(plan: TrainingPlan, batch_size: int) -> None:
    schedule = plan.batch_size_schedule
    said = "--batch-size-schedule " + ",".join(f"{epoch}:{size}" for epoch, size in schedule)
    if any(earlier >= later for (earlier, _), (later, _) in pairwise(schedule)):
        raise UsageError(f"{said}: expected epochs in ascending order, each once")
    if any(size < 1 for _, size in schedule):
        raise UsageError(f"{said}: batch sizes must be at least 1")
    if schedule and schedule[0][0] == 0 and schedule[0][1] != batch_size:
        raise UsageError(f"{said}: the first epoch has --batch-size {batch_size}; make them equal, or leave 0: out")
    if schedule and schedule[-1][0] >= plan.epochs:
        raise UsageError(
            f"{said}: epoch {schedule[-1][0]} is not among those of --epochs {plan.epochs}, which are 0 to "
            f"{plan.epochs - 1}"
        )
