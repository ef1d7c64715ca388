"""`commtrace summary`, the default command: what was read, and the main tables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import typer
from rich.cells import cell_len

from ....common.wording import counted
from ...core.escaping import encodable, for_shell, printable
from ...errors import AnalysisError, RunError
from ...formats.registry import name_parts
from ...reading.trace_files import runs_inside, trace_files
from ...recording.options import ReadOptions
from ...recording.shared_files import shared_rank
from ..history import HistoryInto, keep
from ..output import Format, Writing, writes_text
from ..reading_options import CeilingFile, Peaks, Runs, analysis_of, analysis_to_show, finish, reads_traces

_MOST_LETTERS = 400
_MANY, _FIRST_LOOK = 64, 16
"""A run of more than `_MANY` ranks is first looked at on at most `_FIRST_LOOK` of them."""
_WIDEST_NAME = 36


@reads_traces
@writes_text
def summary_command(
    runs: Runs,
    ceiling: CeilingFile = None,
    peak: Peaks = None,
    history: HistoryInto = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print the summary on one screen.

    It says what limits the run, what that costs in a step, who is late and why, and what to try; as markdown in a
    paragraph and a small table, to paste. --all, and every other format, also print what was read, warnings, and the
    main tables. A folder above several runs, or with the traces of several engines, lists these, with a line each; the
    exit code is 1 if one of them cannot be read.

    \b
    Examples:
      commtrace traces/my-run
      commtrace summary --all traces/my-run
      commtrace summary --format markdown --output summary.md traces/my-run
      commtrace summary --history captures.jsonl traces/my-run
    """
    if len(runs) == 1 and writing.format is Format.table and (below := runs_inside(runs[0])):
        if len(below) > 1:
            named = {printable(encodable(str(run.relative_to(runs[0])))): [run] for run in below}
            where = f"{counted(len(below), 'run')} in {printable(encodable(str(runs[0])))}"
            _list(f"{where}; name one to see more of it", named, writing, reading)
            return
        runs = below
    if writing.format is Format.table and not writing.everything:
        _first_look(runs, writing, reading)
    try:
        analysis = analysis_to_show(runs, reading, ceiling, peak)
    except RunError as err:
        if not err.runs or writing.format is not Format.table:
            raise
        what = f"{len(err.runs):,} engines or runs; to see more of one: commtrace {err.runs[0].words}"
        _list(what, {printable(run.name): list(run.paths) for run in err.runs}, writing, reading)
        return
    if writing.format in (Format.table, Format.markdown) and not writing.everything:
        from ...show.overview import brief, overview

        shown = writing.format is Format.table
        writing.text(overview(analysis, writing.screen, _named(runs)) if shown else brief(analysis, _named(runs)))
    else:
        from ...show.summary import summary

        writing.text(summary(analysis, writing.format.value, writing.screen))
    if history is not None:
        keep(history, analysis)
    finish(analysis)


def _first_look(runs: list[Path], writing: Writing, reading: ReadOptions) -> None:
    """Show on a terminal what a few of many ranks say, before all are read; what is wrong is said with all."""
    chosen = reading.ranks or reading.hosts or reading.groups or reading.steps or reading.last
    if writing.screen.width is None or chosen:
        return
    from ...show.overview import first_look

    with suppress(AnalysisError):
        paths = [trace.path for trace in trace_files(runs).traces]
        if any(shared_rank(path) is not None for path in paths):
            return
        of_rank: dict[str, list[Path]] = {}  # a rank has a file for each profiling cycle
        for path in paths:
            parts = name_parts(path.name)
            of_rank.setdefault(parts.worker if parts else path.name, []).append(path)
        if len(of_rank) <= _MANY:
            return
        some = [path for files in list(of_rank.values())[:: -(-len(of_rank) // _FIRST_LOOK)] for path in files]
        writing.text(first_look(analysis_of(some, replace(reading, keep_going=True)), len(paths), writing.screen))


def _list(what: str, runs: Mapping[str, list[Path]], writing: Writing, reading: ReadOptions) -> None:
    """Print a line for each run, by name: its headline, or why there is none. Raises Exit if one cannot be used."""
    from ...render.fitting import shortened

    wide = min(max(map(cell_len, runs)), _WIDEST_NAME)
    lines, failed = [], False
    for name, paths in runs.items():
        try:
            analysis = analysis_to_show(paths, reading)
            verdicts = analysis.table("verdicts")
            said = f"{verdicts['headline'].iloc[0]}." if len(verdicts) else "Nothing was measured."
            failed, is_read = failed or bool(analysis.run.failed), True
        except AnalysisError as err:
            said, failed, is_read = f"error: {err}", True, False
        called = shortened(name, wide)
        line = f"{called}{' ' * (wide - cell_len(called))}  {printable(said)}"
        room = writing.screen.width
        lines.append(f"{shortened(line, room) if room is not None and is_read else line}\n")
    writing.text(f"{what}:\n\n{''.join(lines)}")
    if failed:
        raise typer.Exit(1)


def _named(runs: list[Path]) -> str:
    """The runs as given, for use in a shell command; a placeholder if there are many."""
    words = " ".join(for_shell(str(run)) for run in runs)
    return words if len(runs) == 1 or len(words) <= _MOST_LETTERS else "(the same files)"
