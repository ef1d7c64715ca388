"""Pickles that hold nothing but texts, numbers, truth values, None, lists, tuples and dictionaries.

A pickle is a program. Here it is looked through from end to end before any of it is run: an operation that could
import, call or fill the memory is refused by its name, and nothing has been built by then.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any, NoReturn

from ...errors import DamagedTrace, TraceError, UnsafePickle
from ...recording.memory_limit import check_memory, default_limit_bytes

_MOST_DIGITS = 25  # of a number written as text
_NUMBER_BYTES = 9  # of an integer of 64 bits, with its sign
_OBJECT_BYTES = 100  # that one operation makes at most
_HARMLESS_BYTES = 4 << 20
_MAKING = (b"]", b"}", b"(", b"l", b"t", b"d", b"\x85", b"\x86", b"\x87")
_NEWEST = 5
# What fixed lengths have; the numbers of LONG_BINPUT, for which Python makes room, are bounded by %s.
_FIXED = (
    rb"(?:h.|[\]}N\x88\x89()tuaes\x85-\x87\x94ld]|[Kq].|j....|M..|J....|\x8a\x08.{8}|\x8a\x07.{7}|r..[\x00-%s]\x00|G.{8})"
    rb"{0,2000}"
)
_LINES = b"ILFVpg"
_WITH_LENGTH = {ord("X"): 4, 0x8C: 1, 0x8D: 8}
"""BINUNICODE, SHORT_BINUNICODE, BINUNICODE8: how many bytes their length takes."""
_PROTO, _FRAME, _LONG1, _STOP, _PUT = 0x80, 0x95, 0x8A, ord("."), ord("p")
_LONGEST_BYTES = 9  # of the operations with a fixed length
_ADMITTED = b"hKqjMJrG\x8a"
_BROKEN = (
    pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError, KeyError, MemoryError, OverflowError,
    TypeError, ValueError,
)  # fmt: skip


def primitives(data: bytes, name: str) -> Any:
    """What the pickle holds. `name` begins what errors say. Raises UnsafePickle, DamagedTrace, TooLarge."""
    check_primitive(data, name)
    if len(data) > _HARMLESS_BYTES:
        check_memory(f"{name}: what it holds", sum(map(data.count, _MAKING)) * _OBJECT_BYTES, default_limit_bytes())
    try:
        return _Primitive(io.BufferedReader(io.BytesIO(data))).load()  # one that peeks: twice as fast
    except _BROKEN as err:
        raise DamagedTrace(f"{name}: is not a whole pickle: {err}; copy it again") from err


def check_primitive(data: bytes, name: str) -> None:
    """Look through a pickle without building anything of it. Raises UnsafePickle, DamagedTrace."""
    room = re.escape(bytes([min(len(data) >> 16, 255)]))
    runs = re.compile(_FIXED.replace(b"%s", room), re.DOTALL).match
    at, end = 0, len(data)
    while at < end:
        found = runs(data, at)
        assert found is not None  # it may be empty
        if found.end() > at:
            at = found.end()
            continue
        if data[at] == _STOP:
            if at + 1 < end:
                raise DamagedTrace(f"{name}: {end - at - 1:,} bytes follow the end of its pickle; copy it again")
            return
        if data[at] in _ADMITTED and end - at < _LONGEST_BYTES:
            break
        at = _behind(data, at, name)
    raise DamagedTrace(f"{name}: is a pickle that ends early, after {end:,} bytes; copy it again")


def _behind(data: bytes, at: int, name: str) -> int:
    """Where the operation after the one at `at` begins, which has no fixed length, or is none of a dump."""
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
    """Likewise, of an operation of protocol 0, which ends with its line."""
    end = data.find(b"\n", at)
    if end < 0:
        return len(data)
    text = data[at + 1 : end]
    is_long = data[at] in b"IL" and len(text) > _MOST_DIGITS
    is_far = data[at] == _PUT and not (text.isdigit() and len(text) <= _MOST_DIGITS and int(text) <= len(data))
    if is_long or is_far:
        raise _refusal(data[at], at, name)
    return end + 1


def _refusal(code: int, at: int, name: str) -> TraceError:
    """What is wrong with an operation that no dump has."""
    known = next((one for one in pickletools.opcodes if ord(one.code) == code), None)
    if known is None:
        return DamagedTrace(f"{name}: is not a whole pickle: there is no operation {code:#04x}, as at byte {at:,}")
    return UnsafePickle(
        f"{name}: is refused: at byte {at:,} its pickle asks for {known.name}, and a dump of the flight recorder needs "
        "nothing but texts, numbers, lists and dictionaries; nothing of it was run. Dump it as JSON, or leave it out"
    )


class _Primitive(pickle.Unpickler):
    """A second wall, should the first one have a hole."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Raises UnpicklingError."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    persistent_load: Callable[[Any], Any] = find_class  # type: ignore[assignment]
