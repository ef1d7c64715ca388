"""`commtrace compare`: compare captures of two configurations, or a series of runs."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....common.wording import counted
from ...core.escaping import for_shell
from ...core.places.place import path_named
from ...recording.options import ReadOptions
from ..inputs import AGAINST, PathOrUrl
from ..output import WHOLE_TABLE, Format, Writing, finite, print_message, writes_tables
from ..reading_options import analysis_of, finish, reads_traces

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from ...comparison.analysis import Judgement
    from ...comparison.history import History
    from ...comparison.trend import RunTrend
    from ...core.schema import PlainTable
    from ...render import Table
    from ...report.page import ReportPage
    from ...results.analysis import Analysis

_SIDES = 2
_SHOWN_ROWS = 10
_WHOLE = "is Markdown on the whole comparison"
_TABLES = {
    "measure": "comparison",
    "cause": "changed_causes",
    "kernel": "changed_kernels",
    "operator": "changed_operators",
    "shape": "changed_shapes",
    "region": "changed_regions",
    "run": "trend",
}
_PAGE_SUFFIXES = (".html", ".htm")


class ComparedBy(str, Enum):
    """The table of a comparison to print."""

    measure = "measure"
    cause = "cause"
    kernel = "kernel"
    operator = "operator"
    shape = "shape"
    region = "region"
    run = "run"


Captures = Annotated[
    list[PathOrUrl],
    typer.Argument(
        metavar="A...",
        parser=path_named,
        help="Two runs, A and B; a series of runs; or several captures of A, with those of B after --against.",
    ),
]
Against = Annotated[
    list[PathOrUrl] | None,
    typer.Option(AGAINST, metavar="B...", parser=path_named, help="Captures of B."),
]
OneTable = Annotated[
    ComparedBy | None,
    typer.Option(
        help="Print only this table; run, of two runs or more in order, is that of a series. Without it, CSV and LaTeX "
        "hold the table of measures, or of runs."
    ),
]
FailAbove = Annotated[
    float | None,
    typer.Option(
        metavar="PERCENT",
        min=0,
        callback=finite,
        help="Exit with 3 if steps of B take longer by more than this, beyond chance; with 4 if these captures cannot "
        "tell; else with 0, also if B is faster. Of a series, the last run is judged against those before.",
    ),
]
HistoryAt = Annotated[
    Path | None,
    typer.Option(
        "--history",
        metavar="FILE",
        help="Learn from the captures in this file by how much runs of this program differ on this machine. watch, "
        "summary and captures with --analyse keep it.",
    ),
]
Brief = Annotated[
    bool,
    typer.Option(
        "--brief",
        help="Print Markdown for a pull request: the headline, a table of at most five rows, and what it rests on.",
    ),
]
RunSpread = Annotated[
    float,
    typer.Option(
        metavar="PERCENT",
        min=0,
        max=1000,
        callback=finite,
        help="How much runs of one configuration are assumed to differ (standard deviation), where neither several "
        "runs nor --history show it.",
    ),
]


@reads_traces
@writes_tables
def compare_command(
    runs: Captures,
    against: Against = None,
    by: OneTable = None,
    fail_above: FailAbove = None,
    run_spread: RunSpread = 5.0,
    history: HistoryAt = None,
    brief: Brief = False,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print where steps of B spend more time; of three runs or more, what changed from run to run.

    Captures of one configuration differ, because machines drift. Several captures of each, taken in turns, show by how
    much: give those of A, then --against and those of B. With one run of each, the cycles of --repeat count as
    captures. A single capture of each shows only large differences, unless --history knows how much runs differ.

    Step times come from the unprofiled steps in the side files if there are enough of them, else from the profiled
    steps there, else from the traces. Everything else is measured in the traced steps: capture 10 or more.

    Three runs or more without --against are a series, in the order given: a row per run, and the cause of each change.
    An --output that ends in .html gets a page with pictures.

    On a terminal the comparison is one screen: what changed and why, a step of A and of B, and how sure that is. --all,
    --top N and other formats also print the tables, with N kernels and operators (10).

    \b
    Examples:
      commtrace compare traces/before traces/after
      commtrace compare traces/before-* --against traces/after-*
      commtrace compare traces/mon traces/tue traces/wed -o trend.html
      commtrace compare --by region traces/before traces/after
      commtrace compare --by shape --top 20 traces/before traces/after
      commtrace compare --by kernel --format csv traces/before traces/after
      commtrace compare --fail-above 5 traces/main-* --against traces/candidate
      commtrace compare --brief traces/main traces/candidate > comment.md
      commtrace compare --fail-above 5 --history runs.jsonl traces/main traces/new
      commtrace compare --fail-above 5 traces/mon traces/tue traces/wed traces/thu

    \b
    Exit codes with --fail-above PERCENT:
      0  B takes at most so much longer than A, or less time
      3  B takes longer than A by more than that
      4  these captures cannot tell; what would settle it is said
    """
    if by is ComparedBy.run or (by is None and not against and len(runs) > _SIDES):
        if against:
            raise typer.BadParameter("compares two sides, but a series of runs was asked for", param_hint=AGAINST)
        if brief and by is not None:
            raise typer.BadParameter(_WHOLE, param_hint="--brief")
        trend = _series(
            runs, run_spread / 100, history, whole=by is None, brief=brief, writing=writing, reading=reading
        )
        if fail_above is not None:
            _gate(*trend.last_against_others.slower_by(fail_above / 100))
        return
    whole = by is None and writing.format not in (Format.csv, Format.latex)
    if brief and (by is not None or writing.format not in (Format.table, Format.markdown)):
        raise typer.BadParameter(_WHOLE, param_hint="--brief")
    if whole:
        replace(writing, choice=replace(writing.choice, top=None)).needs_one_table()
    name = _TABLES[(by or ComparedBy.measure).value]
    writing.check(name)
    a, b = _sides(runs, against)
    analyses = [[analysis_of([path], reading, details=True) for path in side] for side in (a, b)]
    from ...comparison.analysis import Comparison
    from ...show.comparison import for_people
    from ...show.two_runs import in_brief, report, two_runs

    comparison = Comparison(tuple(analyses[0]), tuple(analyses[1]), run_spread / 100, _known(history))
    if whole and _wants_page(writing):
        from ...report.across import comparison_page

        _write_page(comparison_page(f"{analyses[0][0].run.name} and {analyses[1][0].run.name}", comparison), writing)
    elif brief:
        writing.text(in_brief(comparison, _named(a, b)))
    elif whole and writing.for_people and not writing.everything and writing.choice.top is None:
        writing.text(two_runs(comparison, writing.screen, _named(a, b)))
    elif whole:
        top, limit = writing.choice.top or _SHOWN_ROWS, None if fail_above is None else fail_above / 100
        text = report(
            comparison,
            writing.format.value,
            top=top,
            screen=writing.screen,
            command=_named(a, b),
            limit_frac=limit,
        )
        writing.text(text)
    else:
        print_message(" ".join(comparison.decision.statements).rstrip("."), kind="note")
        _write_table(name, getattr(comparison, name), for_people, writing)
    _finish([*analyses[0], *analyses[1]])
    if fail_above is not None:
        _gate(*comparison.slower_by(fail_above / 100))


