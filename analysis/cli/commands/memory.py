"""`commtrace memory`: peaks of memory, what filled them and what grows; and the tables behind it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ...core.row_choice import RowChoice
from ...errors import NothingMeasured
from ...recording.options import ReadOptions
from ...snapshots.files import snapshots_beside
from ..output import Format, Writing, print_message, writes_tables
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
            show_default="the screen; of `table memory` and in other formats, device",
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
    and `train`. The phase in which a block was allocated, and how long it was held, tell what it is for;
    what was allocated before the trace is shown as that. A place grows, and may leak, if it holds more after every
    traced step.

    \b
    Examples:
      commtrace memory traces/my-run
      commtrace memory --by step traces/my-run
      commtrace memory --by place --where 'grows_bytes>0' traces/my-run
      commtrace memory --format json traces/my-run
      commtrace table memory traces/my-run
      commtrace memory snapshots/
      commtrace memory --by fragments snapshots/*.pickle
    """
    snapshots = given_snapshots(runs)
    wants_screen = by is None and not ctx.command_path.endswith("table memory")
    as_screen = wants_screen and writing.format is Format.table and writing.choice == RowChoice()
    if snapshots or by is MemoryBy.fragments:
        writing.check(_TABLES[by or MemoryBy.device])
        _print_snapshots(snapshots or runs, by, writing, reading, as_screen=as_screen)
        return
    name = _TABLES[by or MemoryBy.device]
    writing.check(name)
    analysis = analysis_of(runs, reading, details=True)
    beside = snapshots_beside(runs)
    if beside and not len(analysis.table("memory")):
        print_message(f"{analysis.run.name}: its traces have no allocations, but snapshots are beside them", "note")
        _print_snapshots(beside, by, writing, reading, as_screen=as_screen)
        return
    if beside:
        print_message("of the traces; of the snapshots beside them: --by fragments, or name them", "note")
    if as_screen:
        if not len(analysis.table("memory")):
            raise NothingMeasured(f"{analysis.run.name}: {why_empty('memory', analysis)}")
        from ...show.memory import memory_screen

        writing.text(memory_screen(analysis, writing.screen))
        finish(analysis)
        return
    print_table(name, analysis, writing)


def _print_snapshots(
    paths: Sequence[Path], by: MemoryBy | None, writing: Writing, reading: ReadOptions, *, as_screen: bool
) -> None:
    """Print what snapshots tell, as a screen or one table."""
    found = analyse_given(paths, reading)
    if as_screen:
        from ...show.memory import memory_screen

        writing.text(memory_screen(found, writing.screen))
    else:
        name = _TABLES[by or MemoryBy.device]
        writing.table(name, found.table(name))
    finish_failed(found.failed)


@reads_traces
@writes_tables
def allocations_command(runs: Runs, *, writing: Writing, reading: ReadOptions) -> None:
    """Print where memory was allocated that is held at the peak, and what grows from step to step.

    \b
    Examples:
      commtrace table allocations traces/my-run
      commtrace table allocations --where 'grows_bytes>0' traces/my-run
    """
    writing.check("allocations")
    snapshots = given_snapshots(runs)
    if snapshots:
        _print_snapshots(snapshots, MemoryBy.place, writing, reading, as_screen=False)
    else:
        print_table("allocations", analysis_of(runs, reading, details=True), writing)
