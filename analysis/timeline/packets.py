"""Encode tracks in Perfetto's format: track descriptors, events, and shared texts.

Fields and their numbers: perfetto.dev/docs/reference/trace-packet-proto. Packets of a sequence share texts, and need
not be in order of time: readers sort them, and keep the order of the file only among those of one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..core.escaping import printable
from ..core.intervals import Times
from .lanes import event_order
from .slices import Counter, Group, Integers, Mask, Numbers, Slices, Texts, Track
from .wire import Messages, Piece, fixed64s, in_order, message, number, numbers, rows, submessage, text

_PACKET = 1
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _TRACK = 8, 10, 11, 12, 13, 60
_NOTE, _KIND, _NAME_ID, _TRACK_ID, _VALUE, _OUT, _INTO, _SHADE = 4, 9, 10, 11, 44, 47, 48, 54
_BEGIN, _END, _COUNTER = (number(_KIND, kind) for kind in (1, 2, 4))
_CLEARED, _NEEDS_TEXTS = 1, 2
_EVENT_NAMES, _NOTE_NAMES, _NOTE_TEXTS, _SHADES = 2, 3, 29, 43


class Writer:
    """Write tracks one by one; remembers the texts already written and the last track.

    Times count from `zero_ns`, because Perfetto drops what comes before 0. Of a file that several writers make, each
    writes one `sequence` of `sequences`, numbered from 1: texts are known in their sequence only, and tracks in all.
    """

    def __init__(self, zero_ns: int, sequence: int = 1, sequences: int = 1) -> None:
        self._zero_ns = zero_ns
        self._ours = number(_SEQUENCE, sequence)
        # No two sequences have a number in common, and those of many ranks stay small.
        self._track, self._apart = sequence - sequences, sequences
        self._texts: dict[int, dict[str, int]] = {
            kind: {} for kind in (_EVENT_NAMES, _NOTE_NAMES, _NOTE_TEXTS, _SHADES)
        }
        self._new: list[bytes] = []

    def begun(self) -> bytes:
        """The first packet: it makes readers forget texts of other files."""
        return submessage(_PACKET, self._ours + number(_FLAGS, _CLEARED))

    def group(self, group: Group, place: int = 0, parent: int = 0) -> Iterator[bytes]:
        """Yield all of a group, which comes at `place` in the group whose track is `parent`; 0 for none."""
        yield self._described(group, place, parent)
        heading = self._track
        if group.own is not None:
            yield self.content(group.own, heading)
        yield from self.within(group.tracks, heading)

    def within(self, tracks: Sequence[Track | Group], heading: int, place: int = 0) -> Iterator[bytes]:
        """Yield all of what stands in the group whose track is `heading`, from `place` on."""
        places: dict[str, int] = {}
        for each in tracks:
            place_of = place + places.setdefault(each.name, len(places))
            if isinstance(each, Group):
                yield from self.group(each, place_of, heading)
            elif len(each.content):  # counters of runs without waiting have no point
                yield self._described(each, place_of, heading)
                yield self.content(each.content, self._track)

    def _described(self, track: Track | Group, place: int, parent: int) -> bytes:
        """The descriptor of the next track."""
        self._track += self._apart
        content = number(1, self._track) + text(2, printable(track.name)) + number(11, 3) + number(12, place)
        if parent:
            content += number(5, parent)
        if track.description:
            content += text(14, printable(track.description))
        if isinstance(track, Track) and isinstance(track.content, Counter):
            content += submessage(8, text(6, track.content.unit))
        return submessage(_PACKET, self._ours + submessage(_TRACK, content))

    def content(self, content: Slices | Counter, track: int) -> bytes:
        """Events of a track, after the texts that they use first."""
        if isinstance(content, Counter):
            return self._values(content, track).tobytes()
        events = self._events(content, track)
        texts, self._new = b"".join(self._new), []
        needed = self._ours + number(_FLAGS, _NEEDS_TEXTS)
        return (submessage(_PACKET, needed + submessage(_INTERNED, texts)) if texts else b"") + events

    def _events(self, slices: Slices, track: int) -> bytes:
        """Begins and ends, by time."""
        begun, ended = event_order(slices.start_ns, slices.end_ns)
        ends = self._packet(slices.end_ns, [_END, number(_TRACK_ID, track)], b"")
        alike = _alike(slices)
        if len(alike) == 1 and np.array_equal(ended, begun + 1):
            return rows(len(slices), [*self._begin(slices, track), *ends]).tobytes()
        blocks = [(begun[which], self._begins(slices.taken(which), track)) for which in alike]
        return in_order([*blocks, (ended, rows(len(slices), ends))])

    def _begins(self, slices: Slices, track: int) -> Messages:
        """Begins of slices that have the same kinds of notes and arrows."""
        return rows(len(slices), self._begin(slices, track))

    def _begin(self, slices: Slices, track: int) -> list[Piece]:
        """The begin of each slice, as in `_begins`."""
        names = self._ids(_EVENT_NAMES, slices.names)
        event: list[Piece] = [_BEGIN, number(_TRACK_ID, track), *numbers(_NAME_ID, names)]
        for name, column in slices.notes.items():
            if column.known.all():
                event += self._note(name, column)
        if slices.shades is not None and slices.shades.known.all():
            event += numbers(_SHADE, self._ids(_SHADES, slices.shades))
        if slices.out is not None:
            for number_of_arrow in range(int(slices.out.count.max())):
                event += fixed64s(_OUT, slices.out.first + number_of_arrow)
        if slices.into is not None and slices.into.known.all():
            event += fixed64s(_INTO, slices.into.values)
        return self._packet(slices.start_ns, event, number(_FLAGS, _NEEDS_TEXTS))

    def _note(self, name: str, column: Texts | Integers) -> list[Piece]:
        """A note of each event: a text or an integer."""
        named = number(1, self._id(_NOTE_NAMES, name))
        value = (
            numbers(4, column.values) if isinstance(column, Integers) else numbers(17, self._ids(_NOTE_TEXTS, column))
        )
        return message(_NOTE, [named, *value])

    def _values(self, counter: Counter, track: int) -> Messages:
        """The values of a counter."""
        event = [_COUNTER, number(_TRACK_ID, track), *fixed64s(_VALUE, counter.value)]
        return rows(len(counter.time_ns), self._packet(counter.time_ns, event, b""))

    def _packet(self, time_ns: Times, event: Sequence[Piece], flags: bytes) -> list[Piece]:
        """A packet for each event."""
        since = time_ns.astype(np.uint64) - np.uint64(self._zero_ns % 2**64)
        content = [*numbers(_TIMESTAMP, since), self._ours + flags, *message(_TRACK_EVENT, event)]
        return message(_PACKET, content)

    def _ids(self, kind: int, texts: Texts) -> Numbers:
        """Number of each text; all texts are known."""
        used = np.unique(texts.codes)
        ids = np.zeros(len(texts.values), dtype=np.int64)
        ids[used] = [self._id(kind, texts.values[code]) for code in used.tolist()]
        return ids[texts.codes]

    def _id(self, kind: int, value: str) -> int:
        """Number of a text, which is written first if it is new."""
        known = self._texts[kind]
        if value not in known:
            known[value] = len(known) + 1
            self._new.append(submessage(kind, number(1, known[value]) + text(2, printable(value))))
        return known[value]


def _alike(slices: Slices) -> list[Mask]:
    """Masks of slices that have notes, arrows and shades of the same kinds, none empty."""
    pattern = np.zeros(len(slices), dtype=np.int64) if slices.out is None else slices.out.count
    for column in (*slices.notes.values(), slices.into, slices.shades):
        if column is not None:
            pattern = 2 * pattern + column.known
    return [pattern == value for value in np.unique(pattern).tolist()]
