"""`commtrace memory`: peaks of memory, what filled them and what grows; and the tables behind it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....common.wording import counted
from ...core.budget import GB
from ...errors import NothingMeasured
from ...recording.options import ReadOptions
from ...run.side_files import batch_beside
from ...snapshots.files import snapshots_beside
from ..output import WHOLE_TABLE, Format, Writing, print_message, writes_tables
from ..reading_options import Runs, analysis_of, finish, finish_failed, reads_traces
from ..snapshots import analyse_given, given_snapshots
from ..tables import print_table, why_empty

if TYPE_CHECKING:
    from ...results.analysis import Analysis
    from ...snapshots.analysis import SnapshotAnalysis


class MemoryBy(str, Enum):
    """What a row stands for."""

    device = "device"
    step = "step"
    place = "place"
    region = "region"
    fragments = "fragments"
    batch = "batch"


_TABLES = {
    MemoryBy.device: "memory",
    MemoryBy.step: "memory_steps",
    MemoryBy.place: "allocations",
    MemoryBy.region: "checkpointing",
    MemoryBy.fragments: "fragments",
    MemoryBy.batch: "batch_memory",
}


@reads_traces
@writes_tables
def memory_command(
    ctx: typer.Context,
    runs: Runs,
    by: Annotated[
        MemoryBy | None,
        typer.Option(
            help="A table instead of the screen: per device, per step of it, per place of allocation, per class of "
            "regions what checkpointing it would save, fragments, or the largest batch that fits, of runs with "
            "different ones.",
            show_default="the screen; of `table memory` and in other formats, device",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="With --by batch: samples per rank and step of each RUN.",
            show_default="as side files say",
        ),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            min=0,
            help="With --by batch: what torch's allocator may take on a device, in 1e9 bytes.",
            show_default="what the device has, without what is used outside of torch",
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
    what was allocated before the trace is shown as that. A place grows, and may leak, if it holds more and more up to
    the end.

    \b
    Examples:
      commtrace memory traces/my-run
      commtrace memory --by step traces/my-run
      commtrace memory --by place --where 'grows_bytes>0' traces/my-run
      commtrace memory --by region traces/my-run
      commtrace memory --format json traces/my-run
      commtrace table memory traces/my-run
      commtrace memory snapshots/
      commtrace memory --by fragments snapshots/*.pickle
      commtrace memory --by batch --batch 32,64 traces/batch-32 traces/batch-64
    """
    if by is MemoryBy.batch:
        _print_batches(runs, batch, limit, writing, reading)
        return
    if batch is not None or limit is not None:
        raise typer.BadParameter("goes with --by batch", param_hint="--batch" if batch is not None else "--limit")
    snapshots = given_snapshots(runs)
    wants_screen = by is None and not ctx.command_path.endswith("table memory")
    as_screen = wants_screen and writing.format is Format.table and writing.choice == WHOLE_TABLE
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


def _print_batches(
    runs: Sequence[Path], batch: str | None, limit: float | None, writing: Writing, reading: ReadOptions
) -> None:
    """Print the largest batch that fits, of runs or snapshots with different ones."""
    writing.check(_TABLES[MemoryBy.batch])
    batches = _batches(runs, batch)
    from ...comparison.batches import fit_batches

    from_traces: list[Analysis] = []
    found: list[Analysis | SnapshotAnalysis] = []
    failed: list[str] = []
    for run in runs:
        if snapshots := given_snapshots([run]):
            dumped = analyse_given(snapshots, reading)
            found.append(dumped)
            failed += dumped.failed
        else:
            from_traces.append(analysis_of([run], reading, details=True))
            found.append(from_traces[-1])
    fits = fit_batches(*found, batches=batches, limit_bytes=None if limit is None else int(limit * GB))
    writing.table(_TABLES[MemoryBy.batch], fits.batch_memory)
    for analysis in from_traces:
        finish(analysis)
    finish_failed(failed)


def _batches(runs: Sequence[Path], given: str | None) -> list[int]:
    """The batch of each run. Raises BadParameter."""
    if given is None:
        told = [batch_beside(run) for run in runs]
        if any(one is None for one in told):
            unknown = runs[told.index(None)]
            raise typer.BadParameter(f"is needed: no side file of {unknown} has its batch size", param_hint="--batch")
        return [one for one in told if one is not None]
    parts = [part.strip() for part in given.split(",")]
    if len(parts) != len(runs) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(
            f"{given}: expected {counted(len(runs), 'number')} of samples, one for each RUN", param_hint="--batch"
        )
    return [int(part) for part in parts]


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
