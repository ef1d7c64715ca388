"""`commtrace run`. Importable without torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...common.option_groups import takes
from ..base.commands.profiler_options import KeepOptions, RecordingOptions, ScheduleOptions
from ..errors import ProfilingError, UsageError
from ..ranks.exits import RunAfterParsing
from ..ranks.places import words_of_launcher
from .config import WHOLE_RUN, Limits, RunConfig, Target

_SCHEDULE = ("wait", "warmup", "active", "repeat", "steps_of", "step_on")
_LIMITS = ("max_seconds", "max_memory_gb")


@dataclass(frozen=True)
class _ScriptOptions:
    """What to run, and with how many workers."""

    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Script to run; with -m, the name of a module.")]
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.")] = None
    is_module: Annotated[bool, typer.Option("-m", help="Take SCRIPT as a module, like python -m.")] = False
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks to launch here.", show_default="this process is the script"),
    ] = None


@dataclass(frozen=True)
class _StepOptions:
    """Where a step ends."""

    steps_of: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel="Profiler",
            help="Optimizer steps in one step, as with several optimizers.",
            show_default="one, or a round of several optimizers",
        ),
    ] = None
    step_on: Annotated[
        str | None,
        typer.Option(
            metavar="[MODULE:]NAME",
            rich_help_panel="Profiler",
            help="End a step where this function of the script, or of a module, returns.",
            show_default="optimizer steps",
        ),
    ] = None


@dataclass(frozen=True)
class _LimitOptions:
    """Whether to trace the whole script, and for how long."""

    whole_run: Annotated[
        bool,
        typer.Option("--whole-run", rich_help_panel="Profiler", help="Trace the whole script instead of some steps."),
    ] = False
    max_seconds: Annotated[
        float, typer.Option(rich_help_panel="Profiler", help="With --whole-run: stop tracing after this time.")
    ] = Limits.seconds
    max_memory_gb: Annotated[
        float,
        typer.Option(
            rich_help_panel="Profiler", help="With --whole-run: stop tracing when the process has grown by this."
        ),
    ] = Limits.memory_gb


@dataclass(frozen=True)
class _OutputOptions:
    """Where to write the run directory."""

    out: Annotated[Path, typer.Option(rich_help_panel="Output", help="Folder for run directories.")] = Path("traces")
    run_name: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Output", help="Name of the run directory.", show_default="from script, ranks and time"
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            rich_help_panel="Output",
            help="If --out cannot be written to, end with exit code 1 before the script starts.",
        ),
    ] = False


@takes(
    of=_ScriptOptions,
    profiled=ScheduleOptions,
    ends=_StepOptions,
    limits=_LimitOptions,
    recording=RecordingOptions,
    output=_OutputOptions,
    kept=KeepOptions,
)
def run_command(
    ctx: typer.Context,
    *,
    of: _ScriptOptions,
    profiled: ScheduleOptions,
    ends: _StepOptions,
    limits: _LimitOptions,
    recording: RecordingOptions,
    output: _OutputOptions,
    kept: KeepOptions,
) -> None:
    """Run a training script as it is, and trace a few of its steps on every rank.

    A step ends where the optimizer steps after a backward pass; where several optimizers take turns, as in a GAN, it is
    a round of all of them. The first step only opens the capture; the next one is step 0. Under torchrun, srun or
    mpirun this process is one rank; --workers launches ranks here. Ranks that the script starts, with
    torch.multiprocessing or by running itself again, are captured too. What the script prints and how it ends stay its
    own.

    \b
    Examples:
      commtrace run train.py --epochs 3
      commtrace run --workers 2 --active 5 -m mypackage.train --lr 0.1
      torchrun --nproc-per-node 8 -m commtrace run --run-name mine train.py
      torchrun --nproc-per-node 8 -m commtrace run --analyse train.py
      commtrace run --steps-of 2 train_gan.py
      commtrace run --step-on train_step train.py
      commtrace run --whole-run --max-seconds 20 infer.py
    """
    _check_options(ctx, whole_run=limits.whole_run)
    config = RunConfig(
        target=Target(of.script, (*words_of_launcher(ctx.obj), *(of.args or ())), of.is_module),
        out=output.out.absolute(),
        schedule=WHOLE_RUN if limits.whole_run else profiled.schedule(),
        limits=Limits(limits.max_seconds, limits.max_memory_gb) if limits.whole_run else None,
        run_name=output.run_name,
        strict=output.strict,
        **recording.settings(),
        keeping=kept.keeping(),
        steps_of=ends.steps_of,
        step_on=ends.step_on,
    )
    command_line = ctx.obj

    def start(failed: Callable[[ProfilingError], int]) -> int:
        from .run import run_script

        return run_script(config, of.workers, command_line, failed)

    raise RunAfterParsing(start)


def _check_options(ctx: typer.Context, *, whole_run: bool) -> None:
    """Refuse options that mean nothing with, or without, --whole-run."""
    for name in _SCHEDULE if whole_run else _LIMITS:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            if whole_run:
                raise UsageError(f"{option} has no meaning with --whole-run, which traces everything; leave one out")
            raise UsageError(f"{option} is only for --whole-run; add that, or leave it out")
