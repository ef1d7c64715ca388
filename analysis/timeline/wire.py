"""Encode thousands of Protobuf messages as rows of a NumPy array, without a library and without a loop.

Messages of one layout are equally long, because numbers are written as varints of a fixed number of bytes, with
zeros at the top. Readers must accept that. Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Messages = NDArray[np.uint8]
Whole = NDArray[np.integer[Any]]

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_BITS, _MORE = 7, 0x80
_LARGEST = 2**64


@dataclass(frozen=True)
class Varints:
    """Numbers of shape (n,), each a varint of `width` bytes; negative ones as in int64."""

    values: NDArray[np.uint64]
    width: int


@dataclass(frozen=True)
class Fixed:
    """Values of shape (n,), each as 8 bytes, little-endian."""

    values: NDArray[Any]
    width: int = 8


Piece = bytes | Varints | Fixed
"""A part of each row: bytes that all rows share, or values that differ."""


def varint(value: int) -> bytes:
    """Encode one number of at most 64 bits, as short as possible."""
    value %= _LARGEST
    groups = [value >> shift & (_MORE - 1) for shift in range(0, max(value.bit_length(), 1), _BITS)]
    return bytes([*(group | _MORE for group in groups[:-1]), groups[-1]])


def number(field: int, value: int) -> bytes:
    """A field with the same number in all messages."""
    return varint(field << 3 | _VARINT) + varint(value)


def numbers(field: int, values: Whole) -> list[Piece]:
    """A field with one number per message; int64 or uint64, of shape (n,)."""
    plain = np.ascontiguousarray(values).astype(np.uint64, copy=False)
    largest = int(plain.max()) if len(plain) else 0
    return [varint(field << 3 | _VARINT), Varints(plain, len(varint(largest)))]


def fixed64s(field: int, values: NDArray[Any]) -> list[Piece]:
    """A field of 8 bytes per message: float64, int64 or uint64, of shape (n,)."""
    return [varint(field << 3 | _FIXED64), Fixed(values)]


def text(field: int, value: str) -> bytes:
    """A field with a text."""
    return submessage(field, value.encode("utf-8", "backslashreplace"))


def submessage(field: int, content: bytes) -> bytes:
    """A field with the same message in all messages around it."""
    return varint(field << 3 | _BYTES) + varint(len(content)) + content


def message(field: int, content: Sequence[Piece]) -> list[Piece]:
    """A field with a message in each message around it."""
    return [varint(field << 3 | _BYTES) + varint(width(content)), *content]


def width(pieces: Sequence[Piece]) -> int:
    """Length of the rows of these pieces, in bytes."""
    return sum(len(piece) if isinstance(piece, bytes) else piece.width for piece in pieces)


def rows(count: int, pieces: Sequence[Piece]) -> Messages:
    """Join the pieces side by side, of shape (count, width)."""
    table = np.empty((count, width(pieces)), dtype=np.uint8)
    at = 0
    for piece in pieces:
        if isinstance(piece, bytes):
            table[:, at : at + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
            at += len(piece)
        else:
            _fill(table[:, at : at + piece.width], piece)
            at += piece.width
    return table


def _fill(into: Messages, piece: Varints | Fixed) -> None:
    """Write the values of one piece into its columns."""
    if isinstance(piece, Fixed):
        little = np.ascontiguousarray(piece.values).astype(piece.values.dtype.newbyteorder("<"), copy=False)
        into[:] = little.view(np.uint8).reshape(-1, piece.width)
        return
    left = piece.values
    for column in range(piece.width):
        more = _MORE if column < piece.width - 1 else 0
        into[:, column] = left.astype(np.uint8) | np.uint8(more)
        left = left >> np.uint64(_BITS)


def in_order(blocks: Sequence[tuple[Whole, Messages]]) -> bytes:
    """Concatenate messages of several widths by place; places of all blocks are 0, 1, 2, ..."""
    sizes = np.empty(sum(len(places) for places, _ in blocks), dtype=np.int64)
    for places, block in blocks:
        sizes[places] = block.shape[1]
    ends = np.cumsum(sizes)
    content = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    for places, block in blocks:
        at = np.lib.stride_tricks.sliding_window_view(content, block.shape[1], writeable=True)
        at[ends[places] - block.shape[1]] = block
    return content.tobytes()
