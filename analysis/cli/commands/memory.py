"""`commtrace memory`: peaks of memory, what filled them and what grows; and the tables behind it."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ...core.row_choice import RowChoice
from ...errors import NothingMeasured
from ...recording.options import ReadOptions
from ..output import Format, Writing, writes_tables
from ..reading_options import Runs, analysis_of, finish, reads_traces
from ..tables import print_table, why_empty


class MemoryBy(str, Enum):
    """What a row stands for."""

    device = "device"
    step = "step"
    place = "place"


_TABLES = {MemoryBy.device: "memory", MemoryBy.step: "memory_steps", MemoryBy.place: "allocations"}


@reads_traces
@writes_tables
def memory_command(
    ctx: typer.Context,
    runs: Runs,
    by: Annotated[
        MemoryBy | None,
        typer.Option(
            help="A table instead of the screen: a row per device, per step of it, or per place of allocation.",
            show_default="the screen; of `table memory` and in other formats, device",
        ),
    ] = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Tell what fills memory at its peak on every rank, where that was allocated, and what grows.

    Needs traces with allocations: profile_memory=True in torch.profiler, --profile-memory of `commtrace run` and
    `train`. What blocks are for is told by the phase in which they were allocated, and for how long they were held;
    what was allocated before the trace is shown as that. A place grows, and may leak, if it holds more after every
    traced step.

    \b
    Examples:
      commtrace memory traces/my-run
      commtrace memory --by step traces/my-run
      commtrace memory --by place --where 'grows_bytes>0' traces/my-run
      commtrace memory --format json traces/my-run
      commtrace table memory traces/my-run
    """
    wants_screen = by is None and not ctx.command_path.endswith("table memory")
    if wants_screen and writing.format is Format.table and writing.choice == RowChoice():
        analysis = analysis_of(runs, reading, details=True)
        if not len(analysis.table("memory")):
            raise NothingMeasured(f"{analysis.run.name}: {why_empty('memory', analysis)}")
        from ...show.memory import memory_screen

        writing.text(memory_screen(analysis, writing.screen))
        finish(analysis)
        return
    name = _TABLES[by or MemoryBy.device]
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
