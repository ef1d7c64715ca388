"""The command without a name: what was read, and the main tables."""

from __future__ import annotations

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import CeilingFile, Runs, analysis_of, finish, reads_traces


@reads_traces
@writes_tables
def summary_command(
    runs: Runs,
    ceiling: CeilingFile = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print the summary."""
    analysis = analysis_of(runs, reading, ceiling)
    from ...results.summary import summary

    writing.text(summary(analysis, writing.format.value, writing.screen))
    finish(analysis)
