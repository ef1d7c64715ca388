"""The command without a name: what was read, and the main tables."""

from __future__ import annotations

from ...recording.options import ReadOptions
from ..output import Format, Writing, writes_text
from ..reading_options import CeilingFile, Runs, analysis_of, finish, reads_traces


@reads_traces
@writes_text
def summary_command(
    runs: Runs,
    ceiling: CeilingFile = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print the summary on one screen.

    It says what limits the run, what that costs in a step, who is late and why, and what to try. --all, and every
    other format, also print what was read, warnings, and the main tables.

    \b
    Examples:
      {prog} traces/my-run
      {prog} summary --all traces/my-run
      {prog} summary --format markdown --output summary.md traces/my-run
    """
    analysis = analysis_of(runs, reading, ceiling)
    if writing.format is Format.table and not writing.everything:
        from ...results.overview import overview

        writing.text(overview(analysis, writing.screen))
    else:
        from ...results.summary import summary

        writing.text(summary(analysis, writing.format.value, writing.screen))
    finish(analysis)
