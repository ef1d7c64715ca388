"""Walk messages of protocol buffers that may be damaged or hostile: their fields as columns of numbers.

Nothing is copied but numbers: a text or a message within is the place of its bytes. Many messages are walked side by
side, a field of each at a time. Source of the encoding: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.budget import Budget
from .arrays import Int64s
from .values import MISSING

NUMBER, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
"""Wire types: an integer of variable length, 8 bytes, bytes behind their length, 4 bytes."""
_FIXED_BYTES = {FIXED_64: 8, FIXED_32: 4}
_LONGEST_NUMBER = 10
_FEW, _ROUNDS = 32, 48
"""So few messages, and the rest of longer ones, are walked one by one, which is quicker then."""
_FIELD_BYTES, _CHECKED = 120, 1 << 16
_END = "ends in the middle of a message"


class BrokenMessage(Exception):
    """What is wrong with a message, as the predicate of a sentence, and `at` which byte of the file."""

    def __init__(self, why: str, at: int) -> None:
        super().__init__(why)
        self.at = at


@dataclass(frozen=True)
class Pieces:
    """Pieces of messages, or of texts, in a file: `begin` and `end` of each, of shape (messages,)."""

    begin: Int64s
    end: Int64s

    def __getitem__(self, which: slice | NDArray[Any]) -> Pieces:
        """Those at these places."""
        return Pieces(self.begin[which], self.end[which])

    @classmethod
    def joined(cls, parts: Sequence[Pieces]) -> Pieces:
        """All of them, one behind the other."""
        nothing = [np.array([], dtype=np.int64)]
        return cls(*(np.concatenate(nothing + [getattr(part, side) for part in parts]) for side in ("begin", "end")))

    def __len__(self) -> int:
        return len(self.begin)


class Fields(NamedTuple):
    """Fields of messages, in the order of these and of their bytes; all of shape (fields,).

    `of` counts into the messages. A number is in `value`, of whatever is fixed its bits; `begin` and `end` are the
    place of the content.
    """

    of: Int64s
    number: Int64s
    wire: Int64s
    value: Int64s
    begin: Int64s
    end: Int64s

    def where(self, number: int, *wires: int) -> Fields:
        """The fields of this number and of one of these wire types."""
        rows = (self.number == number) & np.isin(self.wire, wires)
        return Fields._make(column[rows] for column in self)

    @property
    def spans(self) -> Pieces:
        """The places of their contents."""
        return Pieces(self.begin, self.end)

    def last(self, number: int, messages: int, missing: int = MISSING) -> Int64s:
        """The integer of this field in each message, the last one if there are several; `missing` without it."""
        found, values = self.where(number, NUMBER), np.full(messages, missing)
        values[found.of] = found.value
        return values


class Document:
    """The bytes of a file, and the budget that walking them draws from. `what` begins its messages."""

    def __init__(self, data: bytes, budget: Budget, what: str) -> None:
        self.data, self._budget, self._what = data, budget, what
        self._bytes = np.frombuffer(data, dtype=np.uint8)

    @property
    def whole(self) -> Pieces:
        """The place of the outermost message."""
        return Pieces(np.array([0]), np.array([len(self.data)]))

    def text(self, begin: int, end: int) -> str:
        """A text; bytes that are not UTF-8 are replaced."""
        return self.data[begin:end].decode("utf-8", "replace")

    def texts(self, spans: Pieces) -> list[str]:
        """All texts at these places."""
        return [self.text(*span) for span in zip(spans.begin.tolist(), spans.end.tolist(), strict=True)]

    def first_text(self, message: Pieces, number: int) -> str:
        """The first text of this field in a message, empty without one; what is behind it is not walked."""
        here, end = int(message.begin[0]), int(message.end[0])
        while here < end:
            began = here
            key, here = _number(self.data, here, end)
            if key & 7 == NUMBER:
                _, here = _number(self.data, here, end)
            elif key & 7 == BYTES:
                length, here = _number(self.data, here, end)
                if length > end - here:
                    raise BrokenMessage(_END, began)
                if key >> 3 == number:
                    return self.text(here, here + length)
                here += length
            else:
                here += _FIXED_BYTES.get(key & 7, end)
        return ""

    def fields(self, messages: Pieces) -> Fields:
        """The fields of messages. Raises BrokenMessage, TooLarge."""
        of, at, end = np.arange(len(messages)), messages.begin.copy(), messages.end
        rounds: list[Fields] = []
        count = 0
        for _ in range(_ROUNDS):
            going = at < end
            at, end, of = at[going], end[going], of[going]
            if len(of) <= _FEW:
                break
            found = self._next(of, at, end)
            rounds.append(found)
            at, count = found.end, count + len(of)
            self._check(count)
        rounds.append(self._one_by_one(of, at, end, count))
        joined = Fields._make(np.concatenate(columns) for columns in zip(*rounds, strict=True))
        order = np.argsort(joined.of, kind="stable")
        return Fields._make(column[order] for column in joined)

    def integers(self, fields: Fields, number: int) -> list[int]:
        """All integers of a repeated field of one message, packed or not. Raises BrokenMessage."""
        found: list[int] = []
        rows = fields.where(number, NUMBER, BYTES)
        for wire, value, here, end in zip(
            *(c.tolist() for c in (rows.wire, rows.value, rows.begin, rows.end)), strict=True
        ):
            while wire == BYTES and here < end:
                packed, here = _number(self.data, here, end)
                found.append(packed - (1 << 64) if packed >> 63 else packed)
            if wire == NUMBER:
                found.append(value)
        return found

    def _check(self, fields: int) -> None:
        self._budget.check(self._what, fields * _FIELD_BYTES)

    def _next(self, of: Int64s, at: Int64s, end: Int64s) -> Fields:
        """The field of each message that begins `at`."""
        key, inside = self._numbers(at, end)
        number, wire = key >> 3, key & 7
        value, stop = np.zeros(len(of), dtype=np.int64), inside.copy()
        rows = np.flatnonzero(wire == NUMBER)
        value[rows], stop[rows] = self._numbers(inside[rows], end[rows])
        rows = np.flatnonzero(wire == BYTES)
        length, inside[rows] = self._numbers(inside[rows], end[rows])
        _refuse((length < 0) | (length > end[rows] - inside[rows]), at[rows], _END)
        stop[rows] = inside[rows] + length
        for kind, size in _FIXED_BYTES.items():
            rows = np.flatnonzero(wire == kind)
            stop[rows] = inside[rows] + size
            _refuse(stop[rows] > end[rows], at[rows], _END)
            for place in range(size):
                value[rows] |= self._bytes[inside[rows] + place].astype(np.int64) << (8 * place)
        _refuse(~np.isin(wire, (NUMBER, FIXED_64, BYTES, FIXED_32)) | (number <= 0), at, "is not protobuf")
        return Fields(of, number, wire, value, inside, stop)

    def _numbers(self, at: Int64s, end: Int64s) -> tuple[Int64s, Int64s]:
        """The integers of variable length at these places, as 64 bits, and the places behind them."""
        value, place, which = np.zeros(len(at), dtype=np.int64), at.copy(), np.arange(len(at))
        for turn in range(_LONGEST_NUMBER):
            here = place[which]
            _refuse(here >= end[which], at[which], _END)
            byte = self._bytes[here].astype(np.int64)
            value[which] |= (byte & 127) << (7 * turn)
            place[which] += 1
            which = which[byte > 127]
            if not len(which):
                return value, place
        raise BrokenMessage("is not protobuf", int(at[which[0]]))

    def _one_by_one(self, of: Int64s, at: Int64s, end: Int64s, before: int) -> Fields:
        """All further fields of these messages."""
        columns = [array("q") for _ in Fields._fields]
        add_of, add_number, add_wire, add_value, add_begin, add_end = (column.append for column in columns)
        data, count = self.data, before
        for message, begun, stop in zip(of.tolist(), at.tolist(), end.tolist(), strict=True):
            here = begun
            while here < stop:
                began = here
                key, here = _number(data, here, stop)
                wire, value = key & 7, 0
                inside = here
                if wire == NUMBER:
                    value, here = _number(data, here, stop)
                elif wire == BYTES:
                    length, inside = _number(data, here, stop)
                    here = inside + length
                elif wire in _FIXED_BYTES:
                    here += _FIXED_BYTES[wire]
                    value = int.from_bytes(data[inside:here], "little")
                else:
                    raise BrokenMessage("is not protobuf", began)
                if here > stop:
                    raise BrokenMessage(_END, began)
                if not 0 < key >> 3 < 1 << 60:
                    raise BrokenMessage("is not protobuf", began)
                add_of(message)
                add_number(key >> 3)
                add_wire(wire)
                add_value(value - (1 << 64) if value >> 63 else value)
                add_begin(inside)
                add_end(here)
                count += 1
                if not count % _CHECKED:
                    self._check(count)
        return Fields._make(np.frombuffer(column, dtype=np.int64) for column in columns)


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The integer of variable length at a place, as 64 bits, and the place behind it."""
    value, place = 0, at
    for shift in range(0, 7 * _LONGEST_NUMBER, 7):
        if place >= end:
            raise BrokenMessage(_END, at)
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place
    raise BrokenMessage("is not protobuf", at)


def _refuse(rows: NDArray[np.bool_], at: Int64s, why: str) -> None:
    """Raise BrokenMessage for the first of the flagged rows."""
    if rows.any():
        raise BrokenMessage(why, int(at[np.argmax(rows)]))


def doubles_of(bits: Int64s) -> NDArray[np.float64]:
    """The doubles that 64 bits are."""
    return np.ascontiguousarray(bits).view(np.float64)