def _write_table(name: str, table: pd.DataFrame, for_people: Callable[[Table], PlainTable], writing: Writing) -> None:
    """Write one table, for people without what says nothing, unless they chose columns. Raises BadParameter."""
    if writing.choice.shapes or writing.format in (Format.csv, Format.json):
        writing.table(name, table)
    else:
        replace(writing, choice=WHOLE_TABLE).table(name, for_people(writing.chosen(name, table)))


def _known(history: Path | None) -> History | None:
    """The captures of the file, and a note on lines that are none."""
    if history is None:
        return None
    from ...comparison.history import read_history

    known = read_history(history)
    if known.unread:
        print_message(
            f"{history}: {counted(known.unread, 'line')} left out: not a capture of this version", kind="note"
        )
    return known


def _series(
    runs: list[Path],
    run_spread_frac: float,
    history: Path | None,
    *,
    whole: bool,
    brief: bool,
    writing: Writing,
    reading: ReadOptions,
) -> RunTrend:
    """Print the trend over the runs, whole or the table alone. Raises BadParameter."""
    if len(runs) < _SIDES:
        raise typer.BadParameter(f"needs two runs or more, but got {len(runs)}", param_hint="A B C...")
    whole = whole and writing.format not in (Format.csv, Format.latex)
    if whole:
        writing.needs_one_table()
    writing.check("trend")
    analyses = [analysis_of([path], reading, details=True) for path in runs]
    from ...comparison.trend import RunTrend
    from ...show.trend import series, series_in_brief, trend_report, without_empty_parts

    trend = RunTrend(tuple(analyses), run_spread_frac, _known(history))
    if whole and _wants_page(writing):
        from ...report.across import trend_page

        _write_page(trend_page(f"{trend.names[0]} to {trend.names[-1]}", trend), writing)
    elif brief:
        writing.text(series_in_brief(trend))
    elif whole and writing.for_people and not writing.everything:
        writing.text(series(trend, writing.screen))
    elif whole:
        writing.text(trend_report(trend, writing.format.value, writing.screen))
    else:
        _write_table("trend", trend.trend, without_empty_parts, writing)
    _finish(analyses)
    return trend


