"""Code annotations and arguments of collectives: each distinct content once, values that differ as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from ...core.budget import Budget
from ...recording.arrays import Int64s
from ...recording.recording import Annotation, CommRow
from ...recording.values import MISSING, NOT_KNOWN, Int64
from .columns import BadColumn, CodedColumn, coded_doubles, coded_integers, doubles_from, integers_from

_INTEGERS = ("correlation", "external_id", "seq")
_UNSIGNED = "comms_id"
"""An unsigned number of 64 bits, as a text."""
_TIME = "ts"
_LARGEST = 2**64

_ARGUMENTS = frozenset(CommRow.__annotations__)
_LIST_BYTES, _PLACE_BYTES = 64, 8
_AnnotationKind = tuple[str, Int64, list[Any] | None, list[Any] | None, list[Any] | None]

T = TypeVar("T")


class CodedRows(msgspec.Struct, forbid_unknown_fields=True):
    """Rows that each have one of a few `kinds`, by the column `kind`, and values of their own in `columns`."""

    kind: CodedColumn
    kinds: list[Any]
    columns: dict[str, CodedColumn]


def coded_annotations(annotations: Sequence[Annotation]) -> CodedRows:
    """Store each distinct annotation once; times as columns."""
    kind, kinds = _distinct([[a.name, a.thread, a.in_dims, a.in_types, a.in_values] for a in annotations])
    times = {name: coded_doubles(np.array([getattr(a, name) for a in annotations], float)) for name in ("ts", "dur")}
    return CodedRows(kind, kinds, times)


def annotations_in(rows: CodedRows, what: str, budget: Budget, without: tuple[str, ...] = ()) -> list[Annotation]:
    """Decode annotations but those whose names begin with a text of `without`. Every row gets its own lists.

    `what` begins a message. Raises BadColumn, TooLarge.
    """
    of_every_row = _kind_of_rows(rows)
    kinds = _converted(lambda: msgspec.convert(rows.kinds, list[_AnnotationKind]))
    kept = np.flatnonzero(np.array([not name.startswith(without) for name, *_ in kinds], bool)[of_every_row])
    of_rows = of_every_row[kept].tolist()
    lists_bytes = [
        sum(_LIST_BYTES + _PLACE_BYTES * len(shapes) for shapes in kind[2:] if shapes is not None) for kind in kinds
    ]
    if of_rows:
        counts = np.bincount(np.array(of_rows), minlength=len(kinds)).tolist()
        budget.draw(what, sum(size * count for size, count in zip(lists_bytes, counts, strict=True)))
    kinds = [kinds[kind] for kind in of_rows]
    times = [doubles_from(_column(rows, name), len(of_every_row))[kept].tolist() for name in ("ts", "dur")]
    annotations = (
        [name, thread, ts, dur, dims, types, values]
        for (name, thread, dims, types, values), ts, dur in zip(kinds, *times, strict=True)
    )
    return _converted(lambda: msgspec.convert(list(annotations), list[Annotation]))


def named_annotations(rows: CodedRows, is_kept: Callable[[str], bool]) -> CodedRows:
    """The annotations whose names are kept. Raises BadColumn."""
    of_row = _kind_of_rows(rows)
    kinds = _converted(lambda: msgspec.convert(rows.kinds, list[_AnnotationKind]))
    kept = np.array([is_kept(name) for name, *_ in kinds], bool)[of_row]
    used = np.unique(of_row[kept])
    times = {name: coded_doubles(doubles_from(_column(rows, name), len(of_row))[kept]) for name in ("ts", "dur")}
    return CodedRows(coded_integers(np.searchsorted(used, of_row[kept])), [rows.kinds[kind] for kind in used], times)


def coded_comm_args(rows: Sequence[dict[str, Any]]) -> CodedRows:
    """Store each distinct row of arguments once; ids of calls as columns."""
    columns = {name: coded_integers(_integers([row.get(name) for row in rows])) for name in _INTEGERS}
    columns[_UNSIGNED] = coded_integers(_integers([_signed(row.get(_UNSIGNED)) for row in rows]))
    times = [row.get(_TIME) for row in rows]
    columns[_TIME] = coded_doubles(np.array([NOT_KNOWN if time is None else time for time in times], float))
    kind, kinds = _distinct([_rest(row) for row in rows])
    return CodedRows(kind, kinds, columns)


def comm_args_in(rows: CodedRows) -> list[dict[str, Any]]:
    """Decode the arguments of collectives. Raises BadColumn."""
    of_row = _kind_of_rows(rows).tolist()
    given = _converted(lambda: msgspec.convert(rows.kinds, list[dict[str, Any]]))
    kinds = [{name: value for name, value in kind.items() if name in _ARGUMENTS} for kind in given]
    values: dict[str, list[Any]] = {
        name: integers_from(_column(rows, name), len(of_row)).tolist() for name in (*_INTEGERS, _UNSIGNED)
    }
    values[_TIME] = doubles_from(_column(rows, _TIME), len(of_row)).tolist()
    values[_UNSIGNED] = [str(number % _LARGEST) for number in values[_UNSIGNED]]
    held = [[name for name, value in kind.items() if value is True and name in values] for kind in kinds]
    return [kinds[kind] | {name: values[name][row] for name in held[kind]} for row, kind in enumerate(of_row)]


def _rest(row: dict[str, Any]) -> dict[str, Any]:
    """The row with True for each value that is in a column."""
    held = {name for name in (*_INTEGERS, _TIME) if row.get(name) is not None}
    held |= {_UNSIGNED} if _signed(row.get(_UNSIGNED)) is not None else set()
    return {name: True if name in held else value for name, value in row.items()}


def _signed(text: str | None) -> int | None:
    """The signed 64-bit number that has this text; None if it would not give back the text."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > len(str(_LARGEST)):
        return None
    number = int(text)
    signed = number - _LARGEST if number >= _LARGEST // 2 else number
    return signed if str(number) == text and MISSING < signed < _LARGEST // 2 else None


def _integers(values: Sequence[int | None]) -> Any:
    return np.array([MISSING if value is None else value for value in values], np.int64)


def _distinct(values: Sequence[Any]) -> tuple[CodedColumn, list[Any]]:
    """The index of each value among the distinct ones, and these in order of first use."""
    places: dict[bytes, int] = {}
    firsts: list[Any] = []
    distinct = []
    for value in values:
        key = msgspec.msgpack.encode(value)
        if key not in places:
            places[key] = len(firsts)
            firsts.append(value)
        distinct.append(places[key])
    return coded_integers(np.array(distinct, np.int64)), firsts


def _kind_of_rows(rows: CodedRows) -> Int64s:
    """The index of each row's kind."""
    kind = integers_from(rows.kind, rows.kind.rows)
    if len(kind) and not 0 <= kind.min() <= kind.max() < len(rows.kinds):
        raise BadColumn("a row is of a kind that is not there")
    return kind


def _column(rows: CodedRows, name: str) -> CodedColumn:
    try:
        return rows.columns[name]
    except KeyError as err:
        raise BadColumn(f"no column {name}") from err


def _converted(make: Callable[[], T]) -> T:
    try:
        return make()
    except (msgspec.ValidationError, ValueError) as err:
        raise BadColumn(str(err)) from err
