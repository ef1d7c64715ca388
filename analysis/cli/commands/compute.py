"""`commtrace compute`: how fast devices computed, beside their peaks."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, print_message, writes_tables
from ..reading_options import Peaks, Runs, analysis_of, reads_traces
from ..tables import print_table


class ComputeBy(str, Enum):
    """What a row stands for."""

    device = "device"
    step = "step"
    category = "category"
    shape = "shape"
    rank = "rank"


_TABLES = {
    ComputeBy.device: "mfu",
    ComputeBy.step: "mfu_steps",
    ComputeBy.category: "categories",
    ComputeBy.shape: "shapes",
    ComputeBy.rank: "shapes_ranks",
}


@reads_traces
@writes_tables
def compute_command(
    runs: Runs,
    by: Annotated[
        ComputeBy,
        typer.Option(
            help="One row per device, per device and step, per category, per operator and the shapes of its inputs, "
            "or per rank, beside others that ran the same shapes."
        ),
    ] = ComputeBy.device,
    peak: Peaks = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Show how much of its peak a device reached, and where the rest went; or how fast operators were.

    MFU is the time that the floating-point operations of a step would take at the device's dense peak,
    over the time that the step took. What is missing is in the columns beside it, which add up to the
    step. It needs shapes of operators: capture with record_shapes=True.

    \b
    Examples:
      commtrace compute traces/my-run
      commtrace compute --peak bf16=1307 --peak memory=5.3 traces/my-run
      commtrace compute --by step traces/my-run
      commtrace compute --by category traces/my-run
      commtrace compute --by shape --top 20 traces/my-run
      commtrace compute --by shape --format csv traces/my-run
      commtrace compute --by rank traces/my-run
    """
    name = _TABLES[by]
    writing.check(name)
    analysis = analysis_of(runs, reading, peaks=peak, details=True)
    for note in analysis.peak_notes if by not in (ComputeBy.category, ComputeBy.rank) else ():
        print_message(note, kind="note")
    print_table(name, analysis, writing)
