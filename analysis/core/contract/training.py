"""training.json: a training, epoch by epoch."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from .limits import Count, EpochPhase, Fraction, FromZero, Ranks


class Score(Struct, frozen=True):
    """Loss and accuracy over some images; the loss is None where it was not finite."""

    loss: float | None
    accuracy: Fraction
    samples: Count


class TrainedEpoch(Struct, frozen=True):
    """One epoch, all ranks together; times are those of the slowest."""

    epoch: FromZero
    phase: EpochPhase
    batch_size: Count
    global_batch_size: Count
    steps: Count
    full_steps: Count
    last_lr: float
    train: Score
    test: Score
    data_ns: FromZero
    step_ns: Count


class TrainingFile(Struct, frozen=True):
    """All of it that is read."""

    schema_version: int
    planned_epochs: Count
    dataset_samples: Count
    workers: Ranks
    optimizer: str
    lr_scaling: str
    epochs: Annotated[list[TrainedEpoch], Meta(min_length=1)]
