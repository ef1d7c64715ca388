"""`commtrace table pipeline`: why ranks of a pipeline have nothing to compute, its stages, and other schedules."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import Runs, analysis_of, reads_traces
from ..tables import print_table


class PipelineBy(str, Enum):
    """What a row stands for."""

    step = "step"
    stage = "stage"
    change = "change"


@reads_traces
@writes_tables
def pipeline_command(
    runs: Runs,
    by: Annotated[
        PipelineBy, typer.Option(help="A row per rank and step, per rank and stage, or per change of the schedule.")
    ] = PipelineBy.step,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Tell why the ranks of a pipeline have nothing to compute, step by step, and how long its stages take.

    The schedule is found out and played again: with stages equally long (inherent), as long as they are (imbalance), as
    each microbatch took (jitter), with messages in their order (order) and with the time they took (transfer). With
    work and other these add up to the step. --by stage says what a step would gain if a stage were as the others
    (gain), and if all had equal shares of the work (even gain). --by change says what more microbatches, more chunks
    of each rank, or equal shares would gain at most.

    \b
    Examples:
      commtrace table pipeline traces/my-run
      commtrace table pipeline --by stage --sort gain_ns traces/my-run
      commtrace table pipeline --by change traces/my-run
      commtrace table pipeline --where step=4 --format csv traces/my-run
    """
    name = {"step": "pipeline", "stage": "pipeline_stages", "change": "pipeline_changes"}[by.value]
    writing.check(name)
    print_table(name, analysis_of(runs, reading, details=True), writing)
