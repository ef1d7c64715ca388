"""Cross tables: one column of a table down the side, another across the top, and others in the cells."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .escaping import printable
from .schema import PlainTable, Row

_PARTS = ("rows", "columns", "values")
_EXAMPLE = "rows=workers,columns=batch_size_per_worker,values=epoch_ns,speedup_fixed_work"
_MEASURES = ("_ns", "_us", "_bytes", "_elems", "_frac", "_factor", "_per_s", "note")
"""Ends of columns that are measured or explain: they tell rows apart by chance."""


class BadChoice(ValueError):
    """A choice names no column of the table, cannot be compared with it, or does not make one table."""


@dataclass(frozen=True)
class Pivot:
    """Columns that become the rows and the columns of a cross table, and those whose values are in its cells."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Pivot:
        """Parse `rows=A,columns=B,values=C,D`: a list goes on to the next `=`. Raises BadChoice."""
        parts: dict[str, list[str]] = {}
        part = ""
        for word in text.split(","):
            begin, equals, name = word.strip().rpartition("=")
            if equals:
                part = begin.strip()
                if part not in _PARTS or part in parts:
                    raise BadChoice(f"{text!r}: expected each of {', '.join(_PARTS)} once, such as {_EXAMPLE}")
            parts.setdefault(part, []).append(name.strip())
        if set(parts) != set(_PARTS) or not all(map(all, parts.values())):
            raise BadChoice(f"{text!r}: expected {', '.join(_PARTS)}, such as {_EXAMPLE}")
        pivot = cls(*(tuple(dict.fromkeys(parts[name])) for name in _PARTS))
        twice = [name for name in pivot.keys if [*pivot.keys, *pivot.values].count(name) > 1]
        if twice:
            raise BadChoice(f"{text!r}: {twice[0]} has more than one place; name each column once")
        return pivot

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that say which cell a row belongs to."""
        return (*self.rows, *self.columns)

    @property
    def named(self) -> tuple[str, ...]:
        """All columns that it names."""
        return (*self.keys, *self.values)

    def of(self, table: PlainTable, sorted_by: Collection[str] = ()) -> CrossTable:
        """The cross table: numbers ascend down and across, texts come in the order of the table.

        A side with a column that the table is `sorted_by` comes in the order of the table. Raises BadChoice if several
        rows would share a cell.
        """
        sides = [list(zip(*(table.columns[name] for name in side), strict=True)) for side in (self.rows, self.columns)]
        cells: dict[tuple[Any, Any], int] = {}
        for number, place in enumerate(zip(*sides, strict=True)):
            if place in cells:
                same = [other for other, each in enumerate(zip(*sides, strict=True)) if each == place]
                raise BadChoice(self._several(table, same))
            cells[place] = number
        down, across = (
            list(dict.fromkeys(side))
            if {*sorted_by} & {*names}
            else _ascending(side, [table.is_number(n) for n in names])
            for side, names in zip(sides, (self.rows, self.columns), strict=True)
        )
        numbers = [[cells.get((row, column)) for column in across] for row in down]
        return CrossTable(self, table, down, across, numbers)

    def _several(self, table: PlainTable, rows: Sequence[int]) -> str:
        """A message that these rows share a cell, and what would tell them apart."""
        where = ", ".join(f"{name}={_shown(table.columns[name][rows[0]])}" for name in self.keys)
        apart = f"{len(rows)} rows have {where}"
        others = [name for name in table.columns if name not in self.named]
        telling = [name for name in others if len({table.columns[name][row] for row in rows}) == len(rows)]
        by_name = [name for name in telling if not _is_measure(table, name)] or telling
        if by_name:
            # What has few values is what they were varied by; a name of the run differs in any case.
            best = min(by_name, key=lambda name: len(set(table.columns[name])))
            value = _shown(table.columns[best][rows[0]])
            way = f"add it to rows= or columns=, or choose with --where {best}={value}"
            return f"{apart}; {best} tells them apart: {way}"
        differing = [name for name in others if len({table.columns[name][row] for row in rows}) > 1]
        differing = [name for name in differing if not _is_measure(table, name)] or differing
        if differing:
            way = "add these to rows= or columns=, or choose with --where"
            return f"{apart}; they differ in {', '.join(differing)}: {way}"
        return f"{apart}, and no column tells them apart; choose rows with --where"


@dataclass(frozen=True)
class CrossTable:
    """Rows of a table, each in the cell that its keys say. A cell without a row is NA."""

    pivot: Pivot
    source: PlainTable
    """The rows, in no matter what order."""
    down: Sequence[tuple[Any, ...]]
    """Values of `pivot.rows`, for each row of the cross table."""
    across: Sequence[tuple[Any, ...]]
    """Values of `pivot.columns`, for each group of its columns."""
    numbers: Sequence[Sequence[int | None]]
    """For each row and group the number of the row of `source`; None where there is none."""

    def __len__(self) -> int:
        return len(self.down)

    def first(self, count: int | None) -> CrossTable:
        """The first rows; all for None."""
        return replace(self, down=self.down[:count], numbers=self.numbers[:count])

    def value(self, column: str, number: int | None) -> Any:
        """The value of a column in a cell, by its row of `source`; None for NA."""
        return None if number is None else self.source.columns[column][number]

    @property
    def flat(self) -> PlainTable:
        """One column for each value of each group, named `batch_size_per_worker=32/epoch_ns`."""
        columns: dict[str, list[Any]] = {
            name: [keys[place] for keys in self.down] for place, name in enumerate(self.pivot.rows)
        }
        dtypes = {name: self.source.dtypes[name] for name in self.pivot.rows}
        for group, keys in enumerate(self.across):
            begin = "/".join(f"{name}={_shown(key)}" for name, key in zip(self.pivot.columns, keys, strict=True))
            for value in self.pivot.values:
                columns[f"{begin}/{value}"] = [self.value(value, row[group]) for row in self.numbers]
                dtypes[f"{begin}/{value}"] = self.source.dtypes[value]
        return PlainTable(columns, dtypes)

    @property
    def nested(self) -> list[Row]:
        """A dictionary for each row, whose `cells` are one dictionary for each group, with its keys and values."""
        return [
            {
                **dict(zip(self.pivot.rows, keys, strict=True)),
                "cells": [
                    {
                        **dict(zip(self.pivot.columns, group, strict=True)),
                        **{value: self.value(value, number) for value in self.pivot.values},
                    }
                    for group, number in zip(self.across, row, strict=True)
                ],
            }
            for keys, row in zip(self.down, self.numbers, strict=True)
        ]


def _ascending(side: Sequence[tuple[Any, ...]], are_numbers: Sequence[bool]) -> list[tuple[Any, ...]]:
    """Each combination of values once: numbers ascending, NA last, and texts as they come, which has its reason."""
    firsts = [{value: place for place, value in reversed([*enumerate(values)])} for values in zip(*side, strict=True)]

    def order(keys: tuple[Any, ...]) -> list[tuple[bool, Any]]:
        return [
            (is_number and value is None, (value or 0) if is_number else first[value])
            for value, is_number, first in zip(keys, are_numbers, firsts, strict=True)
        ]

    return sorted(dict.fromkeys(side), key=order)


def _is_measure(table: PlainTable, column: str) -> bool:
    return column.endswith(_MEASURES) or table.dtypes[column].lower().startswith("float")


def _shown(value: Any) -> str:
    return "NA" if value is None else printable(str(value))
