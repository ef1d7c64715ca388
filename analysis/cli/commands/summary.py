"""The command without a name: what was read, and the main tables."""

from __future__ import annotations

from pathlib import Path

import typer

from ...core.escaping import for_shell
from ...recording.options import ReadOptions
from ..output import Format, Writing, writes_tables
from ..reading_options import CeilingFile, Runs, analysis_of, finish, reads_traces

_MOST_LETTERS = 400


@reads_traces
@writes_tables
def summary_command(
    context: typer.Context,
    runs: Runs,
    ceiling: CeilingFile = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print what limits the run, what it costs in a step, who is late and why, what to try: on one screen.

    With --all, and in every other format, everything that was read and found follows: facts, warnings, main tables.

    \b
    Examples:
      {prog} traces/my-run
      {prog} summary --all traces/my-run
      {prog} summary --format markdown --output summary.md traces/my-run
    """
    analysis = analysis_of(runs, reading, ceiling)
    if writing.format is Format.table and not writing.everything:
        from ...results.overview import overview

        program = context.find_root().info_name or "commtrace"
        writing.text(overview(analysis, writing.screen, program, _named(runs)))
    else:
        from ...results.summary import summary

        writing.text(summary(analysis, writing.format.value, writing.screen))
    finish(analysis)


def _named(runs: list[Path]) -> str:
    """The runs as they were given, to be copied into a shell; where they are many, what to put there instead."""
    words = " ".join(for_shell(str(run)) for run in runs)
    return words if len(runs) == 1 or len(words) <= _MOST_LETTERS else "(the same files)"
