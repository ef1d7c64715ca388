"""`train` as a task of ranks, or of one process."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..base.console.messages import tell
from ..errors import OutOfMemoryError, UsageError
from ..machine import memory
from ..modes import DEFAULT_MODE
from ..ranks import process_group as parallel
from ..ranks.places import join_launched
from ..ranks.task import Task, run_alone, run_task
from ..workloads.data import check_cifar10
from . import loop as train
from .config import TrainConfig
from .learning.optimizers import require_optimizer


def run_training(config: TrainConfig, workers: int | None, args: Sequence[str]) -> int:
    """Train with `config`; return the exit code. Raises ProfilingError for errors before ranks start."""
    join_launched()
    if config.mode.distributed or parallel.under_torchrun():
        return run_task(_task(config), workers, args)
    return run_alone(_task(_of_one_process(config, workers)), args)


def _of_one_process(config: TrainConfig, workers: int | None) -> TrainConfig:
    if config.mode.drives_workers:
        return replace(config, devices=workers)
    if workers not in (None, 1):
        raise UsageError(
            f"--workers {workers}: --parallel {config.parallel} is one process; use --parallel {DEFAULT_MODE}"
        )
    return config


def _task(config: TrainConfig) -> Task:
    """The task of the ranks of a training."""
    return Task(
        config.device,
        config.out / config.run_name if config.run_name is not None else None,
        lambda ranks: _check_training(config, ranks),
        lambda command: _trained(config, command),
        _print_next_steps,
    )


def _trained(config: TrainConfig, command: Sequence[str]) -> Path:
    """Train and return the run directory. Raises ProfilingError, OutOfMemoryError for any form of it."""
    try:
        return train.train_rank(config, command)
    except (RuntimeError, MemoryError, OSError) as err:
        if not memory.exhausted(err):
            raise
        memory.lift_limit()
        raise OutOfMemoryError(
            f"out of memory with --batch-size {config.batch_size}: {memory.first_line(err)}; use a smaller one"
        ) from err


def _check_training(config: TrainConfig, ranks: int) -> None:
    if parallel.under_torchrun():
        config.mode.check_world(ranks)
    require_optimizer(config.optimizer)
    config.mode.check_ranks(config, ranks)
    if config.data == "cifar10":
        check_cifar10(config.data_root)


def _print_next_steps(run_dir: Path) -> None:
    run, folder = shlex.quote(str(run_dir)), shlex.quote(str(run_dir.parent))
    tell(f"{run_dir}\n  tables:       commtrace {run}\n  TensorBoard:  tensorboard --logdir {folder}")
