"""Cut texts of wanted events out of bytes in a known layout without parsing. See docs/design/0007.

In any layout, a wanted event holds a text that identifies it: its category or its name. All of these are searched for
at once, which takes less time than unpacking the bytes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property
from typing import Any, Literal

import msgspec
from ahocorasick_rs import BytesAhoCorasick, MatchKind

from ...core.json_repairs import Habits
from ...core.markers import C10D_FRAME, LONG_CALL_US, MODULE, PYTHON_GC
from .cuts import NO_JSON, bytes_not_text, repaired_array
from .events import (
    COUNTERS_BEGIN,
    IDLE_CALLS,
    NOT_COUNTED,
    OPERATOR_CATEGORIES,
    RARE,
    ROOMS,
    RUNTIME,
    WINDOW_END,
    MalformedEvent,
    OtherEvent,
    Sorted,
    is_long,
)
from .stream import EventLayout

_NO_COMMA = (b"]", b" ", b"\n", b"\r", b"\t")
# Only a huge event makes a chunk larger, and the hits in that, tuples of three numbers, might fill the memory.
_LARGEST_BYTES = 4 << 20
# Any category or name may be written with an escaped letter.
_ESCAPE = b"\\u00"


class _Needles:
    """Texts to search for: categories in quotes, beginnings of other texts, and texts that must not occur.

    The search takes 32 bytes at a time if there are several different first bytes, and several rare ones, so texts have
    no quote; and there are at most 32 needles.
    """

    def __init__(
        self, categories: list[str], texts: list[bytes], layout: EventLayout, *, every_call: bool = False
    ) -> None:
        self._searched = categories, texts
        self.every_call, self.layout = every_call, layout
        self.rooms = [ROOMS[category] for category in categories]
        self.texts = range(len(categories), len(categories) + len(texts))
        self.escape = self.texts.stop
        # In Kineto's layout a comma follows every event but the last. After anything else there may be no more events.
        ends = [layout.closing[:-1] + other for other in _NO_COMMA] if layout.is_plain else []
        self.idle = self.escape + 1 + len(ends)
        needles = [*(f'"{category}"'.encode() for category in categories), *texts, _ESCAPE, *ends]
        # Longer than the wanted category alone.
        begins = [f'"{RUNTIME}"'.encode() + gap + b'"' for gap in layout.before_name]
        needles += [] if every_call else [begin + call.encode() for begin in begins for call in IDLE_CALLS]
        self.search = BytesAhoCorasick(needles, matchkind=MatchKind.LeftmostLongest).find_matches_as_indexes

    @cached_property
    def with_rare(self) -> _Needles:
        """Add rare categories; the search takes longer."""
        categories, texts = self._searched
        return _Needles(
            [*categories, *(category for category in ROOMS if category in RARE)], texts, self.layout,
            every_call=self.every_call,
        )  # fmt: skip


_USUAL = [category for category in ROOMS if category not in RARE]
_OTHERS = [b"thread_name", b"process_name", b"[memory]", WINDOW_END.encode()]
_OF_CALLS = [*_OTHERS, MODULE.encode(), PYTHON_GC.encode(), C10D_FRAME.encode(), COUNTERS_BEGIN.encode()]
# Of operators only those that hand a collective over, those that load data, and steps, which torch 1.9 has there.
_NO_OPERATORS = [category for category in _USUAL if category not in OPERATOR_CATEGORIES]
_FEW = [
    b"thread_name",
    b"c10d::",
    b"record_param_comms",
    b"enumerate(DataLoader)",
    b"ProfilerStep#",
    WINDOW_END.encode(),
]


@cache
def _needles(layout: EventLayout, *, with_operators: bool, every_call: bool) -> _Needles:
    if with_operators and every_call:
        return _Needles(_USUAL, _OF_CALLS, layout, every_call=True)
    return _Needles(_USUAL, _OTHERS, layout) if with_operators else _Needles(_NO_OPERATORS, _FEW, layout)


# Of an event that is not wanted: its category, which is known. Decoding any other fails, and looking costs no time.
# With every call also how long it took: a call of a function is wanted only if it is long, and most events are such
# calls, so a hit for each would take too long.
_LEFT_OUT_CATEGORIES = (*_USUAL, *NOT_COUNTED)
_LeftOut = msgspec.defstruct("_LeftOut", [("cat", Literal[_LEFT_OUT_CATEGORIES], "")], gc=False)
_LeftOutFor = msgspec.defstruct("_LeftOutFor", [("dur", float, 0.0)], bases=(_LeftOut,), gc=False)
_LEFT_OUT = msgspec.json.Decoder(list[_LeftOut])  # type: ignore[valid-type]
_LEFT_OUT_FOR = msgspec.json.Decoder(list[_LeftOutFor])  # type: ignore[valid-type]
_OF_ANY_CATEGORY = msgspec.json.Decoder(list[OtherEvent])
_WHOLE = msgspec.json.Decoder(list[msgspec.Raw])


def picked(
    source: bytes, end: int, habits: Habits, layout: EventLayout, *, with_operators: bool, every_call: bool = False
) -> Sorted | None:
    """The texts of wanted events before `end`; without operators, only of collectives and data loading.

    With `every_call`, which needs operators, also runtime calls that launch nothing, modules, and calls of Python
    functions that matter.

    `source` begins with an opening, and before `end` stands a closing, which another opening follows. None if not all
    of it is in this layout: a list ends in it, or a hit is neither at the beginning of an event nor within a single
    one. None also if one event takes several MiB, or if what is left out is not JSON.
    """
    if end > _LARGEST_BYTES:
        return None
    needles = _needles(layout, with_operators=with_operators, every_call=every_call)
    try:
        if not (layout.is_plain or _is_proven(source, end, layout)):
            return None
        not_text = bytes_not_text(source, habits, end)
        try:
            result = _picked(source, end, needles, habits)
        except _RareCategory:
            result = _picked(source, end, needles.with_rare, habits)
    except (*NO_JSON, MalformedEvent, _RareCategory):
        return None
    if result is not None:
        result.repaired_bytes += not_text
    return result


class _RareCategory(Exception):
    """A wanted event has a category that was not searched for."""


def _picked(source: bytes, end: int, needles: _Needles, habits: Habits) -> Sorted | None:
    """Compute the result of `picked`. Raises NO_JSON, MalformedEvent, _RareCategory."""
    hits = needles.search(source)
    while hits and hits[-1][1] >= end:
        hits.pop()
    left_out: list[bytes] = []
    result = _sorted(source, end, hits, needles, left_out)
    if result is None:
        return None
    # The caller decodes what was found, so every byte is checked.
    array = b"".join((b"[", *left_out, b"{}]"))
    try:
        left: list[Any] = (_LEFT_OUT_FOR if needles.every_call else _LEFT_OUT).decode(array)
        long_us = [event.dur for event in left if event.dur >= LONG_CALL_US] if needles.every_call else []
    except NO_JSON:
        repaired = repaired_array(array, habits)
        if repaired is None:
            return None
        array, others = repaired.array, _OF_ANY_CATEGORY.decode(repaired.array)
        for event in others:
            if event.ph == "X" and isinstance(event.cat, str) and event.cat in RARE:
                raise _RareCategory from None
            result.note_unread(event)
        result = replace(result, repaired_bytes=repaired.repaired_bytes)
        long_us = [event.dur for event in others if is_long(event.dur)] if needles.every_call else []
    result.place_functions(_texts_of(array, long_us, needles.layout))
    return result


def _is_proven(source: bytes, end: int, layout: EventLayout) -> bool:
    """Whether all that looks like a place between two events is one, and there are no others. Raises NO_JSON.

    It may be in a list inside an event, or end a text.
    """
    before_last = end - 1  # its comma
    pieces = source[:before_last].split(layout.separator)
    events: list[Any] = _WHOLE.decode(b"[" + source[:before_last] + b"]")
    brace = 1
    lengths = [len(layout.opening) + len(piece) + brace for piece in pieces]
    lengths[0] -= len(layout.opening)
    lengths[-1] -= brace
    return [memoryview(event).nbytes for event in events] == lengths


def _texts_of(array: bytes, durations_us: list[float], layout: EventLayout) -> list[bytes]:
    """The texts of the events that took so long, in file order: of all in the array that took as long as the least."""
    texts: list[bytes] = []
    at, separator = 0, layout.separator
    for dur_us in durations_us:
        at = array.find(layout.before_duration + b"%d" % dur_us, at)
        if at < 0:  # written in another way, as no version of Kineto does
            break
        before, until = array.rfind(separator, 0, at), array.find(layout.closing, at)
        texts.append(array[before + len(separator) if before >= 0 else 1 + len(layout.opening) : until])
        at = until
    return texts


def _sorted(
    source: bytes, end: int, hits: list[tuple[int, int, int]], needles: _Needles, left_out: list[bytes]
) -> Sorted | None:
    """Sort the texts of the events at the hits; None if the list ends. Raises NO_JSON, MalformedEvent.

    All other events are added to those `left_out`, each with its comma.
    """
    layout, separator = needles.layout, needles.layout.separator
    head = _head_of(source, hits, layout)
    head_bytes, categories = len(head), len(needles.rooms)
    idle, closing_bytes, opening_bytes = needles.idle, len(layout.closing), len(layout.opening)
    result = Sorted()
    rooms: list[list[bytes]] = [getattr(result, room) for room in needles.rooms]
    starts_with, find = source.startswith, source.find
    until = seen = 0  # the end of the last event that was seen, and the place behind its comma
    for needle, at, behind in hits:
        is_told = needle < categories and starts_with(head, at - head_bytes)
        if is_told:
            before = at - head_bytes
        elif needle >= idle:
            continue
        elif needle > needles.escape:
            return None
        elif at < until or (needle in needles.texts and source[at - 1 : at] != b'"'):
            continue
        else:
            before = source.rfind(separator, 0, at)
        begin = before + closing_bytes if before >= 0 else 0
        if begin > seen:
            left_out.append(source[seen:begin])
        until = find(separator, behind)
        seen = until + closing_bytes
        text = source[begin + opening_bytes : until]
        if is_told:
            rooms[needle].append(text)
        else:
            result.place(text, every_call=needles.every_call)
    left_out.append(source[seen:end])
    return result


def _head_of(source: bytes, hits: list[tuple[int, int, int]], layout: EventLayout) -> bytes:
    """The bytes before the first category that stands where the writer writes it."""
    heads = [layout.separator + head for head in layout.heads]
    return next((head for _, at, _ in hits for head in heads if source.startswith(head, at - len(head))), heads[0])
