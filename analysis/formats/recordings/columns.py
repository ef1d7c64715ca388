"""Code columns of numbers as few bytes: differences or distinct values, in byte planes that deflate well.

Times in us with 3 decimals are kept as whole ns. Every bit comes back.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...recording.arrays import Int64s
from ...recording.values import MISSING, Int64

_WIDTHS = (1, 2, 4, 8)
_FEW = 4  # distinct values are worth a list of their own if each of them stands for so many rows
_THOUSAND = 1000
_EXACT = 2.0**53
_NAN_BITS = int(np.array([np.nan]).view(np.int64)[0])


class BadColumn(ValueError):
    """A column does not fit its description."""


class CodedColumn(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The values of a column, `rows` of them present; `absent` has a bit per row if some are not.

    - `same`: all are `first`.
    - `above`: `first` + what the planes hold.
    - `steps`: `first` + the sum of the signed numbers so far; of `bends` the sum of that sum. Signed numbers are
      0, -1, 1, -2, ... by what the planes hold.
    - `among`: what the planes hold counts into `distinct`.

    Planes: the lowest byte of each value, then the next one, of `width` bytes. Sums are modulo 2^64. Numbers that are
    not integers are thousandths, or (`bits`) the integer of their 64 bits.
    """

    rows: Annotated[int, msgspec.Meta(ge=0)]
    coding: Literal["same", "above", "steps", "bends", "among"] = "same"
    first: Int64 = 0
    width: Literal[1, 2, 4, 8] = 1
    planes: bytes = b""
    absent: bytes = b""
    distinct: CodedColumn | None = None
    unit: Literal["whole", "thousandths", "bits"] = "whole"


def coded_integers(values: Int64s) -> CodedColumn:
    """Code integers, some of which may be MISSING."""
    return _with_absent(values, values == MISSING)


def coded_doubles(values: NDArray[np.float64]) -> CodedColumn:
    """Code doubles, some of which may be NaN."""
    absent = values.view(np.int64) == _NAN_BITS
    known = values[~absent]
    ns = _thousandths(known)
    unit: Literal["bits", "thousandths"] = "bits" if ns is None else "thousandths"
    integers = np.full(len(values), MISSING)
    integers[~absent] = known.view(np.int64) if ns is None else ns
    column = _with_absent(integers, absent)
    column.unit = unit
    return column


def integers_from(column: CodedColumn, rows: int) -> Int64s:
    """Decode a column of `rows` integers. Raises BadColumn."""
    if not column.absent:
        if column.rows != rows:
            raise BadColumn(f"{column.rows} rows in place of {rows}")
        return _values(column)
    present = _bits(column.absent, rows)
    if int(present.sum()) != column.rows:
        raise BadColumn(f"{column.rows} rows in place of {int(present.sum())}")
    integers = np.full(rows, MISSING)
    integers[present] = _values(column)
    return integers


def doubles_from(column: CodedColumn, rows: int) -> NDArray[np.float64]:
    """Decode a column of `rows` doubles. Raises BadColumn."""
    integers = integers_from(column, rows)
    if column.unit == "bits":
        numbers: NDArray[np.float64] = integers.view(np.float64).copy()
    elif column.unit == "thousandths":
        numbers = _from_thousandths(integers)
    else:
        raise BadColumn("a column of numbers has no unit")
    if column.absent:
        numbers[~_bits(column.absent, rows)] = np.nan
    return numbers


