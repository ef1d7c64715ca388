"""`commtrace breakdown`: time by device or step."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import Runs, analysis_of, reads_traces
from ..tables import print_table


class BreakdownBy(str, Enum):
    """What a row of the breakdown stands for."""

    device = "device"
    step = "step"


@reads_traces
@writes_tables
def breakdown_command(
    runs: Runs,
    by: Annotated[BreakdownBy, typer.Option(help="One row per device, or per device and step.")] = BreakdownBy.device,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print the breakdown."""
    name = "breakdown" if by is BreakdownBy.device else "breakdown_steps"
    writing.check(name)
    print_table(name, analysis_of(runs, reading), writing)
