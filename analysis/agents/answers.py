"""What is answered: dataclasses of plain values, which a protocol turns into its own form.

Numbers keep the names of the tables' columns, which hold their units. Names in traces are the data of others: control
characters are escaped, and long ones are cut, so that none can pass for more than a value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..catalog import CATALOG
from ..core.declaring import InputKind
from ..core.escaping import printable
from ..core.schema import PlainTable, plain
from ..core.table_choice import Condition, SortBy, TableChoice
from ..errors import UnknownTable
from ..explanation import explain

if TYPE_CHECKING:
    from ..comparison.analysis import Comparison
    from ..hang.analysis import Hang
    from ..results.analysis import Analysis
    from ..show.first_screen import StepShare

MOST_ANSWER_ROWS = 20
MOST_ANSWER_CHARACTERS = 7_000
"""Of an answer as JSON: below 4,000 tokens even where a client is sent it twice, as structure and as text."""
_LONGEST_TEXT = 300
_MOST_WARNINGS = 5
_MOST_RANKS, _MOST_RATES = 5, 3
AnswerValue = str | int | float | bool | None
AnswerRow = dict[str, AnswerValue]


@dataclass
class TableAnswer:
    """Rows of a table; `row` counts those of the whole one from 0. More begin at `next`, which is null at the end.

    `note` says what it means that there are none, or by which steps they are.
    """

    table: str
    one_row_per: str
    total: int
    next: int | None
    columns: list[str]
    rows: list[AnswerRow]
    note: str | None = None
    cannot_answer: list[str] = field(default_factory=list)


@dataclass
class OpenRunAnswer:
    """The first screen of a run. Times are of a mean step of those that count; `table` and `row` say where they stand.

    `parts` are what a step consists of, `changes` what it would gain from each by itself, the largest first.
    """

    run: str
    facts: list[str]
    verdict: str
    headline: str
    why: str
    headline_ranks: list[int]
    step_ns: int | None
    parts: list[AnswerRow]
    changes: list[AnswerRow]
    late_ranks: list[AnswerRow]
    bandwidth: list[AnswerRow]
    warnings: list[str]
    cannot_answer: list[str]


@dataclass
class WordMeaning:
    """What a term, a table or a column means, and where to read on."""

    name: str
    meaning: str
    more: list[str]


@dataclass
class ExplainAnswer:
    """All meanings of a word."""

    meanings: list[WordMeaning]


@dataclass
class CompareAnswer:
    """Two sides, A and B: `outcome` is of the length of their steps: longer, shorter, alike, open or unknown.

    `statements` say how sure that is, `cause` what the change is due to, `differs` what really differs.
    """

    outcome: str
    change_frac: float | None
    change_low_frac: float | None
    change_high_frac: float | None
    cause: str | None
    statements: list[str]
    more_captures: int | None
    differs: list[AnswerRow]
    cannot_answer: list[str]


@dataclass
class HangAnswer:
    """A hang: the ranks to look at first, `sure` whether the dumps would show one if there were."""

    found: bool
    sure: bool
    answer: list[str]
    origins: TableAnswer
    cannot_answer: list[str]


def answer_open_run(analysis: Analysis) -> OpenRunAnswer:
    """The first screen as values. Raises AnalysisError."""
    from ..show.first_screen import first_screen

    screen = first_screen(analysis)
    priced = PlainTable({}, {}) if not len(analysis.remedies) else plain(analysis.remedies)
    place = {name: row for row, name in enumerate(priced.columns.get("remedy", []))}
    changes = [
        {
            "table": "remedies",
            "row": place.get(each.name),
            "remedy": each.name,
            "what": _text(each.what),
            "gain_ns": each.gain_ns,
            "gain_low_ns": each.low_ns,
            "gain_high_ns": each.high_ns,
            "gain_frac": each.gain_frac,
            "is_bound": each.is_bound,
            "how": _text(each.how),
        }
        for each in screen.remedies
    ]
    late = answer_table(
        "ranks", analysis, columns=["rank", "caused_wait_ns", "caused_wait_frac"], sort="caused_wait_ns"
    )
    rates = answer_table("bandwidth", analysis, sort="time_us_median") if len(analysis.table("bandwidth")) else None
    unknown = [screen.not_known] if screen.not_known else []
    if not screen.is_priced:
        unknown.append("what a step would gain: the run cannot be played again")
    found = OpenRunAnswer(
        run=screen.name,
        facts=list(map(_text, screen.facts)),
        verdict=screen.verdict,
        headline=_text(screen.headline, 2 * _LONGEST_TEXT),
        why=_text(screen.why, 4 * _LONGEST_TEXT),
        headline_ranks=list(screen.headline_ranks),
        step_ns=round(analysis.typical_step.parts["window_ns"]) if screen.parts else None,
        parts=[*(_part(each) for each in screen.parts), *(_part(each) | {"of": "idle"} for each in screen.idle)],
        changes=changes,
        late_ranks=[{"table": "ranks", **row} for row in late.rows if row["caused_wait_ns"]][:_MOST_RANKS],
        bandwidth=[] if rates is None else [_rate(row) for row in rates.rows[:_MOST_RATES]],
        warnings=[_text(each) for each in analysis.warnings[:_MOST_WARNINGS]],
        cannot_answer=list(map(_text, unknown)),
    )
    while _size(found) > MOST_ANSWER_CHARACTERS and (found.warnings or len(found.changes) > 1):
        (found.warnings or found.changes).pop()
    return found


def _part(share: StepShare) -> AnswerRow:
    return {"table": "steps", "column": share.column, "name": share.name, "ns": round(share.ns), "frac": share.frac}


def _rate(row: AnswerRow) -> AnswerRow:
    shown = ("row", "collective", "size_bytes", "pg_size", "calls", "busbw_gb_per_s", "algbw_gb_per_s")
    return {"table": "bandwidth"} | {name: row[name] for name in shown if name in row}


def answer_table(
    name: str,
    analysis: Analysis,
    *,
    where: Sequence[str] = (),
    sort: str = "",
    top: int = MOST_ANSWER_ROWS,
    start: int = 0,
    columns: Sequence[str] = (),
) -> TableAnswer:
    """Rows of a table of a run, as many as an answer holds. Raises AnalysisError, BadChoice."""
    name = name.replace("-", "_")  # as commands have it
    entry = CATALOG.get(name)
    if entry is None or entry.of is not InputKind.run:
        known = ", ".join(entry.name for entry in CATALOG.values() if entry.of is InputKind.run)
        raise UnknownTable(f"{printable(name)} is not a table of a run; those are {known}")
    choice = TableChoice(tuple(map(Condition.parse, where)), (SortBy.parse(sort),) if sort else ())
    choice.check(entry.schema)
    TableChoice(sort=tuple(SortBy(column) for column in columns)).check(entry.schema)
    table = plain(analysis.table(name))
    numbered = PlainTable({"row": list(range(len(table))), **table.columns}, {"row": "int64", **table.dtypes})
    chosen = choice.of(numbered)
    shown = list(columns) or list(entry.narrow or entry.shown or entry.schema.columns)
    unknown = [] if len(table) or entry.none_measured is None else [entry.none_measured]
    return _rows(
        name,
        entry.schema.rows,
        PlainTable({each: chosen.columns[each] for each in dict.fromkeys(("row", *shown))}, chosen.dtypes),
        start=start,
        top=top,
        note=None if len(table) else entry.none_found,
        cannot_answer=unknown,
    )


def _rows(
    name: str,
    one_row_per: str,
    table: PlainTable,
    *,
    start: int = 0,
    top: int = MOST_ANSWER_ROWS,
    note: str | None = None,
    cannot_answer: Sequence[str] = (),
) -> TableAnswer:
    """As many rows from `start` on as fit."""
    start, count = max(start, 0), min(max(top, 1), MOST_ANSWER_ROWS)
    rows = [_values(row) for row in table.rows[start : start + count]]
    found = TableAnswer(name, one_row_per, len(table), None, list(table.columns), rows, note, list(cannot_answer))
    while len(rows) > 1 and _size(found) > MOST_ANSWER_CHARACTERS:
        rows.pop()
    end = start + len(rows)
    found.next = end if end < len(table) else None
    return found


def answer_explain(term: str) -> ExplainAnswer:
    """What a word means. Raises UnknownTerm."""
    return ExplainAnswer([WordMeaning(each.name, each.meaning, list(each.more)) for each in explain(term).entries])


def answer_predict(analysis: Analysis, changes: Sequence[Mapping[str, Any]], start: int = 0) -> TableAnswer:
    """A row for each change, or the usual ones; by which steps, where these are not all. Raises AnalysisError."""
    table = plain(analysis.predict(*changes) if changes else analysis.predictions)
    entry = CATALOG["predictions"]
    shown = [name for name in entry.schema.columns if name != "partial"]
    rows = PlainTable(
        {"row": list(range(len(table))), **{name: table.columns[name] for name in shown}},
        {"row": "int64", **table.dtypes},
    )
    unknown = [str(why) for why in table.columns["unknown"] if why] if "unknown" in table.columns else []
    return _rows("predictions", entry.schema.rows, rows, start=start, note=analysis.part_note, cannot_answer=unknown)


def answer_compare(comparison: Comparison) -> CompareAnswer:
    """What changed from A to B, and how sure that is. Raises AnalysisError."""
    decision = comparison.decision
    found = CompareAnswer(
        outcome=decision.outcome.value,
        change_frac=decision.change_frac,
        change_low_frac=decision.change_low_frac,
        change_high_frac=decision.change_high_frac,
        cause=None if comparison.cause is None else _text(comparison.cause, 2 * _LONGEST_TEXT),
        statements=[_text(each, 2 * _LONGEST_TEXT) for each in decision.statements],
        more_captures=decision.more_captures,
        differs=[_values(row) for row in plain(comparison.what_differs).rows],
        cannot_answer=[_text(f"{name}: {why}") for name, why in comparison.not_known.items()],
    )
    while _size(found) > MOST_ANSWER_CHARACTERS and len(found.differs) > 1:
        found.differs.pop()
    return found


def answer_hang(hang: Hang) -> HangAnswer:
    """Which rank is missing, since when, and where its code stood."""
    table = plain(hang.hang_origins)
    entry = CATALOG["hang_origins"]
    rows = PlainTable(
        {"row": list(range(len(table))), **table.columns},
        {"row": "int64", **table.dtypes},
    )
    origins = _rows("hang_origins", entry.schema.rows, rows, top=_MOST_RANKS)
    answers = [_text(each, 4 * _LONGEST_TEXT) for each in hang.answer[:_MOST_RANKS]]
    return HangAnswer(hang.found, hang.is_sure, answers, origins, list(map(_text, hang.notes)))


def tables_in_lines() -> str:
    """All tables of a run, one in a line: name, what a row is, what it is for."""
    rows = [entry for entry in CATALOG.values() if entry.of is InputKind.run]
    return "".join(f"- `{each.name}`: one row per {each.schema.rows}. {each.about}\n" for each in rows)


def columns_in_lines(name: str) -> str:
    """The columns of a table, one in a line. Raises UnknownTable."""
    if name not in CATALOG:
        raise UnknownTable(f"{printable(name)} is not a table; commtrace://tables lists them")
    columns = CATALOG[name].schema.columns.items()
    return "".join(f"- `{column}` ({dtype}): {meaning}\n" for column, (dtype, meaning) in columns)


def _values(row: Mapping[str, Any]) -> AnswerRow:
    return {name: _text(value) if isinstance(value, str) else value for name, value in row.items()}


def _text(text: str, longest: int = _LONGEST_TEXT) -> str:
    """One line without control characters, cut where it is too long."""
    line = printable(text)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _size(answer: Any) -> int:
    """Characters of an answer as JSON."""
    return len(json.dumps(asdict(answer), ensure_ascii=False))
