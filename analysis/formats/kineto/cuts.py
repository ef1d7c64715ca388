"""Cut an array of JSON in its bytes: find where it may be cut, prove it by decoding, repair encodings.

`[` + bytes + `]` decodes only if the bytes are whole elements, because a cut inside a string or a nested value leaves
it open. See docs/design/0001.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ...core.json_repairs import DEEPEST, Habits, with_quoted_names, without_escapes, without_numbers_that_are_none

_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_END_OF_ARRAY = re.compile(rb"\}\s*\]")
# Of a text without escapes. The lone quote opens a string that the buffer does not close.
_TOKEN = re.compile(rb'"[^"]*"|["\[\]{},]')
_BLANK = b" \t\r\n,"
_AT_BYTE = re.compile(r"(trailing characters )?\(byte (\d+)\)")
_GUESSES = 4
_BLOCK_BYTES = 4096
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder(msgspec.Raw)
# What decoding raises for bytes that are not JSON, or nested too deeply.
NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Malformed(Exception):
    """The buffer is not JSON at offset `at`; `texts` are the events before it."""

    def __init__(self, texts: list[bytes], at: int) -> None:
        self.texts = texts
        self.at = at


def bytes_not_text(source: bytes, habits: Habits, end: int | None = None) -> int:
    """Number of bytes in names of another encoding. Raises UnicodeDecodeError.

    JSON is UTF-8, which decoders do not check in what they skip.
    """
    if source.isascii():  # ten times as fast, without a copy
        return 0
    text = source[:end]
    readable = habits.readable(text)
    return 0 if readable is text else changed_bytes(text, readable)


class Repaired(NamedTuple):
    """Whole array elements as JSON, with an empty object behind them, and the number of repaired bytes."""

    array: bytes
    repaired_bytes: int = 0


def repaired_array(array: bytes, habits: Habits) -> Repaired | None:
    """The array as JSON; None if it is not JSON."""
    try:
        _ANY.decode(array)
    except NO_JSON:
        whole = b"[" + _mended(array[1:-1], habits) + b"]"
        try:
            _ANY.decode(whole)
        except NO_JSON:
            return None
        return Repaired(whole, changed_bytes(array, whole))
    return Repaired(array)


def _mended(elements: bytes, habits: Habits) -> bytes:
    return habits.without_commas(without_numbers_that_are_none(with_quoted_names(elements)))


def changed_bytes(text: bytes, repaired: bytes) -> int:
    """Number of bytes that differ between two texts of equal length; most blocks do not differ."""
    blocks = (
        (text[at : at + _BLOCK_BYTES], repaired[at : at + _BLOCK_BYTES]) for at in range(0, len(text), _BLOCK_BYTES)
    )
    return sum(a != b for block, other in blocks if block != other for a, b in zip(block, other, strict=True))


class Elements(NamedTuple):
    """Texts of the whole events in a buffer, their size in bytes, and how many bytes were repaired.

    `closed` says whether the array ends behind them.
    """

    texts: list[bytes]
    cut: int
    closed: bool = False
    repaired_bytes: int = 0


def whole_elements(buffer: bytes, habits: Habits) -> Elements:
    """The whole events in the buffer. Raises Malformed."""
    for cut, closed in _guesses(buffer):
        try:
            return _elements(buffer[:cut], habits, closed=closed)
        except NO_JSON:
            continue
    # Once more without the quotes in names, which hide where strings end.
    try:
        return _repaired(buffer, buffer, habits)
    except Malformed:
        renamed = with_quoted_names(buffer)
        if renamed == buffer:
            raise
        return _repaired(renamed, buffer, habits)


def _elements(elements: bytes, habits: Habits, *, closed: bool = False, changed_bytes: int = 0) -> Elements:
    """Elements of an array in which some bytes were changed. Raises NO_JSON."""
    not_text = bytes_not_text(elements, habits)
    return Elements(_decoded(elements), len(elements), closed, changed_bytes + not_text)


def _repaired(renamed: bytes, buffer: bytes, habits: Habits) -> Elements:
    """Repair the elements after an exact cut. Raises Malformed."""
    cut, closed = _exact_cut(renamed)
    whole = habits.without_commas(without_numbers_that_are_none(renamed[: cut + closed]))[:cut]
    try:
        return _elements(whole, habits, closed=closed, changed_bytes=changed_bytes(buffer[:cut], whole))
    except NO_JSON as err:
        at = _place_in(err)
        raise Malformed(_texts_before(whole, at), at) from err


def repaired_texts(elements: bytes, habits: Habits) -> Elements:
    """Repair the elements of an array one by one. Raises NO_JSON."""
    try:
        return _elements(elements, habits)
    except NO_JSON:
        whole = _mended(elements, habits)
        return _elements(whole, habits, changed_bytes=changed_bytes(elements, whole))


def place_in(error: Exception) -> int | None:
    """Offset at which bytes stop being JSON, from the decoder's error; None if it gives none."""
    if isinstance(error, UnicodeDecodeError):
        return error.start
    match = _AT_BYTE.search(str(error))
    # msgspec counts the first of trailing characters as read.
    return None if match is None else int(match[2]) - bool(match[1])


