"""The command line: `python -m profiling`, or `commtrace-profile` when installed. Importable without torch."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .base.exits import Afterwards, exit_with
from .base.libraries import require
from .base.option_groups import takes
from .base.program import PROGRAM
from .base.schedule import Schedule
from .capacity.command import EXAMPLES as CAPACITY_EXAMPLES
from .capacity.command import capacity
from .comms.command import EXAMPLES as COMMS_EXAMPLES
from .comms.command import comms
from .errors import ProfilingError
from .layers.command import EXAMPLES as LAYERS_EXAMPLES
from .layers.command import layers
from .machine.memory import parse_bytes
from .script.command import EXAMPLES as RUN_EXAMPLES
from .script.command import run
from .sweep import command as sweep_cli
from .train.config import (
    CIFAR10_SAMPLES,
    CIFAR_IMAGE_SIZE,
    TRAILING_STEPS,
    DataName,
    DeviceName,
    ModelName,
    ParallelName,
    ScheduleName,
    TrainConfig,
)
from .train.options import EpochOptions, OptimizerOptions

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Capture distributed training: one Kineto trace per rank, and what is needed to read them.",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 done, 1 the input is at fault, 2 usage, 128 + N stopped by signal N."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        require("torch")
        app(args, obj=args, prog_name=PROGRAM)
    except Afterwards as then:
        start = then.start
    except ProfilingError as err:
        return _failed(err)
    except SystemExit as err:
        return err.code if isinstance(err.code, int) else int(err.code is not None)
    else:
        return 0
    return start(_failed)


@app.callback()
def _commands() -> None:
    # Typer drops the names of commands while there is only one, unless there is a callback.
    pass


@app.command(
    epilog="""[bold]Examples[/bold]

    python -m profiling train --workers 2

    python -m profiling train --parallel single --with-stack --profile-memory

    python -m profiling train --parallel fsdp --workers 2 --device cpu

    python -m profiling train --parallel pipeline --workers 2 --batch-size 64 --microbatches 8

    python -m profiling train --warmup-epochs 1 --timed-epochs 1 --steps-per-epoch 20 --batch-size 8

    python -m profiling train --data cifar10 --epochs 5 --warmup-epochs 1 --batch-size 2048 --lr-scaling linear

    torchrun --nproc-per-node 4 -m profiling train --batch-size 128 --data cifar10

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m profiling train
    """
)
@takes(optimizer=OptimizerOptions, epochs=EpochOptions)
def train(
    ctx: typer.Context,
    *,
    model: Annotated[
        ModelName,
        typer.Option(help="resnet18: the CIFAR variant; vgg16: torchvision's; vgg16-swapped: with ReLU after max pool"),
    ] = "resnet18",
    data: Annotated[
        DataName, typer.Option(help="synthetic: seeded, no files; cifar10: from --data-root")
    ] = "synthetic",
    data_root: Annotated[Path, typer.Option(help="folder that holds cifar-10-batches-py")] = Path("data"),
    image_size: Annotated[int, typer.Option(help="pixels, of synthetic images")] = CIFAR_IMAGE_SIZE,
    dataset_samples: Annotated[
        int, typer.Option(help="synthetic images in an epoch, over all ranks")
    ] = CIFAR10_SAMPLES,
    batch_size: Annotated[
        int, typer.Option(help="per rank; dp: per GPU; pipeline: of all ranks together, which share each batch")
    ] = 32,
    steps: Annotated[
        int | None,
        typer.Option(help="training steps", show_default=f"the profiler's schedule, and {TRAILING_STEPS} more"),
    ] = None,
    seed: Annotated[int, typer.Option(help="of weights and data")] = 0,
    optimizer: OptimizerOptions,
    parallel: Annotated[
        ParallelName,
        typer.Option(
            help="single: one process; dp: nn.DataParallel, one process that drives several GPUs; ddp: "
            "DistributedDataParallel; fsdp: FSDP2, parameters sharded over the ranks; pipeline: consecutive blocks of "
            "the model on each rank (the last one alone knows the loss, which is then not shown)"
        ),
    ] = "ddp",
    bucket_cap_mb: Annotated[
        int,
        typer.Option(min=0, help="MiB in a bucket of DDP's gradients; 0: torch's default, 25 with a first one of 1"),
    ] = TrainConfig.bucket_cap_mb,
    microbatches: Annotated[
        int | None,
        typer.Option(
            help="of a pipeline: parts of a batch; has to divide it", show_default="what divides it, to 2 per stage"
        ),
    ] = None,
    pipeline_schedule: Annotated[
        ScheduleName, typer.Option(help="of a pipeline; gpipe: all forward passes first; 1f1b: one forward, one back")
    ] = TrainConfig.pipeline_schedule,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="ranks to launch here; dp: GPUs to drive", show_default="one per GPU, else 2"),
    ] = None,
    device: Annotated[DeviceName, typer.Option(help="cuda communicates through NCCL, cpu through gloo")] = "auto",
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="of each rank: 4GiB, 500MB or bytes; on CPU what it allocates in all, on a GPU torch's share of it",
            show_default="none",
        ),
    ] = None,
    epochs: EpochOptions,
    wait: Annotated[int, typer.Option(rich_help_panel="Profiler", help="steps before the profiler warms up")] = 2,
    warmup: Annotated[int, typer.Option(rich_help_panel="Profiler", help="profiled steps that are discarded")] = 1,
    active: Annotated[int, typer.Option(rich_help_panel="Profiler", help="traced steps")] = 3,
    repeat: Annotated[int, typer.Option(rich_help_panel="Profiler", help="cycles; a trace file for each")] = 1,
    with_stack: Annotated[bool, typer.Option(rich_help_panel="Profiler", help="record source lines")] = False,
    profile_memory: Annotated[bool, typer.Option(rich_help_panel="Profiler", help="record allocations")] = False,
    out: Annotated[Path, typer.Option(rich_help_panel="Output", help="folder of run directories")] = Path("traces"),
    run_name: Annotated[
        str | None,
        typer.Option(rich_help_panel="Output", help="run directory", show_default="from model, mode, ranks and time"),
    ] = None,
) -> None:
    """Train a model, and trace a few of its steps on every rank.

    Under torchrun this process is one rank. Alone, it launches --workers of them.
    """
    require("torchvision")
    schedule = Schedule(wait, warmup, active, repeat)
    config = TrainConfig(
        schedule=schedule,
        steps=schedule.total_steps + TRAILING_STEPS if steps is None else steps,
        model=model,
        data=data,
        data_root=data_root,
        image_size=image_size,
        parallel=parallel,
        batch_size=batch_size,
        bucket_cap_mb=bucket_cap_mb,
        microbatches=microbatches,
        pipeline_schedule=pipeline_schedule,
        optimizer=optimizer.config(model),
        seed=seed,
        device=device,
        out=out,
        run_name=run_name,
        with_stack=with_stack,
        profile_memory=profile_memory,
        dataset_samples=dataset_samples,
        warmup_epochs=epochs.warmup_epochs,
        timed_epochs=epochs.timed_epochs,
        steps_per_epoch=epochs.steps_per_epoch,
        training=epochs.plan(),
        memory_limit_bytes=None if memory_limit is None else parse_bytes(memory_limit),
    )

    def start() -> int:
        from .ranks.task import run

        return run(config, workers, ctx.obj)

    exit_with(start)


app.command(epilog=COMMS_EXAMPLES)(comms)
app.command(epilog=CAPACITY_EXAMPLES)(capacity)
app.command(epilog=LAYERS_EXAMPLES)(layers)
app.command("sweep", epilog=sweep_cli.EXAMPLES)(sweep_cli.command)
app.command(epilog=RUN_EXAMPLES, context_settings={"allow_interspersed_args": False})(run)


def _failed(error: ProfilingError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code
