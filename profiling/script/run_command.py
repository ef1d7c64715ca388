"""`commtrace run`. Importable without torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...common.option_groups import takes
from ..base.commands.profiler_options import KeepOptions, RecordingOptions
from ..base.schedule import ACTIVE, FROM_STEP, WARMUP, Schedule, window
from ..errors import ProfilingError, UsageError
from ..ranks.exits import RunAfterParsing
from ..ranks.places import words_of_launcher
from .config import UNTIL_PLANNED, WHOLE_RUN, Limits, RunConfig, Target

_SCHEDULE = ("from_step", "from_minute", "wait", "warmup", "active", "repeat", "steps_of", "step_on")
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


def _step_option(text: str, shown: str | None = None) -> Any:
    return typer.Option(help=text, rich_help_panel="Profiler", show_default=True if shown is None else shown or False)


@dataclass(frozen=True)
class _StepOptions:
    """Which steps are traced."""

    from_step: Annotated[
        int | None,
        _step_option("The first traced step; 0 is the second step of the optimizer.", f"{FROM_STEP}; earlier if short"),
    ] = None
    from_minute: Annotated[
        float | None, _step_option("Trace once the training has gone on for this many minutes.", "")
    ] = None
    wait: Annotated[int | None, _step_option("Instead of --from-step: steps before the warm-up.", "")] = None
    warmup: Annotated[int, _step_option("Profiled steps to discard.")] = WARMUP
    active: Annotated[
        int | None,
        _step_option("Steps to trace in each cycle.", f"{ACTIVE}; two periods of a loop that is longer than a step"),
    ] = None
    repeat: Annotated[int, _step_option("Number of cycles, each with its own trace file.")] = 1

    def schedule(self) -> Schedule:
        """The profiler's schedule. Raises UsageError."""
        given = [name for name in ("from_step", "from_minute", "wait") if getattr(self, name) is not None]
        if len(given) > 1:
            first, second = (f"--{name.replace('_', '-')}" for name in given[:2])
            raise UsageError(f"{first} and {second} both say when the traced steps begin; leave one out")
        if self.from_minute is None:
            return window(self.from_step, wait=self.wait, warmup=self.warmup, active=self.active, repeat=self.repeat)
        if not 0 < self.from_minute < float("inf"):
            raise UsageError(f"--from-minute {self.from_minute:g}: expected a number above 0")
        if self.repeat != 1:
            raise UsageError("--from-minute has one cycle; leave --repeat out")
        return Schedule(UNTIL_PLANNED, self.warmup, ACTIVE if self.active is None else self.active)


@dataclass(frozen=True)
class _StepEndOptions:
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
    profiled=_StepOptions,
    ends=_StepEndOptions,
    limits=_LimitOptions,
    recording=RecordingOptions,
    output=_OutputOptions,
    kept=KeepOptions,
)
def run_command(
    ctx: typer.Context,
    *,
    of: _ScriptOptions,
    profiled: _StepOptions,
    ends: _StepEndOptions,
    limits: _LimitOptions,
    recording: RecordingOptions,
    output: _OutputOptions,
    kept: KeepOptions,
) -> None:
    """Run a training script as it is, and trace a few of its steps on every rank.

    A step ends where the optimizer steps after a backward pass; where several optimizers take turns, as in a GAN, it is
    a round of all of them. The first step only opens the capture; the next one is step 0. Steps 10 to 14 are traced, or
    earlier ones of a script that ends before; more of them while it runs, by commtrace trigger RUN_DIR, or SIGUSR2 to
    one of its ranks.

    Under torchrun, srun or mpirun this process is one rank; --workers launches ranks here. Ranks that the script
    starts, with torch.multiprocessing or by running itself again, are captured too. What the script prints and how it
    ends stay its own.

    \b
    Examples:
      commtrace run train.py --epochs 3
      commtrace run --from-step 500 train.py
      commtrace run --from-minute 30 --active 3 train.py
      commtrace run --workers 2 -m mypackage.train --lr 0.1
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
        from_minute=profiled.from_minute,
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