def _place_in(error: Exception) -> int:
    """Offset of the error in elements that were decoded in brackets; 0 if not given."""
    return max(0, (place_in(error) or 0) - 1)


def malformed_at(elements: bytes) -> int | None:
    """Offset at which the elements of an array stop being JSON; None if they only end too early."""
    try:
        _ELEMENTS.decode(b"[" + elements)
    except NO_JSON as err:
        return _place_in(err) or None
    return None


def _texts_before(buffer: bytes, at: int) -> list[bytes]:
    """Texts of the whole events before byte `at` that are JSON."""
    try:
        return texts_of(buffer[: _exact_cut(buffer[:at])[0]])
    except (Malformed, *NO_JSON):
        return []


def texts_or_none(elements: bytes) -> list[bytes]:
    """Texts of the elements of an array that ends here; empty if they are not whole."""
    try:
        return texts_of(elements)
    except NO_JSON:
        return []


def texts_of(elements: bytes) -> list[bytes]:
    """Texts of the elements of an array in UTF-8, without empty objects."""
    bytes_not_text(elements, Habits())
    return _decoded(elements)


def _decoded(elements: bytes) -> list[bytes]:
    array = b"[" + elements + b"]"
    objects = [bytes(raw) for raw in _ELEMENTS.decode(array)]
    if not all(text.startswith(b"{") for text in objects):
        raise msgspec.ValidationError(f"an event is not an object (byte {_first_other(array, objects)})")
    inner = (text[1:-1].lstrip() for text in objects)
    return [text[1:] for text in inner if text]


def _first_other(array: bytes, elements: list[bytes]) -> int:
    """Offset of the first element of the array that is not an object."""
    at = 1
    for text in elements:
        while array[at] in _BLANK:
            at += 1
        if not text.startswith(b"{"):
            break
        at += len(text)
    return at


def _guesses(buffer: bytes) -> Iterator[tuple[int, bool]]:
    """Yield likely ends of an event near the end of the buffer: between two events, or before the bracket."""
    tail = max(0, len(buffer) - (64 << 10))
    for match in list(_BETWEEN.finditer(buffer, tail))[: -_GUESSES - 1 : -1]:
        comma = buffer.index(b",", match.start())
        yield comma, False
    for match in list(_END_OF_ARRAY.finditer(buffer, tail))[: -_GUESSES - 1 : -1]:
        yield match.end() - 1, True


def _exact_cut(buffer: bytes) -> tuple[int, bool]:
    """Find the last end of an event by walking over every string and bracket, which is slow.

    Raises Malformed where brackets are nested too deeply.
    """
    depth, last_comma = 0, 0
    for token in _TOKEN.finditer(without_escapes(buffer)):
        match token.group():
            case b"{" | b"[":
                depth += 1
                if depth > DEEPEST:
                    raise Malformed(_texts_before(buffer, last_comma + 1), token.start())
            case b"]" if depth == 0:
                return token.start(), True
            case b"}" | b"]":
                depth -= 1
            case b"," if depth == 0:
                last_comma = token.start()
            case b'"':
                break
    return last_comma, False
