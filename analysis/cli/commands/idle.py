"""Why devices were idle, by device or step."""

from __future__ import annotations

from typing import Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import Runs, analysis_of, reads_traces
from ..tables import print_table
from .breakdown import BreakdownBy


@reads_traces
@writes_tables
def idle_command(
    runs: Runs,
    by: Annotated[BreakdownBy, typer.Option(help="A row per device, or per device and step.")] = BreakdownBy.device,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Divide the idle time of every device by what the host did before it launched the next activity.

    Idle time is starved (nothing was launched yet), launching (the launch was under way) or queued (the device had the
    work and did not begin). What is starved divides by what the launching thread did: it was blocked (sync), allocated
    (alloc), loaded data (data), ran an operator (operator) or ran Python outside of all operators (outside).

    \b
    Examples:
      {prog} idle traces/my-run
      {prog} idle --by step --format csv traces/my-run
    """
    name = "idle" if by is BreakdownBy.device else "idle_steps"
    print_table(name, analysis_of(runs, reading, details=True), writing)
