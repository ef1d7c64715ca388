"""Tables of a run: the command that prints any of them, and what is said where one has no rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...common.wording import ranges_of
from ..catalog import CATALOG
from ..errors import NothingMeasured
from ..recording.options import ReadOptions
from ..tables.values import NO_TIMES
from ..timed_dumps.offer import TIMED_TABLES
from .output import Writing, print_message, writes_tables
from .reading_options import Runs, analysis_of, finish, finish_failed, reads_traces, timed_dumps_of

if TYPE_CHECKING:
    import pandas as pd

    from ..render import Table
    from ..results.analysis import Analysis
    from ..timed_dumps.analysis import TimedDumps

_AS_ON_SCREEN = ("verdicts", "remedies")
"""Tables whose rows the first screen shows: they are made from what that reads, or the two might contradict."""

_OF_DETAILS = ("counters",)
"""Tables without options of their own for which operators and calls have to be read."""


def table_command(name: str) -> Callable[..., None]:
    """A command that prints this table of the catalog."""

    def command(
        runs: Runs,
        *,
        writing: Writing,
        reading: ReadOptions,
    ) -> None:
        writing.check(name)
        timed = timed_dumps_of(runs, reading) if name in TIMED_TABLES else None
        if timed is not None:
            print_timed(name, timed, writing)
        else:
            options = replace(reading, details_if_recorded=name in _AS_ON_SCREEN)
            print_table(name, analysis_of(runs, options, details=name in _OF_DETAILS), writing)

    command.__doc__ = f"""Print the table.

    \b
    Examples:
      commtrace {CATALOG[name].command} traces/my-run
      commtrace {CATALOG[name].command} --format json traces/my-run | jq '.rows[0]'
    """
    return reads_traces(writes_tables(command))


def print_table(
    name: str,
    analysis: Analysis,
    writing: Writing,
    top_for_each: Sequence[str] = (),
    *,
    table: pd.DataFrame | None = None,
) -> None:
    """Print one table of the run; with `top_for_each`, --top counts for each combination of these columns.

    `table` is given where options change it. Raises NothingMeasured where there are no rows, and that is not a result.
    """
    table = analysis.table(name) if table is None else table
    found_none = CATALOG[name].none_found
    is_result = found_none and len(analysis.calls) and (analysis.run.has_starts or not CATALOG[name].needs_starts)
    if not len(table) and not is_result:
        nothing_measured(analysis, why_empty(name, analysis))
    notes = [*(analysis.ceiling.notes if analysis.ceiling is not None else ()), *analysis.run.notes]
    if CATALOG[name].by_launch:
        notes += analysis.graph_notes
    if CATALOG[name].in_steps and 0 < len(steps := analysis.counted_steps) < len(analysis.steps):
        which = f"{'step' if len(steps) == 1 else 'steps'} {ranges_of(steps)}"
        notes.append(f"of {which}, as on the first screen; --whole: of all that was recorded")
    _print_with_notes(name, table, notes, writing, found_none or "", top_for_each)
    finish(analysis)


def print_of_engines(name: str, engines: Mapping[str, Analysis], writing: Writing) -> None:
    """Print one table of several engines, with their names. Raises NothingMeasured where none has rows."""
    tables = {engine: table for engine, one in engines.items() if len(table := one.table(name))}
    without = [f"{engine}: {why_empty(name, one)}" for engine, one in engines.items() if engine not in tables]
    if not tables:
        raise NothingMeasured("; ".join(without))
    notes = [f"{engine}: {note}" for engine, one in engines.items() for note in one.run.notes]
    from ..tables.serving import of_engines

    _print_with_notes(name, of_engines(tables), (*notes, *without), writing)
    finish_failed([failure for one in engines.values() for failure in one.run.failed])


def print_timed(name: str, timed: TimedDumps, writing: Writing) -> None:
    """Print one table of dumps with durations. Raises NothingMeasured where there are no rows."""
    table = timed.table(name)
    if not len(table):
        raise NothingMeasured(f"{timed.name}: {CATALOG[name].none_measured or CATALOG[name].none_found}")
    _print_with_notes(name, table, timed.notes, writing)
    finish_failed(timed.failed)


def nothing_measured(analysis: Analysis, why: str) -> None:
    """Say which files could not be used, then raise NothingMeasured."""
    for failure in analysis.run.failed:
        print_message(failure)
    raise NothingMeasured(f"{analysis.run.name}: {why}")


def _print_with_notes(
    name: str,
    table: Table,
    notes: Iterable[str],
    writing: Writing,
    found_none: str = "",
    top_for_each: Sequence[str] = (),
) -> None:
    """Print the table; where it has no rows, people get the sentence that says so, programs the header."""
    for note in notes:
        print_message(note, kind="note")
    if not len(table) and writing.for_people:
        writing.check(name)
        writing.text(f"{found_none}\n")
        return
    if not len(table):
        print_message(found_none, kind="note")
    writing.table(name, table, top_for_each)


def why_empty(name: str, analysis: Analysis) -> str:
    """Why the table has no rows, where that is not a result."""
    if not analysis.run.devices:
        return (
            "the traces show no device activity and no gloo operation; capture with ProfilerActivity.CUDA on GPUs, "
            "ProfilerActivity.CPU on gloo"
        )
    if not analysis.run.has_starts:
        return f"{NO_TIMES}; capture traces with torch.profiler for `{CATALOG[name].command}`"
    because = CATALOG[name].none_measured
    if because is not None and (len(analysis.calls) or not CATALOG[name].needs_calls):
        return because
    return "no communication in the profiled window; use `breakdown` for the rest"
