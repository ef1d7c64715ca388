"""The planes of an XSpace, their lines and events, as columns.

Source of the fields: xplane.proto of openxla/xla. Events name what they are, and what is said of them, by numbers that
each plane explains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...recording.arrays import Int64s
from ...recording.protobuf import BYTES, FIXED_64, NUMBER, BrokenMessage, Document, Fields, Pieces, doubles_of
from ...recording.values import MISSING

_PLANES, _HOSTS = 1, 4
_PLANE_NAME, _LINES, _EVENT_NAMES, _STAT_NAMES, _PLANE_STATS = 2, 3, 4, 5, 6
_LINE_ID, _LINE_NAME, _LINE_START, _EVENTS = 1, 2, 3, 4
_EVENT_NAME, _OFFSET, _DURATION, _EVENT_STATS = 1, 2, 3, 4
_KEY, _VALUE = 1, 2
_NAME, _DISPLAY_NAME, _NAME_STATS = 2, 4, 5
_STAT_NAME, _DOUBLE, _TEXT, _BLOB, _REFERENCE = 1, 2, 5, 6, 7
_INTEGERS = (3, 4)


class Stats:
    """The stats of events, or of a plane, by their names."""

    def __init__(self, document: Document, said: Fields, names: dict[int, str]) -> None:
        """Of the messages `said`; `of` in these are the events."""
        self._document, self._names = document, names
        self._of = said.of
        inside = document.fields(said.spans)
        self._name = inside.last(_STAT_NAME, len(said.of))
        self._values = Fields._make(column[inside.number != _STAT_NAME] for column in inside)
        self._numbers = {name: number for number, name in reversed(names.items())}

    def _rows(self, name: str) -> Fields:
        number = self._numbers.get(name, MISSING)
        rows = np.flatnonzero((self._name[self._values.of] == number) & (number != MISSING))
        return Fields._make(column[rows] for column in self._values)

    def integers(self, name: str, events: int) -> Int64s:
        """The integer of this name that each event has, MISSING without one."""
        found, values = self._rows(name), np.full(events, MISSING)
        rows = np.isin(found.number, _INTEGERS) & (found.wire == NUMBER)
        values[self._of[found.of[rows]]] = found.value[rows]
        return values

    def numbers(self, name: str, events: int) -> NDArray[np.float64]:
        """The double of this name that each event has, NaN without one."""
        found, values = self._rows(name), np.full(events, np.nan)
        rows = (found.number == _DOUBLE) & (found.wire == FIXED_64)
        values[self._of[found.of[rows]]] = doubles_of(found.value[rows])
        return values

    def texts(self, name: str) -> dict[int, str]:
        """The text of this name by event, for those that have one."""
        found = self._rows(name)
        texts: dict[int, str] = {}
        columns = (found.of, found.number, found.wire, found.value, found.begin, found.end)
        for of, number, wire, value, begin, end in zip(*(column.tolist() for column in columns), strict=True):
            if number == _REFERENCE and wire == NUMBER and value in self._names:
                texts[int(self._of[of])] = self._names[value]
            elif number == _TEXT and wire == BYTES:
                texts[int(self._of[of])] = self._document.text(begin, end)
        return texts

    def contents(self, name: str) -> dict[int, Pieces]:
        """The place of the bytes of this name by event."""
        found = self._rows(name).where(_BLOB, BYTES)
        return {place: found.spans[n : n + 1] for n, place in enumerate(self._of[found.of].tolist())}


class PlaneEvents(NamedTuple):
    """Events of some lines as columns, in the order of the file; times in ps since a zero.

    `line` is a place in these lines, `name` the number of what happened, MISSING without one.
    """

    line: Int64s
    name: Int64s
    start_ps: Int64s
    end_ps: Int64s
    stats: Stats


@dataclass(frozen=True)
class PlaneLine:
    """A line of a plane: a stream of a GPU, a sort of events of a TPU, a thread of a host."""

    id: int
    name: str
    start_ns: int
    events: Pieces


class Plane:
    """A device, the threads of a host, or other facts of a capture."""

    def __init__(self, document: Document, name: str, span: Pieces) -> None:
        self.document, self.name, self._span = document, name, span

    @cached_property
    def _fields(self) -> Fields:
        return self.document.fields(self._span)

    @cached_property
    def lines(self) -> list[PlaneLine]:
        """Its lines in the order of the file."""
        spans = self._fields.where(_LINES, BYTES).spans
        inside = self.document.fields(spans)
        ids, starts = inside.last(_LINE_ID, len(spans), 0).tolist(), inside.last(_LINE_START, len(spans), 0).tolist()
        names = _texts(self.document, inside, _LINE_NAME)
        events = inside.where(_EVENTS, BYTES)
        bounds = np.searchsorted(events.of, np.arange(len(spans) + 1)).tolist()
        return [
            PlaneLine(ids[place], names.get(place, ""), starts[place], events.spans[bounds[place] : bounds[place + 1]])
            for place in range(len(spans))
        ]

    @cached_property
    def stat_names(self) -> dict[int, str]:
        """What the numbers of stats mean."""
        keys, values = self._entries(_STAT_NAMES)
        names = _texts(self.document, self.document.fields(values), _NAME)
        return {key: names.get(place, "") for place, key in enumerate(keys.tolist())}

    @cached_property
    def event_names(self) -> dict[int, str]:
        """What the numbers of events mean: the name that is short where there are two."""
        names, short = (_texts(self.document, self._kinds, number) for number in (_NAME, _DISPLAY_NAME))
        return {key: short.get(place) or names.get(place, "") for place, key in enumerate(self._kind_keys.tolist())}

    @cached_property
    def stats(self) -> Stats:
        """What is said of the plane itself, which counts as its event 0."""
        return Stats(self.document, self._fields.where(_PLANE_STATS, BYTES), self.stat_names)

    def kind_texts(self, name: str) -> dict[int, str]:
        """The text of this name that all events of a number share, by that number."""
        keys = self._kind_keys.tolist()
        return {keys[place]: text for place, text in self._kind_stats.texts(name).items()}

    def kind_contents(self, name: str) -> dict[str, Pieces]:
        """The place of the bytes of this name that are said of events, by the names of these."""
        keys = self._kind_keys.tolist()
        return {self.event_names[keys[place]]: span for place, span in self._kind_stats.contents(name).items()}

    @cached_property
    def _kind_stats(self) -> Stats:
        return Stats(self.document, self._kinds.where(_NAME_STATS, BYTES), self.stat_names)

    @cached_property
    def _kind_entries(self) -> tuple[Int64s, Pieces]:
        return self._entries(_EVENT_NAMES)

    @property
    def _kind_keys(self) -> Int64s:
        return self._kind_entries[0]

    @cached_property
    def _kinds(self) -> Fields:
        return self.document.fields(self._kind_entries[1])

    def _entries(self, number: int) -> tuple[Int64s, Pieces]:
        """Keys and values of a map, without entries that lack one of them."""
        entries = self._fields.where(number, BYTES)
        inside = self.document.fields(entries.spans)
        keys, values = inside.last(_KEY, len(entries.of)), inside.where(_VALUE, BYTES)
        return keys[values.of], values.spans

    def events(self, lines: Iterable[PlaneLine], zero_ns: int) -> PlaneEvents:
        """All events of these lines, counted from a zero. Raises BrokenMessage, TooLarge."""
        lines = list(lines)
        counts = [len(line.events) for line in lines]
        spans = Pieces.joined([line.events for line in lines])
        of_line = np.repeat(np.arange(len(lines)), counts)
        inside = self.document.fields(spans)
        name, offset, took = (inside.last(number, len(spans)) for number in (_EVENT_NAME, _OFFSET, _DURATION))
        offset, took = np.where(offset == MISSING, 0, offset), np.where(took == MISSING, 0, took)
        starts_ns = np.array([_near(line.start_ns - zero_ns) for line in lines], dtype=np.int64)[of_line]
        _refuse_times(spans, starts_ns, offset, took)
        start_ps = starts_ns * 1000 + offset
        stats = Stats(self.document, inside.where(_EVENT_STATS, BYTES), self.stat_names)
        return PlaneEvents(of_line, name, start_ps, start_ps + took, stats)


_LONGEST_PS = 10**18
"""Eleven days: no capture is as long."""
_FARTHEST_NS = 2**52
"""52 days: no line begins farther from another."""


def _near(ns: int) -> int:
    """A time, or what is just too far away for 64 bits of ps."""
    return max(-_FARTHEST_NS, min(ns, _FARTHEST_NS))


def _refuse_times(spans: Pieces, starts_ns: Int64s, offset: Int64s, took: Int64s) -> None:
    wrong = (np.abs(starts_ns) >= _FARTHEST_NS) | (np.abs(offset) > _LONGEST_PS) | (took < 0) | (took > _LONGEST_PS)
    if wrong.any():
        raise BrokenMessage("has an event at an impossible time", int(spans.begin[np.argmax(wrong)]))


def _texts(document: Document, fields: Fields, number: int) -> dict[int, str]:
    """The text of this field by message."""
    found = fields.where(number, BYTES)
    return dict(zip(found.of.tolist(), document.texts(found.spans), strict=True))


class Space:
    """An XSpace: its planes before any `damage`, and the first host that it names."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.damage: BrokenMessage | None = None
        whole = document.whole
        try:
            fields = document.fields(whole)
        except BrokenMessage as err:
            self.damage = err
            fields = document.fields(Pieces(whole.begin, np.array([err.at])))
        spans, hosts = (fields.where(number, BYTES).spans for number in (_PLANES, _HOSTS))
        self.planes = [self._plane(spans[place : place + 1]) for place in range(len(spans))]
        self.host = next(iter(document.texts(hosts[:1])), None)
        self.whole_bytes = int(fields.end.max(initial=0))

    def _plane(self, span: Pieces) -> Plane:
        return Plane(self.document, self.document.first_text(span, _PLANE_NAME), span)

    def named(self, name: str) -> Plane | None:
        """The plane of this name."""
        return next((plane for plane in self.planes if plane.name == name), None)
