"""`commtrace hang`: name the ranks that are missing from a collective."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ..core.places.place import is_remote, path_named
from ..core.process import gc_frozen
from ..errors import AnalysisError
from ..formats.registry import format_named_like
from ..hang.files import holds_dumps
from ..reading.trace_files import trace_files
from ..recording.options import ReadOptions
from .inputs import PathOrUrl
from .output import Format, Writing, print_message, writes_tables
from .reading_options import analysis_of, reads_traces
from .tables import print_table

_FOUND = 1


class HangBy(str, Enum):
    """The table of a hang to print."""

    origin = "origin"
    wait = "wait"
    group = "group"
    mismatch = "mismatch"
    stack = "stack"


DumpPaths = Annotated[
    list[PathOrUrl],
    typer.Argument(
        metavar="DUMPS|RUN...",
        parser=path_named,
        help="Dumps of the flight recorder, one per rank, or folders of them; or the traces of a run that hung.",
    ),
]
OneHangTable = Annotated[
    HangBy | None,
    typer.Option(help="Print only this table of dumps. Without it, CSV and LaTeX hold the table of origins."),
]


@reads_traces
@writes_tables
def hang_command(
    runs: DumpPaths,
    by: OneHangTable = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print which ranks are missing from which collective, since when, and where their code stood.

    It reads the dumps that PyTorch's flight recorder writes when a collective times out: pickles (nothing in them is
    executed) or JSON, of NCCL or gloo, under any names that contain the rank. If several groups wait, it follows the
    chain to the ranks that wait for nobody. See docs/hang.md.

    Of a run without dumps it prints the collectives that some ranks issued and that never ran, as its traces show them.

    Exit codes: 0 nothing hangs, 1 something hangs or a file cannot be used, 2 bad command line.

    \b
    Examples:
      commtrace hang /tmp/nccl_trace_rank_*
      commtrace hang --format json dumps/ | jq -r '.answer[]'
      commtrace hang --by group --format csv dumps/
      commtrace hang --keep-going dumps/
      commtrace hang traces/my-run
    """
    if any(map(is_remote, runs)) or (not holds_dumps(runs) and _holds_traces(runs)):  # dumps are read on this machine
        _print_hangs_of_run(runs, by, writing, reading)
        return
    for option, given in (("ranks", reading.ranks), ("hosts", reading.hosts), ("groups", reading.groups)):
        if given:
            raise typer.BadParameter("chooses traces; dumps are read whole", param_hint=f"--{option}")
    whole = by is None and writing.format not in (Format.csv, Format.latex)
    if whole:
        writing.needs_one_table()
    with gc_frozen():
        from ..hang.analysis import find_hang
        from ..hang.report import HANG_TABLES, hang_report

    name = HANG_TABLES[(by or HangBy.origin).value]
    writing.check(name)
    hang = find_hang(runs, keep_going=reading.keep_going, workers=reading.workers, memory_gb=reading.memory_gb)
    if whole:
        writing.text(hang_report(hang, writing.format.value, writing.screen))
    else:
        for text in (*hang.answer, *hang.notes):
            print_message(text, kind="note")
        writing.table(name, getattr(hang, name))
    for failure in hang.dumps.failed:
        print_message(failure)
    if hang.found or hang.dumps.failed or not hang.is_sure:
        raise typer.Exit(_FOUND)


def _holds_traces(paths: list[Path]) -> bool:
    """Whether the files at these paths are named like traces."""
    try:
        return all(format_named_like(trace.path.name) is not None for trace in trace_files(paths).traces)
    except AnalysisError:
        return False


def _print_hangs_of_run(runs: list[Path], by: HangBy | None, writing: Writing, reading: ReadOptions) -> None:
    """Print what the traces of a run show, and exit with 1 if a collective hangs."""
    if by is not None:
        raise typer.BadParameter("names a table of dumps, and there are only traces", param_hint="--by")
    writing.check("hangs")
    analysis = analysis_of(runs, reading)
    print_table("hangs", analysis, writing)
    if len(analysis.hangs):
        raise typer.Exit(_FOUND)
