"""`commtrace breakdown`: time by device or step. A single device needs no pandas, which saves its import."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import Runs, analysed, one_device, opened, reads_traces
from ..tables import print_device_table, print_table


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
    with opened(runs, reading) as run:
        device = one_device(run)
        if device is None:
            print_table(name, analysed(run), writing)
            return
    print_device_table(name, run.name, device, writing)
