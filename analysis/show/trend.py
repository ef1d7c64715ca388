"""A series of runs on one screen, as Markdown, JSON, and with its table: what begins to cost more, and where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

from rich.cells import cell_len

from ...common.wording import counted, listed
from ..catalog import CATALOG
from ..comparison.analysis import Comparison
from ..comparison.causes import signed
from ..comparison.trend import BEYOND, RunTrend
from ..core.escaping import printable
from ..core.schema import PlainTable, Row, plain, records
from ..metrics.typical_step import STEP_PARTS
from ..render import Table, as_markdown, as_text
from ..render.fitting import shortened
from ..render.people import escaped, styled, wrapped
from ..render.screen import PAPER, Screen
from .comparison import MOST_NOTES, settings_of
from .two_runs import bar_of, beside, between, legend_of

_WIDEST, _NARROWEST = 120, 60
_LONGEST_NAME, _LONGEST_COMMIT = 24, 8
_MOST_BEGINNINGS = 5
_LEAST_BAR, _NARROWEST_BAR = 20, 8
"""Cells: where there is no room for the first, it is not said when a run began. No bar is narrower than the second."""
_STARS = {"runs": "**", "steps": "*"}
_BEGIN = "What begins to cost more or less, and at which run"


def without_empty_parts(table: Table) -> PlainTable:
    """Drop the parts of a step that no run has."""
    values = plain(table)
    kept = {name: column for name, column in values.columns.items() if name not in STEP_PARTS or any(column)}
    return PlainTable(kept, values.dtypes, values.whole)


def series(trend: RunTrend, screen: Screen = PAPER) -> str:
    """The series in a line for each run, and what begins to cost more or less where."""
    width = max(min(screen.width or _WIDEST, _WIDEST), _NARROWEST)
    return "".join(f"{line.rstrip()}\n" for line in _lines(trend, screen, width))


def _lines(trend: RunTrend, screen: Screen, width: int) -> Iterator[str]:
    yield from (styled(line, "bold", screen) for line in wrapped(trend.verdict, width))
    yield from _bars(trend, screen, width)
    yield from _beginnings(trend, screen, width)
    said = [
        *(("Differs   ", text) for text in differs(trend)),
        *(("Note      ", text) for text in notes_of_runs(trend)),
    ]
    shown = said if screen.everything else said[: 2 * MOST_NOTES]
    if said:
        yield ""
    for label, text in shown:
        yield from beside(label, text, width)
    if len(said) > len(shown):
        yield f"          and {counted(len(said) - len(shown), 'more note')}, which --all shows"


def _bars(trend: RunTrend, screen: Screen, width: int) -> Iterator[str]:
    """Yield a typical step of each run on one scale, with when, of which commit and how much longer it is."""
    rows = records(trend.trend)
    steps = [row for row in rows if row["step_ns"] is not None]
    if not steps:
        return
    names = [shortened(printable(row["run"]), _LONGEST_NAME) for row in rows]
    when = [_when(row) for row in rows]
    times = ["-" if row["step_ns"] is None else trend.unit.text(row["step_ns"]) for row in rows]
    marks = [_change_of(row, trend) for row in rows]
    columns = [(texts, texts in (times, marks), max(map(cell_len, texts))) for texts in (names, when, times, marks)]
    room = width - 4 - sum(wide + 2 for *_, wide in columns)
    if room < _LEAST_BAR:
        room += columns.pop(1)[2] + 2
    used = [column for column in columns if column[2]]
    cell_ns = max(1, *(row["step_ns"] for row in steps)) / max(room, _NARROWEST_BAR)
    yield ""
    yield styled("A typical traced step of every run", "bold", screen)
    for number, row in enumerate(rows):
        texts = [
            f"{' ' * (wide - cell_len(texts[number]))}{texts[number]}" if right
            else f"{texts[number]}{' ' * (wide - cell_len(texts[number]))}"
            for texts, right, wide in used
        ]  # fmt: skip
        bar = "" if row["step_ns"] is None else bar_of(row, cell_ns, screen)
        yield f"  {'  '.join(texts)}  {bar}"
    yield from legend_of(steps, cell_ns, trend.unit, screen, width)
    if any(row["beyond"] in _STARS for row in rows):
        yield "  * more than steps of both differ, ** more than runs do"


def _when(row: Row) -> str:
    """`2026-11-27 02:00 4f2a91c0`, as far as it is known."""
    return " ".join(filter(None, (row["began_utc"], (row["commit"] or "")[:_LONGEST_COMMIT])))


def _change_of(row: Row, trend: RunTrend) -> str:
    """`+7.4 *`; empty where that is nothing."""
    if row["change_ns"] is None or trend.unit.is_zero(row["change_ns"]):
        return ""
    sign = "-" if row["change_ns"] < 0 else "+"
    return f"{sign}{trend.unit.number(abs(row['change_ns']))} {_STARS.get(row['beyond'] or '', ''):<2}"


def _beginnings(trend: RunTrend, screen: Screen, width: int) -> Iterator[str]:
    """Yield what begins to cost more or less at which run; of many the largest."""
    rows = beginnings(trend)
    if not rows:
        return
    amounts = [signed(row["difference_ns"], trend.unit) for row in rows]
    ends = [between(row, trend.unit) for row in rows]
    room = width - max(map(len, amounts)) - max(map(len, ends)) - 6
    yield ""
    yield styled(_BEGIN, "bold", screen)
    for row, amount, text in zip(rows, amounts, ends, strict=True):
        first, *rest = wrapped(f"{printable(row['run'])}: {printable(row['cause'])}", room - 2)
        yield f"  {first}{' ' * (room - cell_len(first))}{amount:>{max(map(len, amounts))}}  {text}"
        yield from (f"    {line}" for line in rest)
    if len(trend.begins) > len(rows):
        yield f"  and {counted(len(trend.begins) - len(rows), 'smaller one')}, which --all shows"


def beginnings(trend: RunTrend) -> list[Row]:
    """What begins to cost more or less at which run, in order of runs; the largest if there are many."""
    largest = sorted(trend.begins, key=lambda row: -abs(row["difference_ns"]))[:_MOST_BEGINNINGS]
    return [row for row in trend.begins if any(row is each for each in largest)]


def trend_report(trend: RunTrend, output_format: str, screen: Screen = PAPER) -> str:
    """The verdict, the table, and what limits each run."""
    if output_format == "json":
        content: Row = {"table": "trend", "verdict": trend.verdict, "causes": trend.begins}
        content |= {"differs": list(differs(trend)), "notes": notes_of_runs(trend), "rows": records(trend.trend)}
        return json.dumps(content, indent=1) + "\n"
    shown, title = without_empty_parts(trend.trend), CATALOG["trend"].title or "trend"
    if output_format == "markdown":
        limits = "".join(f"- {escaped(words)}\n" for words in headlines(trend))
        return (
            f"{series_in_brief(trend)}\n### {title}\n\n{as_markdown('trend', shown)}\n"
            f"### What limits each run\n\n{limits}"
        )
    limits = "".join(f"{line}\n" for words in headlines(trend) for line in wrapped(words, screen.width or _WIDEST))
    table = f"{styled(title, 'bold', screen)}\n\n{as_text('trend', shown, screen)}"
    return "\n".join([series(trend, screen), table, f"{styled('What limits each run', 'bold', screen)}\n\n{limits}"])


def series_in_brief(trend: RunTrend) -> str:
    """The verdict and a table of what begins to cost more or less at which run, in Markdown."""
    lines = [f"**{escaped(trend.verdict)}**", ""]
    rows = beginnings(trend)
    if rows:
        lines += [f"| run | {_BEGIN.partition(',')[0]} | change | between |", "|---|---|---:|---:|"]
        known = {row["run"]: row for row in records(trend.trend)}
        lines += [
            f"| {escaped(' '.join(filter(None, (row['run'], _when(known[row['run']])))))} | {escaped(row['cause'])} "
            f"| {signed(row['difference_ns'], trend.unit)} | {between(row, trend.unit) or '-'} |"
            for row in rows
        ]
        lines.append("")
    lines += [f"{escaped(printable(f'{name}: {about}'))}  " for name, about in captures(trend)]
    settings = [f"Differs: {text}" for text in differs(trend)]
    lines += [f"{escaped(text)}  " for text in (*settings, *notes_of_runs(trend)[:MOST_NOTES])]
    return "\n".join([*lines, ""])


def differs(trend: RunTrend) -> Iterator[str]:
    """Yield settings that change from one run to the next."""
    for (before, one), (name, other) in pairwise(zip(trend.names, trend.runs, strict=True)):
        for item, (a, b) in settings_of(Comparison((one,), (other,))).items():
            if a != b:
                yield printable(f"{item}: {a} in {before}, {b} in {name}")


def notes_of_runs(trend: RunTrend) -> list[str]:
    """Warnings on the runs, each once, with the runs that it is about."""
    about: dict[str, list[str]] = {}
    for name, run in zip(trend.names, (each.run for each in trend.runs), strict=True):
        for note in (*run.notes, *run.failed, *run.partial_because):
            about.setdefault(note, []).append(name)
    return [printable(f"{listed(names)}: {note}") for note, names in about.items()]


def captures(trend: RunTrend) -> Iterator[tuple[str, str]]:
    """Yield each run, when and where it ran, of which commit, and how much of it was traced."""
    for row in records(trend.trend):
        known = {"began": row["began_utc"] and f"{row['began_utc']} UTC", "commit": row["commit"]}
        said = [f"{what} {text}" for what, text in known.items() if text]
        ranks = counted(row["ranks"], "rank") + (f" on {row['devices']}" if row["devices"] else "")
        hosts = [row["hosts"]] if row["hosts"] else []
        yield (
            printable(row["run"]),
            printable(", ".join([*said, ranks, *hosts, f"{counted(row['steps'], 'step')} counted"])),
        )


def changes(trend: RunTrend) -> Iterator[str]:
    """Yield what begins to cost more or less at which run, and how sure that is, one sentence each."""
    for row in trend.begins:
        surely = f" ({BEYOND[row['beyond']]})" if row["beyond"] else ""
        ends = between(row, trend.unit)
        amount = f"{signed(row['difference_ns'], trend.unit)}{f' ({ends})' if ends else ''}"
        yield printable(f"{row['run']}, {amount}: {row['cause']}{surely}.")


def headlines(trend: RunTrend) -> Iterator[str]:
    """Yield the headline of each run."""
    for row in records(trend.trend):
        verdict = f" ({row['verdict']})" if row["verdict"] else ""
        yield printable(f"{row['run']}: {row['headline'] or 'nothing was measured'}{verdict}.")
