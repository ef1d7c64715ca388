"""`commtrace subtraction`: communication as a difference of epoch times."""

from __future__ import annotations

from typing import Annotated

import typer

from ...errors import NothingMeasured
from ...recording.options import ReadOptions
from ...sweeps.by_hand import KNOWN_MISTAKES
from ..output import Writing, progress, writes_tables
from ..reading_options import reads_traces
from ..sweep_input import Sweeps, finish_sweep

Mistakes = Annotated[
    list[str] | None,
    typer.Option(
        "--mistake",
        metavar="NAME",
        help=f"Show how this mistake changes the bandwidth: {', '.join(KNOWN_MISTAKES)}, or all; repeatable.",
    ),
]


@reads_traces
@writes_tables
def subtraction_command(
    runs: Sweeps,
    mistake: Mistakes = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print communication by subtraction.

    With --keep-going, a cell with damaged traces is shown without measured communication.

    \b
    Examples:
      commtrace table subtraction traces/my-sweep
      commtrace table subtraction --mistake one-message --mistake gib timings.csv
      commtrace table subtraction --mistake all --format markdown traces/my-sweep
    """
    names = _checked(mistake or [])
    name = "mistakes" if names else "subtraction"
    writing.check(name)
    from ...sweeps.analysis import sweep_analysis_of

    with progress() as report:
        analysis = sweep_analysis_of(runs, reading, report)
        table = analysis.mistakes(names) if names else analysis.subtraction
    if not len(table):
        raise NothingMeasured(
            f"{analysis.sweep.name}: no cell has more than one worker, so there is nothing to subtract; add cells with "
            "2 or more workers, or use `table scaling`"
        )
    writing.table(name, table)
    finish_sweep(analysis)


def _checked(names: list[str]) -> list[str]:
    """The chosen mistakes, each once. Raises BadParameter."""
    if "all" in names:
        return list(KNOWN_MISTAKES)
    for name in names:
        if name not in KNOWN_MISTAKES:
            message = f"{name!r} is not one of {', '.join(KNOWN_MISTAKES)}, all"
            raise typer.BadParameter(message, param_hint="--mistake")
    return list(dict.fromkeys(names))
