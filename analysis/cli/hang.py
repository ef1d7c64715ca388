"""`commtrace hang`: name the ranks that are missing from a collective."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ..core.process import gc_frozen
from .output import Format, KeepGoing, Writing, complain, writes_tables
from .reading_options import Memory, Workers

_FOUND = 1


class HangBy(str, Enum):
    """The table of a hang to print."""

    origin = "origin"
    wait = "wait"
    group = "group"
    mismatch = "mismatch"
    stack = "stack"


DumpPaths = Annotated[
    list[Path],
    typer.Argument(metavar="DUMPS...", help="Dumps of the flight recorder, one per rank, or folders of them."),
]
OneHangTable = Annotated[
    HangBy | None, typer.Option(help="Print only this table. Without it, CSV and LaTeX hold the table of origins.")
]


@writes_tables
def hang_command(
    runs: DumpPaths,
    by: OneHangTable = None,
    keep_going: KeepGoing = False,
    workers: Workers = None,
    memory: Memory = None,
    *,
    writing: Writing,
) -> None:
    """Print which ranks are missing from which collective, since when, and where their code stood.

    It reads the dumps that PyTorch's flight recorder writes when a collective times out: pickles (nothing in them is
    executed) or JSON, of NCCL or gloo, under any names that contain the rank. If several groups wait, it follows the
    chain to the ranks that wait for nobody. See docs/hang.md.

    Exit codes: 0 nothing hangs, 1 something hangs or a dump cannot be used, 2 bad command line.

    \b
    Examples:
      commtrace hang /tmp/nccl_trace_rank_*
      commtrace hang --format json dumps/ | jq -r '.answer[]'
      commtrace hang --by group --format csv dumps/
      commtrace hang --keep-going dumps/
    """
    whole = by is None and writing.format not in (Format.csv, Format.latex)
    if whole:
        writing.needs_one_table()
    with gc_frozen():
        from ..hang.analysis import find_hang
        from ..hang.report import HANG_TABLES, hang_report

    name = HANG_TABLES[(by or HangBy.origin).value]
    writing.check(name)
    hang = find_hang(runs, keep_going=keep_going, workers=workers, memory_gb=memory)
    if whole:
        writing.text(hang_report(hang, writing.format.value, writing.screen))
    else:
        for text in (*hang.answer, *hang.notes):
            complain(text, kind="note")
        writing.table(name, getattr(hang, name))
    for failure in hang.dumps.failed:
        complain(failure)
    if hang.found or hang.dumps.failed or not hang.is_sure:
        raise typer.Exit(_FOUND)
