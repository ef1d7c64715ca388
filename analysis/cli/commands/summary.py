"""The command without a name: what was read, and the main tables."""

from __future__ import annotations

from ...recording.options import ReadOptions
from ..output import Format, Output, OutputFormat, ascii_only, write
from ..reading_options import CeilingFile, Runs, analysis_of, finish, reads_traces


@reads_traces
def summary_command(
    runs: Runs,
    output_format: OutputFormat = Format.table,
    output: Output = None,
    ceiling: CeilingFile = None,
    *,
    reading: ReadOptions,
) -> None:
    """Print the summary."""
    analysis = analysis_of(runs, reading, ceiling)
    from ...results.summary import summary

    write(summary(analysis, output_format.value, ascii_only=ascii_only()), output)
    finish(analysis)
