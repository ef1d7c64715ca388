"""`commtrace table experts`: what uneven experts cost, by step and rank, or by layer."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import Runs, analysis_of, reads_traces
from ..tables import print_table


class ExpertsBy(str, Enum):
    """What a row stands for."""

    step = "step"
    layer = "layer"


@reads_traces
@writes_tables
def experts_command(
    runs: Runs,
    by: Annotated[ExpertsBy, typer.Option(help="A row per layer, step and rank, or per layer.")] = ExpertsBy.step,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Tell what uneven experts cost: tokens and time of each rank's, by layer and step.

    The slowest rank's expert time less the mean over ranks is what its layer costs (cost). Waiting behind the experts
    (in the combine) is for slower experts of others; waiting before them (in the dispatch, and in the exchange of
    counts) is for ranks that were late already, which is no imbalance of experts. --by layer says whether the same
    rank is always the slowest: then it is a matter of placement, else of routing.

    \b
    Examples:
      commtrace table experts traces/my-run
      commtrace table experts --by layer --sort cost_ns traces/my-run
      commtrace table experts --where layer=4 --format csv traces/my-run
    """
    name = "experts" if by is ExpertsBy.step else "experts_layers"
    writing.check(name)
    print_table(name, analysis_of(runs, reading, details=True), writing)
