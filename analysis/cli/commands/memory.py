"""`commtrace memory`: peaks of memory, what filled them and what grows; and the tables behind it."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ...core.row_choice import RowChoice
from ...errors import NothingMeasured
from ...recording.options import ReadOptions
from ..output import Format, Writing, writes_tables
from ..reading_options import Runs, analysis_of, finish, finish_failed, reads_traces
from ..snapshots import analyse_given, given_snapshots
from ..tables import print_table, why_empty


class MemoryBy(str, Enum):
    """What a row stands for."""

    device = "device"
    step = "step"
    place = "place"
    fragments = "fragments"


_TABLES = {
    MemoryBy.device: "memory",
    MemoryBy.step: "memory_steps",
    MemoryBy.place: "allocations",
    MemoryBy.fragments: "fragments",
}


@reads_traces
@writes_tables
def memory_command(
    ctx: typer.Context,
    runs: Runs,
    by: Annotated[
        MemoryBy | None,
        typer.Option(
            help="A table instead of the screen: per device, per step of it, per place of allocation, or fragments.",
            show_default="the screen; in other formats, device",
        ),
    ] = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Tell what fills memory at its peak on every rank, where that was allocated, and what grows.

    Reads snapshots of torch's allocator as well (torch.cuda.memory._dump_snapshot: pickles, of which nothing is
    executed, or JSON), one per rank: files, or a folder of them.

    Of runs it needs traces with allocations: profile_memory=True in torch.profiler, --profile-memory of `commtrace run`
    and `train`. What blocks are for is told by the phase in which they were allocated, and for how long they were held;
    what was allocated before the trace is shown as that. A place grows, and may leak, if it holds more after every
    traced step.

    \b
    Examples:
      commtrace memory traces/my-run
      commtrace memory --by step traces/my-run
      commtrace memory --by place --where 'grows_bytes>0' traces/my-run
      commtrace memory --format json traces/my-run
      commtrace memory snapshots/
      commtrace memory --by fragments snapshots/*.pickle
    """
    snapshots = given_snapshots(runs)
    as_screen = by is None and writing.format is Format.table and writing.choice == RowChoice()
    if snapshots or by is MemoryBy.fragments:
        writing.check(_TABLES[by or MemoryBy.device])
        found = analyse_given(snapshots or runs, reading)
        if as_screen:
            from ...show.memory import memory_screen

            writing.text(memory_screen(found, writing.screen))
        else:
            writing.table(_TABLES[by or MemoryBy.device], found.table(_TABLES[by or MemoryBy.device]))
        finish_failed(found.failed)
        return
    if as_screen:
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