def _named(a: list[Path], b: list[Path]) -> str:
    """Both sides as given, for use in a shell command."""
    of_a, of_b = (" ".join(for_shell(str(path)) for path in side) for side in (a, b))
    return f"{of_a} {of_b}" if len(a) == len(b) == 1 else f"{of_a} {AGAINST} {of_b}"


def _wants_page(writing: Writing) -> bool:
    """Whether the output is a page, by the suffix of its file."""
    return writing.for_people and writing.output is not None and writing.output.suffix.lower() in _PAGE_SUFFIXES


def _write_page(made: ReportPage, writing: Writing) -> None:
    writing.text(made.html)
    print_message(f"{writing.output}: {len(made.html.encode()) / 1e3:,.0f} kB; open it in any browser", kind="note")


def _finish(analyses: list[Analysis]) -> None:
    for analysis in analyses:
        finish(analysis)


def _sides(runs: list[Path], against: list[Path] | None) -> tuple[list[Path], list[Path]]:
    """The captures of A and of B. Raises BadParameter."""
    for side in (runs, against or []):
        twice = [path for number, path in enumerate(side) if path.resolve() in [p.resolve() for p in side[:number]]]
        if twice and against:
            raise typer.BadParameter(f"{twice[0]} is given twice", param_hint=AGAINST)
    if against:
        of_a = [path.resolve() for path in runs]
        both = [path for path in against if path.resolve() in of_a]
        if both and len(runs) + len(against) > 2:  # of two, it is a run compared with itself
            message = f"{both[0]} is given on both sides, which would hide a difference"
            raise typer.BadParameter(message, param_hint=AGAINST)
        return runs, against
    if len(runs) != _SIDES:
        message = f"needs two runs, but got {len(runs)}; for several captures, give those of B after {AGAINST}"
        raise typer.BadParameter(message, param_hint="A B")
    return runs[:1], runs[1:]


def _gate(judgement: Judgement, because: str) -> None:
    from ...comparison.analysis import Judgement

    kinds = {Judgement.slower: "slower", Judgement.within: "note", Judgement.unknown: "cannot tell"}
    print_message(because, kind=kinds[judgement])
    if judgement is not Judgement.within:
        raise typer.Exit(judgement.exit_code)
