"""Bandwidth, alone or against a ceiling."""

from __future__ import annotations

from ...recording.options import ReadOptions
from ..output import Writing, complain, writes_tables
from ..reading_options import CeilingFile, Runs, analysis_of, reads_traces
from ..tables import print_table


@reads_traces
@writes_tables
def bandwidth_command(
    runs: Runs,
    ceiling: CeilingFile = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print the bandwidth."""
    name = "bandwidth" if ceiling is None else "bandwidth_ceiling"
    analysis = analysis_of(runs, reading, ceiling)
    if (counters := analysis.link_counters) is not None:
        complain(f"NVLinks {counters}", kind="note")
    print_table(name, analysis, writing)
