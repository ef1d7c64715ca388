"""`commtrace bandwidth`: bandwidth alone, against a ceiling, or over time."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import NothingMeasured
from ...recording.options import ReadOptions
from ..output import Writing, print_message, reading_progress, writes_tables
from ..reading_options import CeilingFile, Runs, analysis_of, finish, reads_traces, timed_dumps_of
from ..tables import print_table, print_timed

if TYPE_CHECKING:
    import pandas as pd

_UNITS_S = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_INTERVAL = re.compile(r"([0-9]{1,9})\s*(s|min|m|h|d)")
_TABLE = "bandwidth_times"


class BandwidthBy(str, Enum):
    """What a row stands for."""

    size = "size"
    time = "time"


By = Annotated[BandwidthBy, typer.Option(help="One row per size, or per time interval and size class.")]
EveryInterval = Annotated[
    str, typer.Option(metavar="TIME", help="With --by time: the length of an interval, such as 60s, 5min or 1h.")
]


@reads_traces
@writes_tables
def bandwidth_command(
    runs: Runs,
    ceiling: CeilingFile = None,
    by: By = BandwidthBy.size,
    every: EveryInterval = "60s",
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print the bandwidth.

    With --by time, logs of NCCL Inspector of any size are read in one pass, in constant memory.

    \b
    Examples:
      commtrace bandwidth traces/my-run
      commtrace bandwidth --ceiling traces/comms-nccl-w8 traces/my-run
      commtrace bandwidth --by time --every 5min nccl-inspector-1234
    """
    if by is BandwidthBy.size:
        name = "bandwidth" if ceiling is None else "bandwidth_ceiling"
        writing.check(name)
        timed = timed_dumps_of(runs, reading) if ceiling is None else None
        if timed is not None:
            print_timed(name, timed, writing)
            return
        analysis = analysis_of(runs, reading, ceiling)
        if (counters := analysis.link_counters) is not None:
            print_message(f"NVLinks {counters}", kind="note")
        print_table(name, analysis, writing)
        return
    every_ns = _interval_ns(every)
    if ceiling is not None:
        raise typer.BadParameter("cannot be given together with --by time", param_hint="--ceiling")
    writing.check(_TABLE)
    files = _logs(runs)
    if files:
        _print_logs(files, every_ns, writing, reading)
        return
    analysis = analysis_of(runs, reading)
    _print(analysis.over_time(every_ns), analysis.run.name, analysis.run.notes, writing)
    finish(analysis)


def _interval_ns(text: str) -> int:
    match = _INTERVAL.fullmatch(text.strip())
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else 0
    if not seconds:
        raise typer.BadParameter(f"{text!r} is not a length of time, such as 60s, 5min or 1h", param_hint="--every")
    return seconds * 1_000_000_000


def _logs(runs: Sequence[Path]) -> list[Path]:
    """The logs of NCCL Inspector at these paths; none if there are other traces."""
    from ...formats.inspector.entry import INSPECTOR
    from ...reading.trace_files import trace_files

    traces = trace_files(runs).traces
    return [one.path for one in traces] if all(one.format is INSPECTOR for one in traces) else []


def _print_logs(files: list[Path], every_ns: int, writing: Writing, reading: ReadOptions) -> None:
    for given, flag in (
        (reading.ranks, "--ranks"),
        (reading.hosts, "--hosts"),
        (reading.groups, "--groups"),
        (reading.verify, "--verify"),
        (reading.dask, "--dask"),
        (reading.executor, "--executor"),
    ):
        if given:
            raise typer.BadParameter("is not for logs that are read by time", param_hint=flag)
    from ...streaming.logs import LogsOverTime

    logs = LogsOverTime(files, every_ns, keep_going=reading.keep_going)
    with reading_progress(logs, time.monotonic()) as report:
        logs.read(report)
    table = logs.table()
    _print(table, str(files[0].parent), logs.notes, writing)
    for failure in logs.failed:
        print_message(failure)
    if logs.failed:
        raise typer.Exit(1)


def _print(table: pd.DataFrame, name: str, notes: Sequence[str], writing: Writing) -> None:
    for note in notes:
        print_message(note, kind="note")
    if not len(table):
        raise NothingMeasured(f"{name}: no communication in what was recorded")
    writing.table(_TABLE, table)
