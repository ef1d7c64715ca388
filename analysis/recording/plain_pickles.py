"""Read pickles of plain data only: texts, numbers, truth values, None, lists, tuples and dictionaries.

A pickle is a program. Here it is looked through from end to end before any of it is run: an operation that could
import or call is refused by its name, and what all operations make at most is drawn from the budget. Nothing has been
built by then. What is built may refer to one thing many times, which takes no memory: whoever reads it counts its work.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import Any, NoReturn

from ..core.budget import Budget
from ..errors import DamagedTrace, TraceError, UnsafePickle

_MOST_DIGITS = 25  # of a number written as text
_NUMBER_BYTES = 9  # of an integer of 64 bits, with its sign
# Bytes that operations make at most, by the sizes of objects in CPython 3.11: a place on the stack and then in a list
# or dictionary, which grow by more than they need; the first entries of a dictionary; what is made itself.
_PLACE_BYTES, _PLACING = 72, b"hjgKMJN\x88\x89GX\x8c\x8dV]}(ld\x8aILF"
_MADE_BYTES = {b"}d": 200, b"]l": 80, b"MJG\x8aILF": 48, b"(\x94": 24}
_TEXT_BYTES, _LETTER_BYTES, _TUPLE_BYTES, _MEMO_BYTES = 80, 4, 150, 16
# A pickler numbers what it may need again from 0, and writes at least so many bytes for each; Python makes room for all
# numbers up to the largest.
_BYTES_PER_NUMBER, _FREE_NUMBERS = 4, 1 << 16
_MOST_IN_TUPLE = 64
_CHECKED_EVERY = 10_000  # tuples
_NEWEST = 5
# What fixed lengths have; the numbers of LONG_BINPUT, for which Python makes room, are bounded by %s.
_FIXED = (
    rb"(?:h.|[\]}N\x88\x89(uaes\x94ld]|[Kq].|j....|M..|J....|\x8a(?:\x08.{8}|\x07.{7}|\x06.{6}|\x05.{5})"
    rb"|r..[\x00-%s]\x00|G.{8}){0,2000}"
)
_IN_RUNS = b"h]}N\x88\x89(uaes\x94ldKqjMJ\x8arG"
_TUPLES = b")t\x85\x86\x87"
_CHECK_TUPLE = b"Q"
"""Hands what was made last to `_Primitive.persistent_load`."""
_LINES = b"ILFVpg"
_WITH_LENGTH = {ord("X"): 4, 0x8C: 1, 0x8D: 8}
"""BINUNICODE, SHORT_BINUNICODE, BINUNICODE8: how many bytes their length takes."""
_OF_TEXT = b"X\x8c\x8dV"
_PROTO, _FRAME, _LONG1, _STOP, _PUT = 0x80, 0x95, 0x8A, ord("."), ord("p")
_LONGEST_BYTES = 9  # of the operations with a fixed length
_ADMITTED = b"hKqjMJrG\x8a"
_BROKEN = (
    pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError, KeyError, MemoryError, OverflowError,
    TypeError, ValueError,
)  # fmt: skip


def primitives(data: bytes, name: str, budget: Budget) -> Any:
    """Unpickle plain data. `name` begins errors. Raises UnsafePickle, DamagedTrace, TooLarge."""
    what = f"{name}: what it holds"
    budget.draw(what, 4 * len(data))  # its operations, and itself again, each in pieces and joined
    pieces, needed_bytes = _checked(data, name, budget)
    budget.draw(what, needed_bytes)
    try:
        return _Primitive(io.BufferedReader(io.BytesIO(b"".join(pieces)))).load()  # one that peeks: twice as fast
    except _LongTuple as err:
        raise DamagedTrace(
            f"{name}: has a tuple of more than {_MOST_IN_TUPLE} texts and numbers, or of anything else, which torch "
            "does not write; dump it again"
        ) from err
    except _BROKEN as err:
        raise DamagedTrace(f"{name}: is not a whole pickle: {err}; copy it again") from err


def check_primitive(data: bytes, name: str) -> None:
    """Check a pickle without building anything. Raises UnsafePickle, DamagedTrace."""
    _checked(data, name, Budget(None))


def _checked(data: bytes, name: str, budget: Budget) -> tuple[list[bytes], int]:
    """The pickle in pieces, so that every tuple is checked when made; and the most bytes that it can make."""
    room = re.escape(bytes([min(len(data) // _BYTES_PER_NUMBER >> 16, 255)]))
    runs = re.compile(_FIXED.replace(b"%s", room), re.DOTALL).match
    at = begin = tuples = texts_bytes = 0
    end = len(data)
    pieces: list[bytes] = []
    operations: list[bytes] = []
    while at < end:
        piece = runs(data, at)
        assert piece is not None  # it may be empty
        behind = piece.end()
        if behind > at:
            operations.append(data[at:behind])
            at = behind
            if at >= end or data[at] in _IN_RUNS:  # a run has an end, too
                continue
        code = data[at]
        if code in _TUPLES:
            tuples, at = tuples + 1, at + 1
            pieces += (data[begin:at], _CHECK_TUPLE)
            begin = at
            if not tuples % _CHECKED_EVERY:
                budget.check(f"{name}: what it holds", _TUPLE_BYTES * tuples)
        elif code == _STOP:
            if at + 1 < end:
                raise DamagedTrace(f"{name}: {end - at - 1:,} bytes follow the end of its pickle; copy it again")
            pieces.append(data[begin:])
            made_bytes = _TUPLE_BYTES * tuples + texts_bytes + _made_bytes(b"".join(operations))
            return pieces, made_bytes + _MEMO_BYTES * _most_numbers(end)
        else:
            if code in _ADMITTED and end - at < _LONGEST_BYTES:
                break
            behind = _behind(data, at, name)
            if code == _FRAME:  # its length would be another one
                pieces.append(data[begin:at])
                begin = behind
            elif code in _OF_TEXT:
                texts_bytes += _TEXT_BYTES + _LETTER_BYTES * (min(behind, end) - at)
            operations.append(data[at : at + 1])
            at = behind
    raise DamagedTrace(f"{name}: is a pickle that ends early, after {end:,} bytes; copy it again")


def _made_bytes(operations: bytes) -> int:
    """Upper bound of the bytes that these operations make. Operands count too, so it is slightly too high."""
    total = _PLACE_BYTES * _count(operations, _PLACING)
    return total + sum(_count(operations, codes) * size for codes, size in _MADE_BYTES.items())


def _count(operations: bytes, codes: bytes) -> int:
    return len(operations) - len(operations.translate(None, codes))


def _most_numbers(pickle_bytes: int) -> int:
    return pickle_bytes // _BYTES_PER_NUMBER + _FREE_NUMBERS


def _behind(data: bytes, at: int, name: str) -> int:
    """End of the operation at `at`, which has no fixed length or does not belong in a dump."""
    code = data[at]
    if code in _WITH_LENGTH:
        size = _WITH_LENGTH[code]
        return at + 1 + size + int.from_bytes(data[at + 1 : at + 1 + size], "little")
    if code in _LINES:
        return _behind_line(data, at, name)
    if code == _PROTO:
        if data[at + 1 : at + 2] > bytes([_NEWEST]):
            raise DamagedTrace(f"{name}: is a pickle of protocol {data[at + 1]}; expected at most {_NEWEST}")
        return at + 2
    if code == _FRAME:  # Python would make room for all of it
        length = int.from_bytes(data[at + 1 : at + 9], "little")
        return at + 9 if length <= len(data) - at else len(data)
    if code == _LONG1 and data[at + 1 : at + 2] <= bytes([_NUMBER_BYTES]):
        return at + 2 + int.from_bytes(data[at + 1 : at + 2], "little")
    raise _refusal(code, at, name)


def _behind_line(data: bytes, at: int, name: str) -> int:
    """End of the operation at `at` of protocol 0, which ends with its line."""
    end = data.find(b"\n", at)
    if end < 0:
        return len(data)
    text = data[at + 1 : end]
    is_long = data[at] in b"IL" and len(text) > _MOST_DIGITS
    is_number = text.isdigit() and len(text) <= _MOST_DIGITS
    is_far = data[at] == _PUT and not (is_number and int(text) <= _most_numbers(len(data)))
    if is_long or is_far:
        raise _refusal(data[at], at, name)
    return end + 1


def _refusal(code: int, at: int, name: str) -> TraceError:
    """The error for an operation that no dump of torch has."""
    known = next((opcode for opcode in pickletools.opcodes if ord(opcode.code) == code), None)
    if known is None:
        return DamagedTrace(f"{name}: is not a whole pickle: there is no operation {code:#04x}, as at byte {at:,}")
    return UnsafePickle(
        f"{name}: is refused: at byte {at:,} its pickle asks for {known.name}, and torch's dumps need "
        "nothing but texts, numbers, lists and dictionaries; nothing of it was run. Dump it as JSON, or leave it out"
    )


_SCALARS = frozenset({str, int, float, bool, type(None)})


class _LongTuple(Exception):
    """A tuple that no dump has."""


class _Primitive(pickle.Unpickler):
    """An unpickler that refuses everything else, as a second line of defence."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse to import. Raises UnpicklingError."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, made: Any) -> Any:
        """Return a tuple after checking its length.

        Python would follow tuples in tuples without end when it compares them, or makes them keys. Raises _LongTuple.
        """
        is_flat = type(made) is tuple and len(made) <= _MOST_IN_TUPLE and _SCALARS.issuperset(map(type, made))
        if not is_flat:
            raise _LongTuple
        return made
