"""Tables for people: the columns that matter, in units that keep numbers short, as text or markdown."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from io import StringIO
from itertools import compress
from typing import TYPE_CHECKING, Any, Union

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ...common.markup import for_markdown
from ...common.wording import counted
from ..catalog import CATALOG
from ..core.escaping import printable
from ..core.schema import PlainTable, plain
from .fitting import GAP, Column, fitted, shortened, shortened_kernel
from .screen import MOST_RANKS, PAPER, WORST, Screen
from .worst import Label, worst_of

if TYPE_CHECKING:
    import pandas as pd

Table = Union["pd.DataFrame", PlainTable]
"""What every renderer takes."""

# Names of kernels spell out all their template arguments; for people so much of them tells them apart.
_LONGEST_NAME = 72

_POINTS_IN_TIME = (
    "start_ns", "first_start_ns", "last_start_ns", "last_end_ns", "issue_ns", "arrived_ns", "since_ns", "last_ns",
)  # fmt: skip
# A unit serves when the largest value is at least so many ns: below that the next smaller one needs no decimals.
_UNITS = (("s", 1e9, 1e11), ("ms", 1e6, 1e7), ("us", 1e3, 1e4), ("ns", 1.0, 0.0))
_NAMES = ("name", "operator", "part", "before", "after")
_DIGITS, _MOST_DECIMALS = 4, 6
"""Of numbers without a unit of their own: digits of the largest, and decimals of all."""
_NOTHING = "-"
_INDENT = "      "
_LEAST_SENTENCE = 20
_MOST_ROWS = 10_000
_SHOWN_AS_ZERO = 0.0005  # a share below this is shown as 0.0 %
_STYLES = {"verdict": "bold"}
_FACT_STYLES = {"verdict": "bold", "hang": "bold red", "warning": "red"}
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:ns|us|ms|s|GB/s)\b)")
_STANDS_FOR_SPACE = "\ue000"  # in no font, as wide as a space, and no space to rich
# Underscores mark up at the edge of a word only.


def as_text(name: str, table: Table, screen: Screen = PAPER) -> str:
    """A table for a terminal: header words stacked, no line wider than the screen.

    Of a table that does not fit, the columns that matter least are left out, and named below it. Sentences of a column
    without room stand below their rows. Rows of zeros are said in a line instead, and where there is no room for all,
    so are columns without a value and a sentence that is the same in all rows. Where somebody asked for columns, all
    rows are shown.
    """
    entry, whole = CATALOG.get(name), plain(table)
    if whole.asked:
        screen = replace(screen, worst_only=False, wanted=tuple(whole.columns))
    measure = entry.worst if entry and entry.worst and entry.worst.column in whole.columns else None
    worst = measure.place(whole) if measure else None
    values, omitted = worst_rows(name, whole) if screen.worst_only else (whole, [])
    if measure and values is not whole:
        worst = worst and (0, measure.column)
    keeps_rows = screen.everything or whole.asked
    if entry and entry.adds_up and not keeps_rows:
        values, left_out = _largest_parts(values, entry.negligible, screen)
        omitted += left_out
    elif entry and entry.negligible and not keeps_rows:
        values, left_out = _without_zeros(values, entry.negligible)
        omitted += left_out
    if not screen.everything:
        values, left_out = _first_rows(values)
        omitted += left_out
    columns = _columns_of(name, values, screen.wanted, max(screen.width or 0, _LONGEST_NAME))
    said: list[str] = []
    below = None
    widths, no_room = {column.name: column.width for column in columns}, list[Column]()
    if screen.width is not None and sum(widths.values()) + GAP * len(widths) >= screen.width:
        columns, said, empty = _worth_a_column(columns, screen.wanted)
        omitted += empty
        order = (*screen.wanted, *(entry.narrow if entry else ()))
        widths, no_room = fitted(columns, order, screen.width)
        below = next((c for c in columns if entry and c.name == entry.below and widths.get(c.name, 0) < c.width), None)
        if below is not None:
            columns = [column for column in columns if column is not below]
            widths, no_room = fitted(columns, order, screen.width)
    if no_room:
        omitted.append(f"no room for {', '.join(column.header.replace('_', ' ') for column in no_room)}")
    shown = [column.within(widths[column.name]) for column in columns if column.name in widths]
    lines = drawn(shown, widths, worst, screen, below)
    lines += "".join(f"{line}\n" for text in said for line in wrapped(text, screen.width))
    hint = wrapped(f"{'; '.join(omitted)} ({screen.how_to_see_all})", screen.width) if omitted else []
    return lines + "".join(f"{styled(line, 'dim', screen)}\n" for line in hint)


def _without_zeros(values: PlainTable, columns: Sequence[str]) -> tuple[PlainTable, list[str]]:
    """Drop rows that show 0.0 % in all these columns, and say how many were dropped."""
    shares = list(zip(*(values.columns[column] for column in columns), strict=True))
    zero = [all(share is not None and abs(share) < _SHOWN_AS_ZERO for share in row) for row in shares]
    if not any(zero) or all(zero):
        return values, []
    return _only(values, [not left_out for left_out in zero]), [f"left out {counted(sum(zero), 'row')} of 0.0 %"]


def _largest_parts(values: PlainTable, columns: Sequence[str], screen: Screen) -> tuple[PlainTable, list[str]]:
    """Keep the first rows that are not 0.0 % in these columns, and say how much the others take together."""
    number: Counter[tuple[Any, ...]] = Counter()
    first = []
    for key in _keys(values, screen.of_each):
        number[key] += 1
        first.append(screen.first is None or number[key] <= screen.first)
    kept, _ = _without_zeros(_only(values, first), columns)
    more = len(values) - len(kept)
    if not more:
        return values, []
    rest: dict[tuple[Any, ...], float] = defaultdict(float)
    for sign, table in ((1, values), (-1, kept)):
        for key, share in zip(_keys(table, screen.of_each), table.columns["share_frac"], strict=True):
            rest[key] += sign * (share or 0)
    most = f"{max(0.0, *rest.values()):.1%}".replace("%", " %")  # a difference of sums may be just below 0
    of = f"up to {most} of the time of a {screen.of_each[-1]}" if len(rest) > 1 else f"{most} of the time"
    return kept, [f"left out {counted(more, 'row')}, together {of}"]


def _keys(values: PlainTable, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """What each row has in these columns."""
    return [tuple(values.columns[column][row] for column in columns) for row in range(len(values))]


def _only(values: PlainTable, wanted: Sequence[bool]) -> PlainTable:
    """The wanted rows."""
    columns = {name: list(compress(column, wanted)) for name, column in values.columns.items()}
    return replace(values, columns=columns)


def _first_rows(values: PlainTable) -> tuple[PlainTable, list[str]]:
    """Keep as many rows as a person may read, and say how many were dropped."""
    more = len(values) - _MOST_ROWS
    if more <= 0:
        return values, []
    kept = {name: column[:_MOST_ROWS] for name, column in values.columns.items()}
    return replace(values, columns=kept), [f"left out {counted(more, 'more row')}"]


def _worth_a_column(columns: list[Column], wanted: Sequence[str]) -> tuple[list[Column], list[str], list[str]]:
    """Columns that tell rows apart; sentences on columns with one value for all; sentences on empty columns."""
    empty = [c for c in columns if c.texts and c.name not in wanted and all(text == _NOTHING for text in c.texts)]
    if len(empty) == len(columns):
        empty = []
    equal = [
        c
        for c in columns
        if c.is_sentence and c.name not in wanted and c not in empty and len(c.texts) > 2 and len(set(c.texts)) == 1
    ]
    left = [column for column in columns if column not in empty and column not in equal]
    if not left:
        return columns, [], []
    said = [f"{column.header.replace('_', ' ')} of all rows: {column.texts[0]}" for column in equal]
    names = ", ".join(column.header.replace("_", " ") for column in empty)
    return left, said, [f"empty columns: {names}"] if empty else []


def worst_rows(name: str, table: Table) -> tuple[PlainTable, list[str]]:
    """The worst rows of a table of many ranks, with minimum, median and maximum, and what was left out."""
    entry, values = CATALOG.get(name), plain(table)
    if entry is None or entry.worst is None or len(values) <= MOST_RANKS:
        return values, []
    left_out = f"{WORST} of {len(values)} rows, the worst by {entry.worst.header}"
    return worst_of(values, entry.worst, WORST), [left_out]


def wrapped(text: str, width: int | None) -> list[str]:
    """Wrap the text to `width` cells, between words, and never between a number and its unit."""
    if width is None:
        return [text]
    joined = Text(_BEFORE_UNIT.sub(_STANDS_FOR_SPACE, text))
    lines = joined.wrap(Console(file=StringIO(), width=width), width, overflow="fold")
    return [line.plain.replace(_STANDS_FOR_SPACE, " ").rstrip() for line in lines]


def fact_lines(facts: Iterable[tuple[str, str]], indent: int, screen: Screen) -> str:
    """Lines of labels and values; long values are wrapped beside their label."""
    lines = []
    if screen.width is not None:
        indent = min(indent, screen.width // 3)
    for item, value in facts:
        name = item if screen.width is None else shortened(item, indent)
        room = None if screen.width is None else max(screen.width - indent - 2, 20)
        head, *rest = [styled(line, _FACT_STYLES.get(item, ""), screen) for line in wrapped(value, room)] or [""]
        lines += [f"{name}{' ' * (indent - cell_len(name))}  {head}", *(f"{'':<{indent}}  {line}" for line in rest)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def styled(text: str, style: str, screen: Screen) -> str:
    """One line of text in a rich style, if the screen has colours."""
    if not screen.colour:
        return text
    console = Console(file=StringIO(), width=10**6, force_terminal=True, color_system="standard", legacy_windows=False)
    console.print(Text(text, style), end="", soft_wrap=True)
    written: str = console.file.getvalue()  # type: ignore[attr-defined]
    return written


def drawn(
    columns: list[Column],
    widths: dict[str, int],
    worst: tuple[int, str] | None,
    screen: Screen,
    below: Column | None = None,
) -> str:
    """The lines of a table; `worst` is the cell to highlight, `below` the text below each row."""
    grid = Grid(
        box=box.ASCII2 if screen.ascii_only else box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )
    for column in columns:
        grid.add_column(
            Text("\n".join(column.words)),
            justify="right" if column.is_number else "left",
            vertical="top",
            no_wrap=not column.is_sentence,
            overflow="fold",
            width=widths[column.name],
        )
    for number, row in enumerate(zip(*(column.texts for column in columns), strict=True)):
        styles = ["bold red" if worst == (number, column.name) else _STYLES.get(column.name, "") for column in columns]
        grid.add_row(*map(Text, row, styles))
    console = Console(
        file=StringIO(),
        width=max(sum(widths.values()) + (len(columns) + 1) * (GAP + 1), 40),
        force_terminal=screen.colour,
        color_system="standard" if screen.colour else None,
        legacy_windows=False,
    )
    console.print(grid)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    if below is not None:
        lines = _with_sentences(lines, columns, widths, below, screen)
    return "\n".join(lines).strip("\n") + "\n"


def _with_sentences(
    lines: list[str], columns: list[Column], widths: dict[str, int], below: Column, screen: Screen
) -> list[str]:
    """The lines of a table with the text of `below` after the lines of each row."""
    wrapping = [column for column in columns if column.is_sentence]
    heights = [
        max([1, *(len(wrapped(column.texts[row], widths[column.name])) for column in wrapping)])
        for row in range(len(below.texts))
    ]
    *_, bottom = lines  # the lower edge
    first = len(lines) - 1 - sum(heights)
    result = lines[:first]
    room = max((screen.width or 0) - len(_INDENT), _LEAST_SENTENCE)
    for height, text in zip(heights, below.texts, strict=True):
        result += lines[first : first + height]
        result += [f"{_INDENT}{line}" for line in wrapped(text, room)] if text != _NOTHING else []
        first += height
    return [*result, bottom]


def as_markdown(name: str, table: Table) -> str:
    """A GitHub-flavoured table with the columns and units of the text form."""
    headers, rows, numeric = cells(name, table)
    lines = [
        "| " + " | ".join(escaped(h) for h in headers) + " |",
        "|" + "|".join("---:" if right else "---" for right in numeric) + "|",
        *("| " + " | ".join(escaped(c) for c in row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def escaped(cell: str) -> str:
    """Escape text for GitHub-flavoured markdown: names of kernels hold stars, bars and brackets."""
    return for_markdown(cell)


def cells(name: str, table: Table) -> tuple[list[str], list[list[str]], list[bool]]:
    """Headers, rows of text, and whether each column is a number."""
    columns = shown_columns(name, table)
    rows = zip(*(column.texts for column in columns), strict=True)
    return [column.header for column in columns], [list(row) for row in rows], [c.is_number for c in columns]


def shown_columns(name: str, table: Table) -> list[Column]:
    """The columns that people see, with headers and values as text."""
    return _columns_of(name, plain(table))


def _columns_of(
    name: str, values: PlainTable, wanted: Sequence[str] = (), longest_name: int = _LONGEST_NAME
) -> list[Column]:
    """The columns that people see, or want to see, with their values as text."""
    entry = CATALOG.get(name)
    usual = () if values.asked or entry is None else entry.shown
    wanted = tuple(values.columns) if values.asked else wanted
    columns = [c for c in usual or values.columns if c in values.columns]
    columns += [c for c in wanted if c in values.columns and c not in columns]
    if (
        "partial" in columns and "partial" not in wanted and not any(values.columns["partial"])
    ):  # as in nearly every run
        columns.remove("partial")
    optional = set(entry.optional) - set(wanted) if entry else set()
    columns = [c for c in columns if c not in optional or any(v is not None for v in values.columns[c])]
    unit = _time_unit([values.columns[c] for c in columns if c.endswith("_ns") and c not in _POINTS_IN_TIME])
    seen = []
    for column in columns:
        shown = values.columns[column]
        whole = entry is not None and entry.in_seconds and column.endswith("_ns")
        decimals = entry.decimals if entry is not None else 1
        header, text = _seconds(column) if whole else _form(column, values, unit, (decimals, longest_name))
        origin = 0
        if column in _POINTS_IN_TIME:
            moments = (values.whole or values).columns[column]
            origin = min((v for v in moments if v is not None), default=0)
            shown = [None if v is None else v - origin for v in shown]
        texts = [_NOTHING if v is None else v.text if isinstance(v, Label) else printable(text(v)) for v in shown]
        full = dict[int, str]()
        if column in _NAMES:
            whole_texts = (printable(v) if isinstance(v, str) else None for v in shown)
            full = {row: v for row, v in enumerate(whole_texts) if v is not None and v != texts[row]}
        factor = _factor(column, header)
        seen.append(Column(column, header, texts, values.is_number(column), factor, origin, full))
    return seen


def _time_unit(durations: list[list[Any]]) -> tuple[str, float]:
    """The unit of all durations of a table and its size in ns, so that they can be compared."""
    largest = max((abs(v) for column in durations for v in column if v is not None), default=0)
    return next((name, ns) for name, ns, at_least in _UNITS if largest >= at_least)


_Form = tuple[str, Callable[[Any], str]]
"""The header of a column, and how its values are written."""


def _seconds(column: str) -> _Form:
    return f"{column.removesuffix('_ns')} (s)", lambda v: _significant(v / 1e9)


def _form(column: str, values: PlainTable, unit: tuple[str, float], size: tuple[int, int]) -> _Form:
    """`size` is the number of decimals of times, and the width of names."""
    decimals, longest_name = size
    if column in _POINTS_IN_TIME:
        return f"{column.removesuffix('_ns')} (ms)", lambda v: _fixed(v / 1e6, 3, "")
    if column.endswith("_ns"):
        digits = 0 if unit[0] == "ns" else decimals
        return f"{column.removesuffix('_ns')} ({unit[0]})", lambda v: _fixed(v / unit[1], digits)
    if column.endswith("_gb_per_s"):
        return f"{column.removesuffix('_gb_per_s')} (GB/s)", _significant
    if column.endswith("_us_per_token"):
        return f"{column.removesuffix('_us_per_token').replace('_', ' ')} (us/token)", _significant
    if column.endswith("_per_s"):
        return f"{column.removesuffix('_per_s')} (1/s)", lambda v: _fixed(v, 1)
    if column.startswith("speedup_") or column.endswith("_factor") or column == "mean_depth":
        return column, _significant
    if column.endswith("ratio"):
        return column, lambda v: _fixed(v, 3, "")
    if column == "power_w":
        return "power (W)", lambda v: _fixed(v, 1)
    if "_loss" in column:
        return column, lambda v: _fixed(v, 4, "")
    if column == "lr":
        return column, lambda v: f"{v:.4g}"
    if "accuracy" in column:  # as reports give it
        return f"{column.removesuffix('_frac')} (%)", lambda v: _fixed(100 * v, 2, "")
    if column.endswith("_frac"):
        return f"{column.removesuffix('_frac')} (%)", lambda v: _fixed(100 * v, 1, "")
    if column == "p_value":
        return column, lambda v: f"{v:.2g}"
    if column in _NAMES:
        return column, lambda v: shortened_kernel(v, longest_name)
    if "_us" in column and values.is_number(column) and not values.is_integer(column):
        return f"{column.replace('_us', '')} (us)", lambda v: _fixed(v, 1)
    if column.endswith(("_bytes", "_elems")) and values.is_integer(column):
        unit_name = column[-5:].strip("_")
        return f"{column.removesuffix('_bytes').removesuffix('_elems')} ({unit_name})", lambda v: f"{v:,}"
    if values.dtypes[column].startswith("bool"):
        return column, lambda v: "yes" if v else "no"
    if values.is_number(column) and not values.is_integer(column):
        largest = max((abs(v) for v in values.columns[column] if v is not None), default=0.0)
        digits = max(_DIGITS - 1 - math.floor(math.log10(largest)), 0) if largest > 0 else 0
        return column, lambda v: _fixed(v, min(digits, _MOST_DECIMALS))
    return column, str


def _factor(column: str, header: str) -> float:
    """What one of the column's shown units is in its own: 1e6 for `wait_ns` in ms."""
    unit = header.rpartition("(")[2].rstrip(")") if header.endswith(")") else ""
    if column.endswith("_ns"):
        return {"us": 1e3, "ms": 1e6, "s": 1e9}.get(unit, 1.0)
    return 0.01 if unit == "%" else 1.0


def _fixed(value: float, digits: int, separator: str = ",") -> str:
    """The number with this many decimals; a number that rounds to zero has no sign."""
    text = f"{value:{separator}.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.") else text


def _significant(value: float) -> str:
    """The number with two decimals, or more below 0.1, so that slow links keep two digits."""
    return f"{value:,.2f}" if abs(value) >= 0.095 else f"{value:.2g}"
