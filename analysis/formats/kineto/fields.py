"""The fields of events that are read, and their values as columns: all from `core.tables.events`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec

from ...core.tables.events import EVENT_SORTS, EventColumn, EventSort
from ...recording.values import MISSING, NOT_KNOWN, Int64


def arguments_of(*sorts: str, beside: Iterable[tuple[str, Any, Any]] = ()) -> Any:
    """The structure of the arguments of these sorts of events, and fields `beside` their columns."""
    declared = {one.name: one for sort in sorts for one in EVENT_SORTS[sort].held}
    fields = chain.from_iterable(map(_fields_of, declared.values()))
    return msgspec.defstruct(f"{sorts[0].title()}Args", [*fields, *beside], gc=False, frozen=True)


def row_arguments_of(sort: EventSort, beside: Sequence[tuple[str, Any, Any]]) -> Any:
    """The structure of the arguments that make up a row of this sort, and fields `beside` them or in their place."""
    others = {name for name, *_ in beside}
    fields = [
        (name, Int64 | None if one.held == "integer" else str | None, msgspec.field(default=None, name=key))
        for one in sort.columns
        if one.name not in others
        for name, key in zip(_names_of(one), one.keys, strict=True)
    ]
    return msgspec.defstruct(f"{sort.name.title()}Args", [*fields, *beside], gc=False)


def value_in(declared: EventColumn, args: Any) -> Any:
    """The value of a row; None if it is missing or impossible."""
    given = (getattr(args, name) for name in _names_of(declared))
    value = next((one for one in given if one is not None), None)
    is_possible = not isinstance(value, int) or declared.above < value <= declared.most
    return value if is_possible else None


def _fields_of(declared: EventColumn) -> Iterator[tuple[str, Any, Any]]:
    missing = MISSING if declared.is_integer else NOT_KNOWN
    for name, key in zip(_names_of(declared), declared.keys, strict=True):
        yield name, Int64 | None if declared.strict else Any, msgspec.field(default=missing, name=key)


def _names_of(declared: EventColumn) -> list[str]:
    """What fields are called that have the keys of a column."""
    return [f"{declared.name}_{place}" if place else declared.name for place in range(len(declared.keys))]


def values_in(declared: EventColumn, events: Sequence[Any], args: Sequence[Any]) -> array[Any]:
    """The values of a column that stand in arguments, or in fields of events. Without `args`, those are not known."""
    if declared.keys and not args:
        return array("q" if declared.is_integer else "d", [MISSING if declared.is_integer else NOT_KNOWN] * len(events))
    if declared.held == "duration":
        return array("d", [event.dur or 0.0 for event in events])
    if declared.held == "time":
        return array("d", [event.ts for event in events])
    given = [map(attrgetter(name), args) for name in _names_of(declared)]
    if declared.held == "number":
        return _numbers_known(list(given[0]))
    if not declared.strict and given:
        return array("q", _sizes(given[0]))
    return array("q", _ids(given, map(attrgetter(declared.field), events) if declared.field else ()))


def _ids(given: Sequence[Iterable[Any]], otherwise: Iterable[Any]) -> list[int]:
    """The first of the given values of each event, or else the row in which the event is drawn."""
    found: list[int] = []
    for values in given:
        found = _either(found, [MISSING if value is None else value for value in values])
        if MISSING not in found:
            return found
    ids = list(otherwise)
    return _either(found, list(map(integer_id, ids)) if str in map(type, ids) else ids)


def _either(found: list[int], others: list[int]) -> list[int]:
    if not found:
        return others
    return [b if a == MISSING else a for a, b in zip(found, others, strict=True)] if others else found


def integer_id(value: int | str) -> int:
    """A thread, stream or device id; -1 for Kineto's own bookkeeping rows, which have names instead."""
    return value if isinstance(value, int) else -1


def _sizes(values: Iterable[Any]) -> list[int]:
    """Numbers from 0, such as sizes in bytes, MISSING for anything else; kernels have none."""
    return [value if type(value) is int and 0 <= value < 2**63 else MISSING for value in values]


def _numbers_known(values: list[Any]) -> array[float]:
    """Doubles, NaN for anything that is no number or does not fit."""
    try:
        return array("d", values)
    except (TypeError, OverflowError):
        return array("d", [v if isinstance(v, (int, float)) and abs(v) < 2**63 else NOT_KNOWN for v in values])
