"""Protocol buffers written field by field, for files of other tools made in memory."""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    """An integer of variable length; negative ones as 64 bits."""
    value &= (1 << 64) - 1
    low = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([each | 128 for each in low[:-1]] + [low[-1]])


def message(number: int, content: bytes | str) -> bytes:
    """A field that holds a message, a text or bytes."""
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def integer(number: int, value: int) -> bytes:
    """A field that holds an integer."""
    return varint(number << 3) + varint(value)


def double(number: int, value: float) -> bytes:
    """A field that holds a double."""
    return varint(number << 3 | 1) + struct.pack("<d", value)


def packed(number: int, values: list[int] | tuple[int, ...]) -> bytes:
    """A repeated field of integers in one piece."""
    return message(number, b"".join(map(varint, values)))
