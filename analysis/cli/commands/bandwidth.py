"""Bandwidth, alone or against a ceiling."""

from __future__ import annotations

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import CeilingFile, Runs, analysis_of, reads_traces, timed_dumps_of
from ..tables import print_table, print_timed


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
    timed = timed_dumps_of(runs, reading) if ceiling is None else None
    if timed is not None:
        print_timed(name, timed, writing)
    else:
        print_table(name, analysis_of(runs, reading, ceiling), writing)
