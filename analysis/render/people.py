"""Tables for people: the columns that matter, in units that keep numbers short, as text or markdown."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING, Any, Union

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ..catalog import CATALOG
from ..core.escaping import printable
from ..core.schema import PlainTable, plain

if TYPE_CHECKING:
    import pandas as pd

Table = Union["pd.DataFrame", PlainTable]
"""What every renderer takes."""

# Names of kernels spell out all their template arguments; for people so much of them tells them apart.
_LONGEST_NAME = 72

_POINTS_IN_TIME = ("start_ns", "first_start_ns", "last_start_ns", "last_end_ns", "issue_ns", "arrived_ns")
# A unit serves when the largest value is at least so many ns: below that the next smaller one needs no decimals.
_UNITS = (("s", 1e9, 1e11), ("ms", 1e6, 1e7), ("us", 1e3, 1e4), ("ns", 1.0, 0.0))
_NOTHING = "-"
# Underscores mark up at the edge of a word only.
_MARKUP = re.compile(r"[\\|*`\[\]~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def as_text(name: str, table: Table, *, ascii_only: bool = False) -> str:
    """A table for a terminal, as wide as it needs to be: never cropped, words of a header above each other."""
    headers, rows, numeric = cells(name, table)
    grid = Grid(box=box.ASCII2 if ascii_only else box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for header, right in zip(headers, numeric, strict=True):
        stacked = Text(header.replace("_", "\n").replace(" ", "\n"))
        grid.add_column(stacked, justify="right" if right else "left", vertical="bottom", no_wrap=True)
    for row in rows:
        grid.add_row(*[Text(cell) for cell in row])
    needed = sum(max(map(cell_len, column)) + 3 for column in zip(headers, *rows, strict=True)) + 4
    console = Console(file=StringIO(), width=max(needed, 40), color_system=None, legacy_windows=False)
    console.print(grid)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    return "\n".join(lines).strip("\n") + "\n"


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
    """Text that GitHub-flavoured markdown shows as it is: names of kernels hold stars, bars and brackets."""
    return _MARKUP.sub(r"\\\g<0>", cell).replace("&", "&amp;").replace("<", "&lt;")


def cells(name: str, table: Table) -> tuple[list[str], list[list[str]], list[bool]]:
    """Headers, rows of text, and which columns are numbers."""
    values = plain(table)
    entry = CATALOG.get(name)
    columns = [c for c in (entry and entry.shown) or values.columns if c in values.columns]
    if "partial" in columns and not any(values.columns["partial"]):  # as in nearly every run
        columns.remove("partial")
    unit = _time_unit([values.columns[c] for c in columns if c.endswith("_ns") and c not in _POINTS_IN_TIME])
    headers, texts = [], []
    for column in columns:
        shown = values.columns[column]
        whole = entry is not None and entry.in_seconds and column.endswith("_ns")
        header, text = _seconds(column) if whole else _form(column, values, unit)
        if column in _POINTS_IN_TIME:
            first = min((v for v in shown if v is not None), default=0)
            shown = [None if v is None else v - first for v in shown]
        headers.append(header)
        texts.append([_NOTHING if v is None else printable(text(v)) for v in shown])
    return headers, [list(row) for row in zip(*texts, strict=True)], [values.is_number(c) for c in columns]


def _time_unit(durations: list[list[Any]]) -> tuple[str, float]:
    """One unit for all durations of a table, so that they can be compared."""
    largest = max((abs(v) for column in durations for v in column if v is not None), default=0)
    return next((name, ns) for name, ns, at_least in _UNITS if largest >= at_least)


_Form = tuple[str, Callable[[Any], str]]
"""The header of a column, and how its values are written."""


def _seconds(column: str) -> _Form:
    return f"{column.removesuffix('_ns')} (s)", lambda v: _significant(v / 1e9)


def _form(column: str, values: PlainTable, unit: tuple[str, float]) -> _Form:
    if column in _POINTS_IN_TIME:
        return f"{column.removesuffix('_ns')} (ms)", lambda v: f"{v / 1e6:.3f}"
    if column.endswith("_ns"):
        digits = 0 if unit[0] == "ns" else 1
        return f"{column.removesuffix('_ns')} ({unit[0]})", lambda v: f"{v / unit[1]:,.{digits}f}"
    if column.endswith("_gb_per_s"):
        return f"{column.removesuffix('_gb_per_s')} (GB/s)", _significant
    if column.endswith("_per_s"):
        return f"{column.removesuffix('_per_s')} (1/s)", lambda v: f"{v:,.1f}"
    if column.startswith("speedup_") or column.endswith("_factor"):
        return column, _significant
    if "_loss" in column:
        return column, lambda v: f"{v:.4f}"
    if column == "lr":
        return column, lambda v: f"{v:.4g}"
    if "accuracy" in column:  # as reports give it
        return f"{column.removesuffix('_frac')} (%)", lambda v: f"{100 * v:.2f}"
    if column.endswith("_frac"):
        return f"{column.removesuffix('_frac')} (%)", lambda v: f"{100 * v:.1f}"
    if column == "p_value":
        return column, lambda v: f"{v:.2g}"
    if column in ("name", "operator"):
        return column, _shortened
    if "_us" in column and values.is_number(column) and not values.is_integer(column):
        return f"{column.replace('_us', '')} (us)", lambda v: f"{v:,.1f}"
    if column.endswith(("_bytes", "_elems")) and values.is_integer(column):
        unit_name = column[-5:].strip("_")
        return f"{column.removesuffix('_bytes').removesuffix('_elems')} ({unit_name})", lambda v: f"{v:,}"
    return column, str


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


def _significant(value: float) -> str:
    """Two decimals, more below 0.1, so that slow links keep two digits."""
    return f"{value:,.2f}" if abs(value) >= 0.095 else f"{value:.2g}"
