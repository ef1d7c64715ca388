"""The packets of a trace in Perfetto's format, as torch writes them: slices, work of GPUs, and counters.

Source of the fields: perfetto.dev/docs/reference/trace-packet-proto.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...recording.arrays import Int64s
from ...recording.protobuf import BYTES, FIXED_64, NUMBER, Document, Fields, Pieces, doubles_of
from ...recording.values import MISSING

_PACKET = 1
_TIME, _SEQUENCE, _EVENT, _INTERNED, _COUNTER, _STAGE, _TRACK = 8, 10, 11, 12, 52, 53, 60
_KIND, _NAME_ID, _TRACK_ID, _NAME, _CATEGORIES, _NOTES = 9, 10, 11, 23, 3, 4
_BEGIN, _END = 1, 2
_OF_CATEGORIES, _OF_NAMES, _OF_NOTES, _OF_STAGE_NAMES, _OF_TEXTS, _OF_ARGUMENTS = 1, 2, 3, 24, 29, 1001
_ID, _TEXT = 1, 2
_DEEPEST = 8


class Slice(NamedTuple):
    """A slice of a thread; times in ns. `notes` are its arguments."""

    category: str
    name: str
    pid: int
    tid: int
    start_ns: int
    end_ns: int
    notes: dict[str, Any]


class Stage(NamedTuple):
    """Work of a GPU: times in ns, what sort of work, and all that is said of it as texts."""

    stage: str
    name: str
    gpu: int
    start_ns: int
    dur_ns: int
    said: dict[str, str]


class Sample(NamedTuple):
    """A value of a counter of a GPU."""

    gpu: int
    name: str
    time_ns: int
    value: float


class Packets:
    """All packets of a file. Raises BrokenMessage, TooLarge."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._spans = document.fields(document.whole).where(_PACKET, BYTES).spans
        self._fields = document.fields(self._spans)
        count = len(self._spans)
        self._time = self._fields.last(_TIME, count, 0)
        self._sequence = self._fields.last(_SEQUENCE, count, 0)
        self._texts = self._interned()

    def _interned(self) -> dict[tuple[int, int, int], str]:
        """Texts by sequence, kind and number."""
        found = self._fields.where(_INTERNED, BYTES)
        entries = self._document.fields(found.spans)
        entries = Fields._make(column[entries.wire == BYTES] for column in entries)
        inside = self._document.fields(entries.spans)
        numbers = inside.last(_ID, len(entries.of)).tolist()
        texts = _last_texts(self._document, inside, _TEXT)
        sequences, kinds = self._sequence[found.of[entries.of]].tolist(), entries.number.tolist()
        return {(sequences[n], kinds[n], numbers[n]): text for n, text in texts.items()}

    def _text(self, packet: int, kind: int, number: int) -> str:
        return self._texts.get((int(self._sequence[packet]), kind, number), "")

    def slices(self) -> Iterator[Slice]:
        """Yield the slices of threads."""
        threads = self._threads()
        found = self._fields.where(_EVENT, BYTES)
        events = self._document.fields(found.spans)
        count = len(found.of)
        kinds, tracks = events.last(_KIND, count).tolist(), events.last(_TRACK_ID, count, 0).tolist()
        numbers, own = events.last(_NAME_ID, count).tolist(), _last_texts(self._document, events, _NAME)
        categories = _first_integers(self._document, events, _CATEGORIES)
        notes = self._notes(found, events)
        times = self._time[found.of]
        packets = found.of.tolist()
        for begun, ended in _pairs(kinds, tracks, times):
            pid, tid = threads.get(tracks[begun], (0, 0))
            packet = packets[begun]
            name = own.get(begun) or self._text(packet, _OF_NAMES, numbers[begun])
            category = self._text(packet, _OF_CATEGORIES, categories.get(begun, MISSING))
            yield Slice(category, name, pid, tid, int(times[begun]), int(times[ended]), notes.get(begun, {}))

    def _threads(self) -> dict[int, tuple[int, int]]:
        """Process and thread of each track."""
        tracks = self._document.fields(self._fields.where(_TRACK, BYTES).spans)
        count = int(tracks.of.max(initial=-1)) + 1
        ids = tracks.last(1, count)
        threads = tracks.where(4, BYTES)
        inside = self._document.fields(threads.spans)
        pids, tids = (inside.last(number, len(threads.of), 0) for number in (1, 2))
        return {
            int(ids[track]): (pid, tid)
            for track, pid, tid in zip(threads.of.tolist(), pids.tolist(), tids.tolist(), strict=True)
        }

    def _notes(self, found: Fields, events: Fields) -> dict[int, dict[str, Any]]:
        """The arguments of each slice."""
        notes = events.where(_NOTES, BYTES)
        values = self._values(notes.spans, found.of[notes.of])
        made: dict[int, dict[str, Any]] = {}
        for event, (name, value) in zip(notes.of.tolist(), values, strict=True):
            made.setdefault(event, {})[name] = value
        return made

    def _values(self, spans: Pieces, packets: Int64s, depth: int = 0) -> list[tuple[str, Any]]:
        """Name and value of each DebugAnnotation, those within others included."""
        if not len(spans):
            return []
        inside = self._document.fields(spans)
        names = [""] * len(spans)
        values: list[Any] = [[] for _ in names]  # of an empty list, no value is written
        of, at = inside.of.tolist(), packets.tolist()
        doubles = doubles_of(inside.value).tolist()
        columns = (inside.number, inside.wire, inside.value, inside.begin, inside.end)
        for place, (number, wire, value, begin, end) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            one = of[place]
            if wire == NUMBER and number == 1:
                names[one] = self._text(at[one], _OF_NOTES, value)
            elif wire == BYTES and number == 10:
                names[one] = self._document.text(begin, end)
            elif wire == NUMBER and number == 2:
                values[one] = bool(value)
            elif wire == NUMBER and number in (3, 4, 7):
                values[one] = value
            elif wire == NUMBER and number == 17:
                values[one] = self._text(at[one], _OF_TEXTS, value)
            elif wire == FIXED_64 and number == 5:
                values[one] = doubles[place]
            elif wire == BYTES and number in (6, 9):
                values[one] = self._document.text(begin, end)
        for number, is_list in ((11, False), (12, True)):
            parts = inside.where(number, BYTES)
            if depth < _DEEPEST and len(parts.of):
                nested = self._values(parts.spans, packets[parts.of], depth + 1)
                for one, (name, value) in zip(parts.of.tolist(), nested, strict=True):
                    if is_list:
                        values[one] = [*values[one], value] if isinstance(values[one], list) else [value]
                    else:
                        values[one] = {**(values[one] if isinstance(values[one], dict) else {}), name: value}
        return list(zip(names, values, strict=True))

    def stages(self) -> Iterator[Stage]:
        """Yield the work of GPUs in the order of the file."""
        found = self._fields.where(_STAGE, BYTES)
        events, count = self._document.fields(found.spans), len(found.of)
        said = self._said(found, events)
        numbers = {name: events.last(number, count) for name, number in _OF_STAGES.items()}
        own = _last_texts(self._document, events, 17)
        starts = self._time[found.of].tolist()
        packets = found.of.tolist()
        for place in range(count):
            packet = packets[place]
            stage = self._text(packet, _OF_STAGE_NAMES, int(numbers["stage"][place]))
            name = own.get(place) or self._text(packet, _OF_NAMES, int(numbers["name"][place]))
            gpu, dur = int(numbers["gpu"][place]), int(numbers["dur"][place])
            gpu, dur = (0 if number == MISSING else number for number in (gpu, dur))
            yield Stage(stage, name, gpu, starts[place], dur, said.get(place, {}))

    def _said(self, found: Fields, events: Fields) -> dict[int, dict[str, str]]:
        extra = events.where(6, BYTES)
        inside = self._document.fields(extra.spans)
        names, values = (_last_texts(self._document, inside, number) for number in (1, 2))
        said: dict[int, dict[str, str]] = {}
        for place, event in enumerate(extra.of.tolist()):
            if place in names:
                said.setdefault(event, {})[names[place]] = values.get(place, "")
        launches = events.where(21, BYTES)
        parts = self._document.fields(launches.spans)
        sizes = parts.where(1, BYTES)
        of_grid = self._document.fields(sizes.spans)
        grids = [of_grid.last(number, len(sizes.of), 1).tolist() for number in (1, 2, 3)]
        for place, launch in enumerate(sizes.of.tolist()):
            said.setdefault(int(launches.of[launch]), {})["grid"] = str([axis[place] for axis in grids])
        arguments = parts.where(3, BYTES)
        of_arguments = self._document.fields(arguments.spans)
        numbers = of_arguments.last(1, len(arguments.of)).tolist()
        values_of = [of_arguments.last(number, len(arguments.of)).tolist() for number in (3, 4)]
        for place, launch in enumerate(arguments.of.tolist()):
            event = int(launches.of[launch])
            value = next((column[place] for column in values_of if column[place] != MISSING), None)
            name = self._text(int(found.of[event]), _OF_ARGUMENTS, numbers[place])
            if name and value is not None:
                said.setdefault(event, {})[name] = str(value)
        return said

    def samples(self) -> Iterator[Sample]:
        """Yield the values of counters of GPUs."""
        found = self._fields.where(_COUNTER, BYTES)
        events, count = self._document.fields(found.spans), len(found.of)
        gpus, times = events.last(3, count, 0).tolist(), self._time[found.of].tolist()
        names = self._counter_names(events)
        counters = events.where(2, BYTES)
        inside = self._document.fields(counters.spans)
        ids, whole = (inside.last(number, len(counters.of)).tolist() for number in (1, 2))
        decimals = dict(zip(*(c.tolist() for c in _doubles(inside, 3)), strict=True))
        for place, event in enumerate(counters.of.tolist()):
            value = decimals.get(place, None if whole[place] == MISSING else float(whole[place]))
            if value is not None and ids[place] in names:
                yield Sample(gpus[event], names[ids[place]], times[event], value)

    def _counter_names(self, events: Fields) -> dict[int, str]:
        described = self._document.fields(events.where(1, BYTES).spans)
        specs = described.where(1, BYTES)
        inside = self._document.fields(specs.spans)
        numbers, names = inside.last(1, len(specs.of)).tolist(), _last_texts(self._document, inside, 2)
        return {number: names.get(place, "") for place, number in enumerate(numbers)}


