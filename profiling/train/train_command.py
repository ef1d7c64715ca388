"""`commtrace train`. Importable without torch."""

import typer

from ...common.option_groups import takes
from ..base.commands.profiler_options import KeepOptions, RecordingOptions, ScheduleOptions
from ..base.libraries import require
from ..base.schedule import TRAILING_STEPS
from ..ranks.exits import exit_with
from .captures import run_captures
from .config import TrainConfig
from .options import EpochOptions, OptimizerOptions, OutputOptions, ParallelOptions, PlaceOptions, SubjectOptions


@takes(
    subject=SubjectOptions,
    optimizer=OptimizerOptions,
    parallel=ParallelOptions,
    place=PlaceOptions,
    epochs=EpochOptions,
    profiled=ScheduleOptions,
    recording=RecordingOptions,
    output=OutputOptions,
    kept=KeepOptions,
)
def train_command(
    ctx: typer.Context,
    *,
    subject: SubjectOptions,
    optimizer: OptimizerOptions,
    parallel: ParallelOptions,
    place: PlaceOptions,
    epochs: EpochOptions,
    profiled: ScheduleOptions,
    recording: RecordingOptions,
    output: OutputOptions,
    kept: KeepOptions,
) -> None:
    """Train a model and trace a few of its steps on every rank.

    Under torchrun this process is one rank; otherwise it launches --workers ranks.

    \b
    Examples:
      commtrace train --workers 2
      commtrace train --parallel single --with-stack --profile-memory
      commtrace train --parallel fsdp --workers 2 --device cpu
      commtrace train --parallel pipeline --workers 2 --batch-size 64 --microbatches 8
      commtrace train --parallel pipeline --pipeline-schedule interleaved --stage-blocks 1,5,2,2
      commtrace train --warmup-epochs 1 --timed-epochs 1 --steps-per-epoch 20 --batch-size 8
      commtrace train --captures 3 --run-name before
      commtrace train --workers 2 --keep recording --analyse
      commtrace train --data cifar10 --epochs 5 --warmup-epochs 1 --batch-size 2048 --lr-scaling linear
      torchrun --nproc-per-node 4 -m commtrace train --batch-size 128 --data cifar10
      torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m commtrace train
    """
    require("torchvision")
    schedule = profiled.schedule()
    config = TrainConfig(
        schedule,
        schedule.total_steps + TRAILING_STEPS if subject.steps is None else subject.steps,
        **subject.settings(),
        **parallel.settings(),
        **epochs.settings(),
        **place.settings(),
        **vars(output),
        **recording.settings(),
        keeping=kept.keeping(),
        optimizer=optimizer.config(subject.model, epochs.epochs),
    )

    def start() -> int:
        if place.captures > 1:
            return run_captures(config, place.captures, ctx.obj)
        from .task import run_training

        return run_training(config, place.workers, ctx.obj)

    exit_with(start)
