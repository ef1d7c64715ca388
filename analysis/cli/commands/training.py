"""`commtrace table training`: compare trainings."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ...core.places.place import path_named
from ..inputs import PathOrUrl
from ..output import Writing, print_message, write_out, writes_tables
from ..reading_options import KeepGoing


class TrainingBy(str, Enum):
    """What a row stands for."""

    run = "run"
    epoch = "epoch"


TrainingRuns = Annotated[
    list[PathOrUrl],
    typer.Argument(
        metavar="RUNS...", parser=path_named, help="Run directories of `train --epochs`, or folders of them."
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Compare with this run.",
        show_default="the smallest global batch, then the fewest workers",
    ),
]
AfterEpochs = Annotated[
    int | None,
    typer.Option(
        "--epoch", metavar="N", min=1, help="Compare after N epochs.", show_default="5, or as many as the baseline has"
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Also write the report, with loss and accuracy by epoch, as HTML."),
]


@writes_tables
def training_command(
    runs: TrainingRuns,
    by: Annotated[TrainingBy, typer.Option(help="One row per run, or per run and epoch.")] = TrainingBy.run,
    baseline: Baseline = None,
    epoch: AfterEpochs = None,
    plot: Plot = None,
    keep_going: KeepGoing = False,
    *,
    writing: Writing,
) -> None:
    """Print loss, accuracy and time.

    All trainings are compared after the same number of epochs.

    \b
    Examples:
      commtrace table training traces/small-batch traces/large-batch
      commtrace table training --epoch 10 --plot all.html traces
      commtrace table training --by epoch --format csv traces/large-batch
    """
    if plot is not None and plot.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter(f"{plot}: the plot is HTML; name a file that ends with .html", param_hint="--plot")
    name = "training" if by is TrainingBy.run else "training_epochs"
    writing.check(name)
    from ...training.analysis import analyse_training

    analysis = analyse_training(*runs, baseline=baseline, after_epochs=epoch, keep_going=keep_going)
    writing.table(name, analysis.training if by is TrainingBy.run else analysis.training_epochs)
    if plot is not None:
        from ...report.across import training_page

        write_out(training_page(runs[0].resolve().name, analysis).html, plot)
    for failure in analysis.trainings.failed:
        print_message(failure)
    if analysis.trainings.failed:
        raise typer.Exit(1)
