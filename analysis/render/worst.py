"""The worst rows of many ranks, with minimum, median and maximum of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from ..core.declaring import Worst
from ..core.schema import PlainTable

_OF_ALL: dict[str, Callable[[list[Any]], Any]] = {"min": min, "median": median_low, "max": max}


@dataclass(frozen=True)
class Label:
    """Text instead of a value, in the first column of a row that stands for no single rank."""

    text: str


def worst_of(values: PlainTable, measure: Worst, count: int) -> PlainTable:
    """The `count` worst rows, the worst first, then minimum, median (one of the values) and maximum of all rows.

    Only of numbers; a column of whole numbers that name something, such as ranks, has none of the three.
    """
    ranked = measure.ranked(values)[:count]
    columns: dict[str, list[Any]] = {}
    for column, of_all in values.columns.items():
        known = [v for v in of_all if v is not None] if _is_amount(values, column) else []
        added = [take(known) if known else None for take in _OF_ALL.values()]
        columns[column] = [*(of_all[row] for row in ranked), *added]
    first = next(iter(columns))
    columns[first][len(ranked) :] = [Label(name) for name in _OF_ALL]
    return PlainTable(columns, values.dtypes)


def _is_amount(values: PlainTable, column: str) -> bool:
    return values.is_number(column) and column not in _NAMES and values.dtypes[column] != "boolean"


_NAMES = frozenset({"rank", "linked", "step"})
