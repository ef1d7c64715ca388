"""`python -m profiling run`. Importable without torch."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ..base.exits import Afterwards
from ..base.schedule import Schedule
from ..errors import ProfilingError, UsageError
from . import own_name
from .config import WHOLE, Limits, RunConfig, Target

_SCHEDULE = ("wait", "warmup", "active", "repeat")
_LIMITS = ("max_seconds", "max_memory_gb")

EXAMPLES = """[bold]Examples[/bold]

    python -m profiling run train.py --epochs 3

    python -m profiling run --workers 2 --active 5 -m mypackage.train --lr 0.1

    torchrun --nproc-per-node 8 -m profiling run --run-name mine train.py

    python -m profiling run --whole-run --max-seconds 20 infer.py
    """


def run(
    ctx: typer.Context,
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="what to run; with -m, the name of a module")],
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="its own arguments")] = None,
    is_module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as after python -m")] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="ranks to launch here", show_default="this process is the script"),
    ] = None,
    wait: Annotated[int, typer.Option(rich_help_panel="Profiler", help="steps before the profiler warms up")] = 2,
    warmup: Annotated[int, typer.Option(rich_help_panel="Profiler", help="profiled steps that are discarded")] = 1,
    active: Annotated[int, typer.Option(rich_help_panel="Profiler", help="traced steps")] = 3,
    repeat: Annotated[int, typer.Option(rich_help_panel="Profiler", help="cycles; a trace file for each")] = 1,
    whole_run: Annotated[
        bool, typer.Option("--whole-run", rich_help_panel="Profiler", help="trace all of it, whatever its steps are")
    ] = False,
    max_seconds: Annotated[
        float, typer.Option(rich_help_panel="Profiler", help="of --whole-run, which stops tracing then")
    ] = Limits.seconds,
    max_memory_gb: Annotated[
        float,
        typer.Option(rich_help_panel="Profiler", help="of --whole-run, which stops when the process has grown so much"),
    ] = Limits.memory_gb,
    with_stack: Annotated[bool, typer.Option(rich_help_panel="Profiler", help="record source lines")] = False,
    profile_memory: Annotated[bool, typer.Option(rich_help_panel="Profiler", help="record allocations")] = False,
    out: Annotated[Path, typer.Option(rich_help_panel="Output", help="folder of run directories")] = Path("traces"),
    run_name: Annotated[
        str | None,
        typer.Option(rich_help_panel="Output", help="run directory", show_default="from script, ranks and time"),
    ] = None,
) -> None:
    """Run a training script as it is, and trace a few of its steps on every rank.

    A step ends with the step of the first optimizer that makes one. The first step only opens the capture, and the next
    one is step 0. Under torchrun this process is one rank; --workers launches ranks here; processes that the script
    starts with torch.multiprocessing are captured too. What the script prints and how it ends are its own.
    """
    _check_options(ctx, whole_run=whole_run)
    config = RunConfig(
        target=Target(script, tuple(args or ()), is_module),
        out=out.absolute(),
        schedule=WHOLE if whole_run else Schedule(wait, warmup, active, repeat),
        limits=Limits(max_seconds, max_memory_gb) if whole_run else None,
        run_name=run_name,
        with_stack=with_stack,
        profile_memory=profile_memory,
    )
    command_line = ctx.obj

    def start(failed: Callable[[ProfilingError], int]) -> int:
        script = f"{own_name.leave()}.script"
        same = importlib.import_module(f"{script}.config").RunConfig.from_json(config.as_json())
        code: int = importlib.import_module(f"{script}.run").run_script(same, workers, command_line, failed)
        return code

    raise Afterwards(start)


def _check_options(ctx: typer.Context, *, whole_run: bool) -> None:
    """Refuse options that have no meaning beside, or without, --whole-run."""
    for name in _SCHEDULE if whole_run else _LIMITS:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            verb = "has no meaning with" if whole_run else "is of"
            raise UsageError(f"--{name.replace('_', '-')} {verb} --whole-run, which traces everything; leave one out")
