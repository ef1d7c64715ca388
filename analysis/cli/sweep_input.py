"""Input of the commands on sweeps, and their exit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..core.places.place import path_named
from .inputs import PathOrUrl
from .output import print_message

if TYPE_CHECKING:
    from ..sweeps.analysis import SweepAnalysis

Sweeps = Annotated[
    list[PathOrUrl],
    typer.Argument(
        metavar="RUN...", parser=path_named, help="A sweep directory, run directories of a sweep, or a CSV of timings."
    ),
]


def finish_sweep(analysis: SweepAnalysis) -> None:
    """Print which traces could not be used, and exit with 1 if there are any."""
    for failure in analysis.failed:
        print_message(failure)
    if analysis.failed:
        raise typer.Exit(1)
