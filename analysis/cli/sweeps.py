"""The commands across runs: tables of whole sweeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import NothingMeasured
from ..recording.options import ReadOptions
from ..sweeps.by_hand import MISTAKES
from .output import Format, KeepGoing, Output, OutputFormat, complain, progress, show
from .reading_options import reads_traces

if TYPE_CHECKING:
    from ..sweeps.analysis import SweepAnalysis

Sweeps = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="A sweep directory, run directories of a sweep, or a CSV of timings."),
]
Mistakes = Annotated[
    list[str] | None,
    typer.Option(
        "--mistake",
        metavar="NAME",
        help=f"Instead show the bandwidth with this mistake, and without: {', '.join(MISTAKES)}, or all.",
    ),
]


def scaling_command(
    runs: Sweeps,
    output_format: OutputFormat = Format.table,
    output: Output = None,
    keep_going: KeepGoing = False,
) -> None:
    """Epoch time, both speedups, strong and weak efficiency of every cell of a sweep.

    \b
    A CSV of timings has the header
      model,parallel,workers,batch_size_per_rank,epoch_s[,dataset_samples][,parameters]
    """
    from ..sweeps.analysis import analyse_sweep

    analysis = analyse_sweep(*runs, keep_going=keep_going)
    show("scaling", analysis.scaling, output_format, output)
    _finish(analysis)


@reads_traces
def subtraction_command(
    runs: Sweeps,
    mistake: Mistakes = None,
    output_format: OutputFormat = Format.table,
    output: Output = None,
    *,
    reading: ReadOptions,
) -> None:
    """Communication by subtracting epoch times, beside what the traces of the same cells measured.

    With --keep-going, a cell with damaged traces is shown without what they measured.
    """
    names = _checked(mistake or [])
    from ..sweeps.analysis import sweep_analysis_of

    with progress() as report:
        analysis = sweep_analysis_of(runs, reading, report)
        table = analysis.mistakes(names) if names else analysis.subtraction
    if not len(table):
        raise NothingMeasured(
            f"{analysis.sweep.name}: no cell has more than one worker, so there is nothing to subtract; add cells with "
            "2 or more workers, or use `scaling`"
        )
    show("mistakes" if names else "subtraction", table, output_format, output)
    _finish(analysis)


COMMANDS: dict[str, Callable[..., None]] = {"scaling": scaling_command, "subtraction": subtraction_command}
EXAMPLES = {
    "scaling": """\b
Examples:
  {prog} scaling traces/my-sweep
  {prog} scaling --format latex --output scaling.tex traces/my-sweep
  {prog} scaling timings.csv
""",
    "subtraction": """\b
Examples:
  {prog} subtraction traces/my-sweep
  {prog} subtraction --mistake one-message --mistake gib timings.csv
  {prog} subtraction --mistake all --format markdown traces/my-sweep
""",
}


def _checked(names: list[str]) -> list[str]:
    """The mistakes asked for, each once. Raises BadParameter."""
    if "all" in names:
        return list(MISTAKES)
    for name in names:
        if name not in MISTAKES:
            message = f"{name!r} is none of {', '.join(MISTAKES)}, all"
            raise typer.BadParameter(message, param_hint="--mistake")
    return list(dict.fromkeys(names))


def _finish(analysis: SweepAnalysis) -> None:
    for failure in analysis.failed:
        complain(failure)
    if analysis.failed:
        raise typer.Exit(1)
