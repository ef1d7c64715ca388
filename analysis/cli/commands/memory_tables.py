"""`commtrace table memory` and `commtrace table allocations`: the tables behind `commtrace memory`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import Runs, analysis_of, reads_traces
from ..tables import print_table


class MemoryTableBy(str, Enum):
    """What a row stands for."""

    device = "device"
    step = "step"


@reads_traces
@writes_tables
def memory_command(
    runs: Runs,
    by: Annotated[
        MemoryTableBy, typer.Option(help="A row per rank and device, or per step of each.")
    ] = MemoryTableBy.device,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print the peak of every device: bytes, when it was, and what filled it.

    \b
    Examples:
      commtrace table memory traces/my-run
      commtrace table memory --by step --format csv traces/my-run
    """
    name = "memory" if by is MemoryTableBy.device else "memory_steps"
    writing.check(name)
    print_table(name, analysis_of(runs, reading, details=True), writing)


@reads_traces
@writes_tables
def allocations_command(runs: Runs, *, writing: Writing, reading: ReadOptions) -> None:
    """Print where memory was allocated that is held at the peak, and what grows from step to step.

    \b
    Examples:
      commtrace table allocations traces/my-run
      commtrace table allocations --where 'grows_bytes>0' --format json traces/my-run
    """
    writing.check("allocations")
    print_table("allocations", analysis_of(runs, reading, details=True), writing)
