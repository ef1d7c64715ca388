"""Compact tables to send between processes and keep until all ranks have come: few bytes per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.schema import Row, Schema

if TYPE_CHECKING:
    import pandas as pd

_WIDTHS = (np.uint8, np.uint16, np.uint32)


class SlimColumn(NamedTuple):
    """Integers as offsets `above` the `least`; with `texts`, they index these.

    `absent` says where there is no value, None if there is one everywhere.
    """

    least: int
    above: NDArray[Any]
    absent: NDArray[np.bool_] | None
    texts: list[str] | None = None


class SlimTable(NamedTuple):
    """A table of integers and texts with this many rows."""

    rows: int
    columns: dict[str, SlimColumn]


class Added(NamedTuple):
    """A part of a table, with amounts to add to some columns."""

    part: SlimTable
    to: Mapping[str, int]


def slim_table(schema: Schema, rows: Sequence[Row]) -> SlimTable:
    """Compact rows of this schema, of integers, truth values and texts; what they lack is NA."""
    columns = {name: _slim([row.get(name) for row in rows], dtype) for name, (dtype, _) in schema.columns.items()}
    return SlimTable(len(rows), columns)


def _slim(values: list[Any], dtype: str) -> SlimColumn:
    absent = np.array([value is None for value in values], dtype=bool)
    if dtype != "string":
        return _column(np.array([value or 0 for value in values], dtype=np.int64), absent)
    number: dict[str, int] = {}
    codes = [-1 if text is None else number.setdefault(text, len(number)) for text in values]
    return _column(np.array(codes, dtype=np.int64), absent, list(number))


def _column(values: NDArray[np.int64], absent: NDArray[np.bool_], texts: list[str] | None = None) -> SlimColumn:
    least = int(values.min()) if len(values) else 0
    above = values.view(np.uint64) - np.int64(least).view(np.uint64)
    most = int(above.max(initial=0))
    width: Any = next((width for width in _WIDTHS if most <= np.iinfo(width).max), np.uint64)
    return SlimColumn(least, above.astype(width), absent if absent.any() else None, texts)


def whole_table(schema: Schema, parts: Sequence[Added]) -> pd.DataFrame:
    """Concatenate the parts as a table of this schema. Equal texts are one object."""
    import pandas as pd

    filled = [one for one in parts if one.part.rows]
    if not filled:
        return schema.empty()
    columns = {name: _whole(name, dtype, filled) for name, (dtype, _) in schema.columns.items()}
    return schema.conform(pd.DataFrame(columns, copy=False))


def _whole(name: str, dtype: str, parts: Sequence[Added]) -> Any:
    import pandas as pd

    rows = sum(one.part.rows for one in parts)
    values, absent = np.empty(rows, dtype=np.int64), np.zeros(rows, dtype=bool)
    number: dict[str, int] = {}
    begin = 0
    for part, to in parts:
        column, own = part.columns[name], slice(begin, begin + part.rows)
        found = column.above.astype(np.uint64).view(np.int64) + column.least
        if column.texts is not None:
            numbers = [number.setdefault(text, len(number)) for text in column.texts]
            found = np.array([*numbers, -1])[found]  # -1, which is none, counts from the end
        values[own] = found + to.get(name, 0)
        if column.absent is not None:
            absent[own] = column.absent
        begin += part.rows
    if dtype == "string":
        return pd.array(list(number), dtype="string").take(values, allow_fill=True)
    if dtype == "boolean":
        return pd.arrays.BooleanArray(values.astype(bool), absent)
    return values if dtype == "int64" and not absent.any() else pd.arrays.IntegerArray(values, absent)