def _pairs(kinds: list[int], tracks: list[int], times: Int64s) -> Iterator[tuple[int, int]]:
    """Yield the places where each slice begins and ends.

    torch writes the ends of many slices in the order in which they began. A writer that writes all by time ends what it
    began last.
    """
    by_time = bool((np.diff(times) >= 0).all())
    begun: dict[int, deque[int]] = {}
    for place, (kind, track) in enumerate(zip(kinds, tracks, strict=True)):
        if kind == _BEGIN:
            begun.setdefault(track, deque()).append(place)
        elif kind == _END and begun.get(track):
            yield (begun[track].pop() if by_time else begun[track].popleft()), place


_OF_STAGES = {"dur": 2, "gpu": 11, "stage": 14, "name": 20}


def _doubles(fields: Fields, number: int) -> tuple[Int64s, np.typing.NDArray[np.float64]]:
    found = fields.where(number, FIXED_64)
    return found.of, doubles_of(found.value)


def _first_integers(document: Document, fields: Fields, number: int) -> dict[int, int]:
    """The first integer of a repeated field of each message that has some."""
    found = fields.where(number, NUMBER, BYTES)
    first: dict[int, int] = {}
    for place, of in enumerate(found.of.tolist()):
        if of not in first:
            one = Fields._make(column[place : place + 1] for column in found)
            first[of] = next(iter(document.integers(one, number)), MISSING)
    return first


def _last_texts(document: Document, fields: Fields, number: int) -> dict[int, str]:
    found = fields.where(number, BYTES)
    return dict(zip(found.of.tolist(), document.texts(found.spans), strict=True))
