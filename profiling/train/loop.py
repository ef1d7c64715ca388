"""One rank of `train`: a plain training loop under the session that `capture()` also gives to loops of others."""

import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..base.contract.rank import EpochPhase
from ..machine import memory
from ..modes import MODES
from ..modes.pipeline import Pipeline
from ..modes.replicated import driven_devices
from ..ranks import process_group as parallel
from ..ranks.process_group import Identity
from ..sessions.session import Session
from ..sessions.side_files import Subject, model_size
from ..sessions.step_clock import overhead
from ..workloads.data import DATA, Batch, Batches, DataSpec
from ..workloads.held_out import TEST_DATA
from ..workloads.models import MODELS
from ..workloads.torchvision_import import torchvision
from .config import TrainConfig
from .epochs import ScheduledBatches, Trainee, train_in_epochs
from .optimizers import optimizer_of
from .progress import Reporter
from .scoring import ScoredLoss
from .timed_epochs import timed_epoch

# Reading the loss makes the host wait for the GPU, so there it is read between a few unprofiled steps only.
_CUDA_LOSS_EVERY = 10


def run_rank(config: TrainConfig, command: Sequence[str]) -> Path:
    """Train as the rank this process is, and return the run directory. Raises ProfilingError."""
    who = parallel.identity()
    where = parallel.device(config.device, who.local_rank)
    with parallel.process_group(MODES[config.parallel], where):
        if config.memory_limit_bytes is not None:
            torchvision("models")  # what a library takes when it is loaded does not count
            memory.limit(config.memory_limit_bytes, where.index)
        return _train(config, who, where, command)


def train_step(
    model: nn.Module, criterion: nn.Module, optimizer: Optimizer, batch: Batch, where: torch.device
) -> Tensor | None:
    """One step from host batch to updated weights, with a model that a mode of MODES has wrapped.

    The loss, still on the device; None on the stages of a pipeline that do not compute it.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = _learn(model, criterion, batch, where)
    optimizer.step()
    return loss


def _learn(model: nn.Module, criterion: nn.Module, batch: Batch, where: torch.device) -> Tensor | None:
    """Forward and backward pass."""
    if isinstance(model, Pipeline):
        return model.learn(*batch, criterion)
    images, labels = (part.to(where, non_blocking=True) for part in batch)
    loss = cast("Tensor", criterion(model(images), labels))
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _train(config: TrainConfig, who: Identity, where: torch.device, command: Sequence[str]) -> Path:
    torch.manual_seed(config.seed)  # the same weights on every rank
    mode, whole = MODES[config.parallel], MODELS[config.model]()
    size = model_size(whole)
    model = mode.wrap(whole, where, config)
    del whole
    batch_size = None if mode.shares_batch else config.batch_size * _devices(config)
    subject = Subject(weakref.ref(model), config.model, batch_size, config.as_json(), command, size)
    session = Session(
        config.run_dir(len(driven_devices(config)) if mode.name == "dp" else who.world_size),
        config.schedule,
        where,
        subject,
        with_stack=config.with_stack,
        profile_memory=config.profile_memory,
    )
    with closing(_batches(config, who, where)) as batches, Reporter(rank=who.rank, steps=config.steps) as reporter:
        try:
            with session:
                reporter.say(_headline(config, who, where))
                reporter.say(f"traces go to {session.run_dir}")
                _loop(config, model, where, batches, session, reporter)
        except RuntimeError as err:
            # Peers that were stopped first break our communication; the signal is the cause.
            if session.interrupted_by is not None:
                raise SystemExit(128 + session.interrupted_by) from err
            raise
        reporter.overhead(overhead(session.step_times()))
    return session.run_dir


def _loop(
    config: TrainConfig,
    model: nn.Module,
    where: torch.device,
    batches: ScheduledBatches,
    session: Session,
    reporter: Reporter,
) -> None:
    optimizer = optimizer_of(model.parameters(), config.optimizer)
    criterion = ScoredLoss()

    def train_on(batch: Batch) -> Tensor | None:
        return train_step(model, criterion, optimizer, batch, where)

    if config.training.epochs:
        trainee = Trainee(model, criterion, optimizer, train_on, where)
        held_out = TEST_DATA[config.data](batches.spec).bounded(config.training.test_samples)
        train_in_epochs(config, trainee, batches, held_out, session, reporter)
    else:
        _epochs(config, train_on, where, batches.current, session, reporter)
    for step in range(config.steps):
        loss = train_on(next(batches.current))
        session.step()
        phase = config.schedule.phase(step)
        readable = where.type == "cpu" or (phase == "idle" and step % _CUDA_LOSS_EVERY == 0)
        shown = loss.item() if loss is not None and readable else None
        reporter.step(session.last_step_time(), phase, step, shown)


def _epochs(
    config: TrainConfig,
    train_on: Callable[[Batch], Tensor | None],
    where: torch.device,
    batches: Batches,
    session: Session,
    reporter: Reporter,
) -> None:
    """The epochs before the first step that the session knows: no profiler is on in them."""
    phases: list[EpochPhase] = ["warmup"] * config.warmup_epochs
    phases += ["timed"] * config.timed_epochs
    steps = min(batches.epoch_steps, config.steps_per_epoch or batches.epoch_steps)
    facts = {"dataset_samples": batches.dataset_samples, "full_epoch_steps": batches.epoch_steps}
    found = []
    for epoch, phase in enumerate(phases):
        reporter.begin_epoch(f"epoch {epoch} ({phase}) of {steps} steps")
        time, loss = timed_epoch(epoch, phase, steps, batches, train_on, where)
        reporter.epoch(time, batches.epoch_steps, None if loss is None else loss.item())
        found.append(time)
    session.note(**facts, epochs=found)


def _batches(config: TrainConfig, who: Identity, where: torch.device) -> ScheduledBatches:
    """The batches that this rank trains on: its share, or the whole in modes whose ranks share each batch."""
    rank, world_size = (0, 1) if MODES[config.parallel].shares_batch else (who.rank, who.world_size)
    spec = DataSpec(
        config.batch_size,
        config.image_size,
        config.data_root,
        config.seed,
        rank,
        world_size,
        pinned=where.type == "cuda",
        dataset_samples=config.dataset_samples,
    )
    return ScheduledBatches(spec, _devices(config), DATA[config.data])


def _devices(config: TrainConfig) -> int:
    """Devices that share each batch as this rank loads it: those of nn.DataParallel."""
    return len(driven_devices(config)) if config.parallel == "dp" else 1


def _headline(config: TrainConfig, who: Identity, where: torch.device) -> str:
    backend = parallel.backend()
    devices = len(driven_devices(config)) if config.parallel == "dp" else who.world_size
    ranks = f"{devices} x {where.type}" + (f" ({backend})" if backend else "")
    share = "per rank"
    if config.parallel == "dp":
        share = "per GPU"
    elif config.parallel == "pipeline":
        share = f"in {config.microbatches_of(who.world_size)} microbatches"
    schedule = config.schedule
    return (
        f"{config.model}, {config.parallel} on {ranks}, {config.data} data, batch {config.batch_size} {share}; "
        f"{config.steps} steps, {schedule.active * schedule.repeat} of them traced"
    )