def _bits(absent: bytes, rows: int) -> NDArray[np.bool_]:
    """Whether each row is present."""
    if len(absent) != -(-rows // 8):
        raise BadColumn("the bits of absent rows are not as many as rows")
    present: NDArray[np.bool_] = np.unpackbits(np.frombuffer(absent, np.uint8), count=rows) == 0
    return present


def _with_absent(values: Int64s, absent: NDArray[np.bool_]) -> CodedColumn:
    if not absent.any():
        return _coded(values)
    column = _coded(values[~absent])
    column.absent = np.packbits(absent).tobytes()
    return column


def _coded(values: Int64s, *, try_distinct: bool = True) -> CodedColumn:
    """Code the values in the form that promises to be the smallest."""
    rows = len(values)
    if not rows:
        return CodedColumn(0)
    first = int(values[0])
    if (values == first).all():
        return CodedColumn(rows, first=first)
    least = values.min()
    unsigned, steps = values.view(np.uint64), np.diff(values.view(np.uint64), prepend=values.view(np.uint64)[:1])
    bends = np.diff(steps, prepend=steps[:1])
    coded = {"above": unsigned - least.view(np.uint64), "steps": _folded(steps), "bends": _folded(bends)}
    firsts = {"above": int(least), "steps": first, "bends": first}
    sizes = {coding: _expected_bytes(numbers) for coding, numbers in coded.items()}
    coding: Any = min(sizes, key=sizes.__getitem__)
    if try_distinct and sizes[coding] > rows / 2:  # otherwise sorting would cost more than it saves
        distinct, places = np.unique(values, return_inverse=True)
        of_distinct = _coded(distinct, try_distinct=False)
        if len(distinct) < rows // _FEW and _expected_bytes(places) + len(of_distinct.planes) < sizes[coding]:
            width, planes = _planes(places.astype(np.uint64))
            return CodedColumn(rows, "among", width=width, planes=planes, distinct=of_distinct)
    width, planes = _planes(coded[coding])
    return CodedColumn(rows, coding, firsts[coding], width, planes)


def _values(column: CodedColumn) -> Int64s:
    """The present values of a column. Raises BadColumn."""
    if column.coding == "same":
        return np.full(column.rows, column.first)
    if len(column.planes) != column.rows * column.width:
        raise BadColumn(f"{len(column.planes)} bytes for {column.rows} rows")
    planes = np.frombuffer(column.planes, np.uint8).reshape(column.width, column.rows)
    numbers = np.ascontiguousarray(planes.T).view(f"<u{column.width}").ravel().astype(np.uint64)
    first = np.array([column.first]).view(np.uint64)
    if column.coding == "among":
        distinct = column.distinct
        if distinct is None or distinct.coding == "among" or not numbers.max(initial=0) < distinct.rows <= column.rows:
            raise BadColumn("a value counts beyond the distinct ones, or there are more of these than rows")
        return _values(distinct)[numbers.astype(np.int64)]
    if column.coding == "above":
        return (numbers + first).view(np.int64)
    steps = _unfolded(numbers)
    if column.coding == "bends":
        steps = np.cumsum(steps, dtype=np.uint64)
    return (np.cumsum(steps, dtype=np.uint64) + first).view(np.int64)


def _folded(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Map 0, -1, 1, -2, ... to 0, 1, 2, 3, ..."""
    signed = numbers.view(np.int64)
    return ((signed << 1) ^ (signed >> 63)).view(np.uint64)


def _unfolded(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    unit = np.uint64(1)
    unfolded: NDArray[np.uint64] = (numbers >> unit) ^ (np.uint64(0) - (numbers & unit))
    return unfolded


def _planes(numbers: NDArray[np.uint64]) -> tuple[Any, bytes]:
    """Width in bytes that the numbers need, and their bytes: all lowest bytes first, then the next ones."""
    width = _width(numbers)
    rows = numbers.astype(f"<u{width}").view(np.uint8).reshape(-1, width)
    return width, np.ascontiguousarray(rows.T).tobytes()


def _width(numbers: NDArray[Any]) -> int:
    most = int(numbers.max())
    return next(width for width in _WIDTHS if not most >> 8 * width)


def _expected_bytes(numbers: NDArray[Any]) -> float:
    """Estimate of the packed size in bytes: the entropy of each plane."""
    bits, rows = 0.0, len(numbers)
    width = _width(numbers)
    for plane in numbers.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T:
        counts = np.bincount(plane)
        counts = counts[counts > 0]
        bits += rows * np.log2(rows) - float((counts * np.log2(counts)).sum())
    return bits / 8


def _thousandths(numbers: NDArray[np.float64]) -> Int64s | None:
    """The numbers times 1,000, if division restores them bit by bit; else None."""
    if not (np.abs(numbers) < 2.0**62 / _THOUSAND).all():
        return None
    whole = np.floor(numbers)
    thousandths: Int64s = whole.astype(np.int64) * _THOUSAND + np.rint((numbers - whole) * _THOUSAND).astype(np.int64)
    return thousandths if (_from_thousandths(thousandths).view(np.int64) == numbers.view(np.int64)).all() else None


def _from_thousandths(thousandths: Int64s) -> NDArray[np.float64]:
    """The double next to each: by division where exact; absolute times have fewer decimals than a division."""
    small = np.abs(thousandths.astype(np.float64)) < _EXACT
    quotients = thousandths / _THOUSAND
    if not small.all():
        large = thousandths[~small]
        quotients[~small] = (large // _THOUSAND).astype(np.float64) + (large % _THOUSAND) / _THOUSAND
    return quotients
