"""One rank of `train`: a plain training loop under the session that `capture()` also gives to loops of others."""

import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from . import parallel
from .config import TrainConfig
from .parallel import Identity
from .progress import Reporter
from .session import Session
from .sidefiles import Subject
from .step_clock import overhead
from .workloads.data import DATA, Batch, DataSpec
from .workloads.models import MODELS

# Reading the loss makes the host wait for the GPU, so there it is read between a few unprofiled steps only.
_CUDA_LOSS_EVERY = 10


def run_rank(config: TrainConfig, command: Sequence[str]) -> Path:
    """Train as the rank this process is, and return the run directory. Raises ProfilingError."""
    who = parallel.identity()
    where = parallel.device(config.device, who.local_rank)
    mode = parallel.MODES[config.parallel]
    with parallel.process_group(mode, where):
        return _train(config, who, where, command)


def train_step(
    model: nn.Module, criterion: nn.Module, optimizer: Optimizer, batch: Batch, where: torch.device
) -> Tensor:
    """One step from host batch to updated weights; the loss, still on the device."""
    images, labels = (part.to(where, non_blocking=True) for part in batch)
    optimizer.zero_grad(set_to_none=True)
    loss = cast("Tensor", criterion(model(images), labels))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def _train(config: TrainConfig, who: Identity, where: torch.device, command: Sequence[str]) -> Path:
    torch.manual_seed(config.seed)  # the same weights on every rank
    model = parallel.MODES[config.parallel].wrap(MODELS[config.model]().to(where), where, config)
    subject = Subject(weakref.ref(model), config.model, config.batch_size, config.as_json(), command)
    session = Session(
        config.run_dir(who.world_size),
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
    batches: Iterator[Batch],
    session: Session,
    reporter: Reporter,
) -> None:
    settings = config.optimizer
    optimizer = SGD(model.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    criterion = nn.CrossEntropyLoss()
    for step in range(config.steps):
        loss = train_step(model, criterion, optimizer, next(batches), where)
        session.step()
        phase = config.schedule.phase(step)
        readable = where.type == "cpu" or (phase == "idle" and step % _CUDA_LOSS_EVERY == 0)
        reporter.step(session.last_step_time(), phase, step, loss.item() if readable else None)


def _batches(config: TrainConfig, who: Identity, where: torch.device) -> Generator[Batch, None, None]:
    spec = DataSpec(
        config.batch_size,
        config.image_size,
        config.data_root,
        config.seed,
        who.rank,
        who.world_size,
        pinned=where.type == "cuda",
    )
    return DATA[config.data](spec)


def _headline(config: TrainConfig, who: Identity, where: torch.device) -> str:
    backend = parallel.backend()
    ranks = f"{who.world_size} x {where.type}" + (f" ({backend})" if backend else "")
    schedule = config.schedule
    return (
        f"{config.model}, {config.parallel} on {ranks}, {config.data} data, batch {config.batch_size} per rank; "
        f"{config.steps} steps, {schedule.active * schedule.repeat} of them traced"
    )
