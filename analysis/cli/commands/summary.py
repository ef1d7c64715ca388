"""The command without a name: what was read, and the main tables."""

from __future__ import annotations

from pathlib import Path

import typer

from ...core.escaping import encodable, for_shell, printable
from ...core.wording import counted
from ...errors import AnalysisError
from ...reading.trace_files import runs_inside
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

    A folder above several runs lists these, with a line each; exits with 1 if one of them cannot be read.
    With --all, and in every other format, everything that was read and found follows: facts, warnings, main tables.

    \b
    Examples:
      {prog} traces/my-run
      {prog} summary --all traces/my-run
      {prog} summary --format markdown --output summary.md traces/my-run
    """
    program = context.find_root().info_name or "commtrace"
    if len(runs) == 1 and writing.format is Format.table and (below := runs_inside(runs[0])):
        if len(below) > 1:
            _list(below, writing, reading, program)
            return
        runs = below
    analysis = analysis_of(runs, reading, ceiling)
    if writing.format is Format.table and not writing.everything:
        from ...results.overview import overview

        writing.text(overview(analysis, writing.screen, program, _named(runs)))
    else:
        from ...results.summary import summary

        writing.text(summary(analysis, writing.format.value, writing.screen))
    finish(analysis)


def _list(runs: list[Path], writing: Writing, reading: ReadOptions, program: str) -> None:
    """Print the verdict of each run, or why there is none. Raises Exit if one cannot be used."""
    from ...core.schema import records

    lines, failed = [], False
    for run in runs:
        try:
            analysis = analysis_of([run], reading)
            (first, *_) = records(analysis.table("verdicts").head(1)) or [None]
            said = f"{first['verdict']}: {first['because']}" if first else "no communication was traced"
            failed |= bool(analysis.run.failed)
        except AnalysisError as err:
            said, failed = f"error: {err}", True
        lines.append(f"{printable(encodable(str(run)))}\n  {printable(said)}\n")
    what = f"{counted(len(runs), 'run')}; {program} and the path of one shows that one:\n\n"
    writing.text(what + "".join(lines))
    if failed:
        raise typer.Exit(1)


def _named(runs: list[Path]) -> str:
    """The runs as they were given, to be copied into a shell; where they are many, what to put there instead."""
    words = " ".join(for_shell(str(run)) for run in runs)
    return words if len(runs) == 1 or len(words) <= _MOST_LETTERS else "(the same files)"
