"""Train and test in epochs before the session's first step; no profiler is on in them.

After every epoch rank 0 replaces training.json (`commtrace.contract.training`), so a run that is stopped has all epochs
that it finished.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...contract.rank import EpochTime
from ...contract.training import TRAINING_FILE, Score, TrainedEpoch, TrainingFile
from ..base import run_directory as rundir
from ..ranks import process_group as parallel
from ..sessions.session import Session
from ..workloads.data import Batch, Batches, DataSpec, epoch_steps
from ..workloads.held_out import HeldOut
from . import scalars
from .config import TrainConfig
from .learning import scoring
from .learning.trainee import Trainee, TrainOn
from .plan import LrPolicy, PlannedEpoch, lr_policy, planned_epochs
from .progress import TrainReporter
from .timed_epochs import Epoch, timed_epoch


class ScheduledBatches:
    """Batches of one rank, whose size may change between epochs. `devices` is 1, or the devices of dp.

    Sizes are those of --batch-size: per device.
    """

    def __init__(self, spec: DataSpec, devices: int, load: Callable[[DataSpec], Batches]) -> None:
        self.spec = spec
        self.current = load(replace(spec, batch_size=spec.batch_size * devices))
        self.workers = spec.world_size * devices
        self.devices = devices
        self.resized = False
        self._size = spec.batch_size
        self._load = load

    @property
    def loaded_size(self) -> int:
        """Samples in a batch as this rank loads it now."""
        return self._size * self.devices

    def full_steps(self, batch_size: int) -> int:
        """Steps of an epoch with batches of this size. Raises OutOfDataError."""
        return epoch_steps(self.current.dataset_samples, self.spec.world_size, batch_size * self.devices)

    def resize(self, batch_size: int, epoch: int) -> None:
        """Change the batch size of `current` from `epoch` on."""
        if batch_size != self._size:
            self.current.close()
            loaded = replace(self.spec, batch_size=batch_size * self.devices, first_epoch=epoch)
            self.current, self._size, self.resized = self._load(loaded), batch_size, True

    def close(self) -> None:
        """Stop the loaders."""
        self.current.close()


@dataclass(frozen=True)
class TrainRun:
    """A run of `train` on this rank: options, trainee, session and reporter."""

    config: TrainConfig
    batches: ScheduledBatches
    session: Session
    reporter: TrainReporter


def train_in_epochs(run: TrainRun, trainee: Trainee, train_on: TrainOn, held_out: HeldOut) -> None:
    """Train and test for the epochs of `config.training`. Raises OutOfDataError before the first, RunDirError."""
    config, batches, reporter, plan = run.config, run.batches, run.reporter, run.config.training
    epochs = planned_epochs(plan, config.warmup_epochs, config.steps_per_epoch, config.batch_size, batches.full_steps)
    policy = lr_policy(plan, config.optimizer.lr, config.batch_size * batches.workers, epochs)
    first_rank = parallel.identity().rank == 0
    facts = _facts(config, policy, batches)
    rows: list[TrainedEpoch] = []
    times: list[EpochTime] = []

    if not scalars.available():
        reporter.say(scalars.without_tensorboard())
    reporter.plan(sum(epoch.steps for epoch in epochs))
    with scalars.scalars(run.session.run_dir, write=first_rank and scalars.available()) as add:
        for epoch in epochs:
            batches.resize(epoch.batch_size, epoch.epoch)
            reporter.begin_epoch(f"epoch {epoch.epoch} of {plan.epochs}", epoch.steps)
            time, train = _trained(trainee, reporter.counted(train_on), epoch, policy, batches.current)
            reporter.begin(f"epoch {epoch.epoch} of {plan.epochs}: {held_out.samples} test images")
            with trainee.autocast():
                counts = scoring.tested(trainee.mode, trainee.model, held_out, trainee.where)
            test = scoring.total(counts)
            times.append(time)
            slowest = _slowest(time, trainee.where)
            rows.append(_row(epoch, policy, epoch.batch_size * batches.workers, (train, test), slowest))
            reporter.trained_epoch(time, epoch.full_steps, train, test, rows[-1].last_lr)
            if first_rank:
                rundir.write_json(run.session.run_dir / TRAINING_FILE, replace(facts, epochs=rows))
                add(epoch.epoch + 1, _scalars(rows[-1]))
            _note(run.session, epoch, batches, times)


def _note(session: Session, epoch: PlannedEpoch, batches: ScheduledBatches, times: list[EpochTime]) -> None:
    """Write the epochs so far into this rank's side file."""
    resized = {"batch_size_per_rank": batches.loaded_size} if batches.resized else {}
    samples = batches.current.dataset_samples
    session.note(dataset_samples=samples, full_epoch_steps=epoch.full_steps, epochs=times, **resized)


def _trained(
    trainee: Trainee, train_on: TrainOn, epoch: PlannedEpoch, policy: LrPolicy, batches: Batches
) -> tuple[EpochTime, Score]:
    """Train for one epoch; return this rank's times, and the score over all ranks."""
    step = epoch.first_step

    def train_at_rate(batch: Batch) -> Tensor | None:
        nonlocal step
        for group in trainee.optimizer.param_groups:
            group["lr"] = policy.lr(step)
        step += 1
        return train_on(batch)

    with trainee.criterion.counted(trainee.where) as counts:
        time, _ = timed_epoch(Epoch(epoch.epoch, epoch.phase, epoch.steps), batches, train_at_rate, trainee.where)
    return time, scoring.total(counts)


def _facts(config: TrainConfig, policy: LrPolicy, batches: ScheduledBatches) -> TrainingFile:
    """The content of training.json before the first epoch."""
    return TrainingFile(
        planned_epochs=config.training.epochs,
        dataset_samples=batches.current.dataset_samples,
        workers=parallel.identity().world_size * batches.devices,
        optimizer=config.optimizer.name,
        lr_scaling=config.training.lr_scaling,
        lr_reference_batch=config.training.lr_reference_batch,
        base_lr=policy.base_lr,
        full_lr=policy.full_lr,
        warmup_steps=policy.warmup_steps,
        epochs=[],
    )


def _row(
    epoch: PlannedEpoch, policy: LrPolicy, global_batch: int, scores: tuple[Score, Score], slowest: Mapping[str, int]
) -> TrainedEpoch:
    """The entry of an epoch in training.json; `scores` are those of training and test."""
    train, test = scores
    return TrainedEpoch(
        epoch=epoch.epoch,
        phase=epoch.phase,
        batch_size=epoch.batch_size,
        global_batch_size=global_batch,
        steps=epoch.steps,
        full_steps=epoch.full_steps,
        first_lr=policy.lr(epoch.first_step),
        last_lr=policy.lr(epoch.first_step + epoch.steps - 1),
        train=train,
        test=test,
        **slowest,
    )


def _slowest(time: EpochTime, where: torch.device) -> dict[str, int]:
    """The largest of each time over all ranks, in ns."""
    names = ("dur_ns", "data_ns", "step_ns")
    return dict(zip(names, scoring.largest((getattr(time, name) for name in names), where), strict=True))


def _scalars(row: TrainedEpoch) -> dict[str, float | None]:
    """TensorBoard scalars, grouped by the part of the name before the slash."""
    return {
        "loss/train": row.train.loss,
        "loss/test": row.test.loss,
        "accuracy/train": row.train.accuracy,
        "accuracy/test": row.test.accuracy,
        "training/learning rate": row.last_lr,
        "training/global batch size": row.global_batch_size,
        "training/epoch time in s": row.dur_ns / 1e9,
    }
