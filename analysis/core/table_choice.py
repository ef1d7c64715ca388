"""Choose rows of a table (conditions on columns, an order, and a number), and its columns, or a cross table of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from .escaping import printable
from .pivots import BadChoice, CrossTable, Pivot
from .schema import PlainTable, Schema

_CONDITION = re.compile(r"\s*(?P<column>\w+)\s*(?P<sign><=|>=|!=|==|=|<|>|~)\s*(?P<value>.*?)\s*", re.DOTALL)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": eq, "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip
_NUMBER = re.compile(r"(?P<number>[-+]?(\d[\d_,]*)?\.?\d+(e[-+]?\d+)?)\s*(?P<unit>[a-z%]*)", re.IGNORECASE)
_MISSING = ("na", "-")
_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
_TIMES_NS = {"": 1, "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_ORDERS = ("asc", "desc")


@dataclass(frozen=True)
class Condition:
    """`COLUMN`, a sign and a value, as text."""

    column: str
    sign: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition. Raises BadChoice."""
        parts = _CONDITION.fullmatch(text)
        if parts is None:
            raise BadChoice(f"{text!r} is no condition; write one such as rank=3, dur_ns>1ms or name~gemm")
        return cls(parts["column"], parts["sign"], parts["value"])

    def holds(self, dtype: str) -> Callable[[Any], bool]:
        """A function that tests a value of a column of this dtype. Raises BadChoice."""
        if self.value.lower() in _MISSING and self.sign in ("=", "==", "!="):
            return lambda value: (value is None) is (self.sign != "!=")
        if self.sign == "~":
            wanted = self.value.lower()
            return lambda value: value is not None and wanted in str(value).lower()
        compare, bound = _COMPARE[self.sign], self._bound(dtype.lower())
        # A value that is not known is no other one: `!=` takes its row, an order does not.
        return lambda value: compare(value, bound) if value is not None else self.sign == "!="

    def _bound(self, dtype: str) -> Any:
        """The value to compare with."""
        if dtype.startswith("bool"):
            if self.value.lower() not in _TRUTH:
                raise BadChoice(f"{self.column} is true or false, not {self.value!r}")
            return _TRUTH[self.value.lower()]
        if not dtype.startswith(("int", "uint", "float")):
            return self.value
        parts = _NUMBER.fullmatch(self.value)
        factor = None if parts is None else _factor(self.column, parts["unit"].lower())
        if parts is None or factor is None:
            units = " (a unit may follow: ns, us, ms, s)" if self.column.endswith("_ns") else ""
            raise BadChoice(f"{self.column} holds numbers{units}, and {self.value!r} is not one of them")
        digits = re.sub("[_,]", "", parts["number"])
        return (float(digits) if re.search("[.eE]", digits) else int(digits)) * factor


def _factor(column: str, unit: str) -> float | None:
    """Factor from this unit to that of the column; None if the column cannot have the unit."""
    if column.endswith("_ns"):
        return _TIMES_NS.get(unit)
    if column.endswith("_frac") and unit == "%":
        return 0.01
    return 1 if not unit else None


@dataclass(frozen=True)
class SortBy:
    """A column, and which values come first. Unknown values always come last."""

    column: str
    descending: bool | None = None
    """None: numbers from the largest, text from A."""

    @classmethod
    def parse(cls, text: str) -> SortBy:
        """Parse `COLUMN`, `COLUMN:asc` or `COLUMN:desc`. Raises BadChoice."""
        column, colon, order = text.strip().partition(":")
        if colon and order not in _ORDERS:
            raise BadChoice(f"{text!r}: the order is asc or desc")
        return cls(column, order == "desc" if colon else None)


@dataclass(frozen=True)
class TableChoice:
    """Rows that fulfil all conditions, sorted, and only the first few; of these some columns, or a cross table."""

    where: tuple[Condition, ...] = ()
    sort: tuple[SortBy, ...] = ()
    top: int | None = None
    """Of a cross table, its own rows are counted."""
    columns: tuple[str, ...] = ()
    """The columns to show, in this order; empty: those that the table shows by itself."""
    pivot: Pivot | None = None
    """Instead of `columns`."""

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that rows are chosen by, each once."""
        return tuple(dict.fromkeys([*(order.column for order in self.sort), *(each.column for each in self.where)]))

    def check(self, schema: Schema) -> None:
        """Raise BadChoice if the table lacks a column, or a condition does not fit one."""
        known = list(schema.columns)
        for column in (*self.named, *self.columns, *(self.pivot.named if self.pivot else ())):
            if column not in known:
                raise BadChoice(f"{_no_column(column, known)} The table {schema.name} has: {', '.join(known)}")
        for condition in self.where:
            condition.holds(schema.columns[condition.column][0])

    @property
    def shapes(self) -> bool:
        """Whether columns are chosen."""
        return bool(self.columns) or self.pivot is not None

    def of(self, table: PlainTable, top_for_each: Sequence[str] = ()) -> PlainTable:
        """The chosen rows; with `top_for_each`, the first rows of each combination of these columns."""
        rows = list(range(len(table)))
        for condition in self.where:
            values, holds = table.columns[condition.column], condition.holds(table.dtypes[condition.column])
            rows = [row for row in rows if holds(values[row])]
        for order in reversed(self.sort):
            values = table.columns[order.column]
            down = table.is_number(order.column) if order.descending is None else order.descending
            known = [row for row in rows if values[row] is not None]
            known.sort(key=lambda row, values=values: values[row], reverse=down)  # type: ignore[misc]
            rows = known + [row for row in rows if values[row] is None]
        if self.top is not None and self.pivot is None:
            rows = _first(rows, [table.columns[column] for column in top_for_each], self.top)
        chosen = {name: [values[row] for row in rows] for name, values in table.columns.items()}
        return PlainTable(chosen, table.dtypes, table)

    def shaped(self, rows: PlainTable) -> PlainTable | CrossTable:
        """The chosen columns of these rows, or the cross table. Raises BadChoice if several rows share a cell of it."""
        if self.pivot is not None:
            return self.pivot.of(rows, {order.column for order in self.sort}).first(self.top)
        if not self.columns:
            return rows
        columns = {name: rows.columns[name] for name in self.columns}
        return replace(rows, columns=columns, dtypes={name: rows.dtypes[name] for name in columns}, asked=True)


def _first(rows: list[int], keys: list[list[Any]], count: int) -> list[int]:
    """The first rows for each combination of the keys."""
    seen: dict[tuple[Any, ...], int] = {}
    first = []
    for row in rows:
        key = tuple(values[row] for values in keys)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= count:
            first.append(row)
    return first


def _no_column(column: str, known: Sequence[str]) -> str:
    """A message that the column does not exist, with the nearest one."""
    name = column.lower().replace("-", "_")
    begins = [other for other in known if other.startswith(f"{name}_")]
    near = [other for other in known if other.lower() == name] or begins or get_close_matches(name, known, n=1)
    return f"no column {printable(column)}{f'; did you mean {near[0]}?' if near else '.'}"
