"""`commtrace regions`: where in the model the time of devices and CPUs goes."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import Runs, analysis_of, reads_traces
from ..tables import print_table


class RegionsBy(str, Enum):
    """What a row stands for, besides a region and its phase."""

    region = "region"
    of_class = "class"
    rank = "rank"
    step = "step"


_TABLES = {
    RegionsBy.region: "regions",
    RegionsBy.of_class: "region_classes",
    RegionsBy.rank: "regions_ranks",
    RegionsBy.step: "regions_steps",
}
_FOR_EACH = {
    RegionsBy.region: (),
    RegionsBy.of_class: (),
    RegionsBy.rank: ("rank", "device"),
    RegionsBy.step: ("rank", "device", "step"),
}
_SHOWN = {RegionsBy.region: 30, RegionsBy.of_class: 30, RegionsBy.rank: 10, RegionsBy.step: 10}
"""Rows that people see unless they ask for more: a model has hundreds of modules."""


@reads_traces
@writes_tables
def regions_command(
    runs: Runs,
    by: Annotated[
        RegionsBy,
        typer.Option(
            help="One row per region, per class of regions (repeated layers as one), per rank and region, or per rank, "
            "step and region."
        ),
    ] = RegionsBy.region,
    depth: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Show the N outermost names of a path; deeper regions count for these."),
    ] = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Show where in the model time goes: by record_function, NVTX, nn.Module and compiled region, the costliest first.

    A kernel belongs to the innermost range around its launch, one of the backward pass to that of its forward
    operator. What a region takes itself adds up to the step, with idle time before its kernels; `total` includes the
    regions inside. Over several ranks, `slowest` is the rank on which a region takes longest.

    --by class makes one row of regions whose names differ in numbers only, such as the MLPs of all layers
    (`layers.*.mlp`), and says which of them takes longest.

    Tables for people have the first 30 regions, or 10 of each rank or step, and say how much of the time the others
    take; --top N shows N; --all, CSV and JSON have all.

    \b
    Examples:
      commtrace regions traces/my-run
      commtrace regions --by class traces/my-run
      commtrace regions --depth 2 --where phase=backward traces/my-run
      commtrace regions --sort slowest_over_ns traces/my-run
      commtrace regions --by rank --where rank=3 --top 20 traces/my-run
      commtrace regions --by step --where step=5 --format csv traces/my-run
    """
    name = _TABLES[by]
    writing.check(name)
    analysis = analysis_of(runs, reading, details=True)
    table = analysis.region_table(name, depth)
    print_table(name, analysis, replace(writing, first=_SHOWN[by]), _FOR_EACH[by], table=table)
