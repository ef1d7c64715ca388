"""Compute the memory that a recording takes as Python objects, without making any.

MessagePack needs one byte for what Python needs a hundred for, so a small recording may ask for very much.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ...core.tables.events import EVENT_SORTS

_NOTHING = msgspec.Raw()
_CHUNK_BYTES = 1 << 20
_NAMES = frozenset({"seq", "comms_id"}).union(*(sort.names for sort in EVENT_SORTS.values()))
# Numbers in a column are a few bytes; a whole column that is not known takes about so much for each of its bytes.
_COLUMN_BYTES = 40


def _costs() -> Any:
    """Upper bound of a value's memory with its place in a list or dictionary, by its first byte.

    From the sizes of objects in CPython 3.11, 64 bit; a letter counts as the small number that it could be.
    """
    costs = np.full(256, 9)
    spans = (
        (0x80, 0x90, 250), (0x90, 0xA0, 90), (0xA0, 0xC0, 120), (0xC4, 0xC7, 64), (0xC7, 0xCA, 200), (0xCA, 0xD4, 100),
        (0xD4, 0xD9, 200), (0xD9, 0xDC, 120), (0xDC, 0xDE, 90), (0xDE, 0xE0, 250), (0xE0, 0x100, 48),
    )  # fmt: skip
    for begin, end, cost in spans:
        costs[begin:end] = cost
    return costs


_COSTS = _costs()
_Columns = msgspec.defstruct("_Columns", [(name, msgspec.Raw, _NOTHING) for name in sorted(_NAMES)])


class _Rows(msgspec.Struct):
    kind: msgspec.Raw
    kinds: msgspec.Raw
    columns: msgspec.Raw


_ROWS, _COLUMNS = msgspec.msgpack.Decoder(_Rows), msgspec.msgpack.Decoder(_Columns)
_SORTS = msgspec.msgpack.Decoder(msgspec.defstruct("_Sorts", [(sort, msgspec.Raw, _NOTHING) for sort in EVENT_SORTS]))


def object_bytes(payload: bytes | memoryview, fields: type[Any]) -> int:
    """Upper bound of the memory of a content's objects, in bytes. Raises DecodeError."""
    outline = msgspec.msgpack.decode(payload, type=fields)
    total = 0
    for name in fields.__struct_fields__:
        raw = getattr(outline, name)
        if not len(raw):
            continue
        if name == "sorts":
            sorts = _SORTS.decode(raw)
            known = [getattr(sorts, sort) for sort in EVENT_SORTS]
            total += _COLUMN_BYTES * (len(raw) - sum(map(len, known))) + sum(
                _columns_bytes(columns) for columns in known
            )
        elif name in ("annotations", "comm_args"):
            rows = _ROWS.decode(raw)
            total += len(rows.kind) + _values_bytes(rows.kinds) + _columns_bytes(rows.columns)
        else:
            total += _values_bytes(raw)
    return total


def outline_of(content: type[Any]) -> type[Any]:
    """The structure of a content with its fields left encoded."""
    return msgspec.defstruct("_Outline", [(name, msgspec.Raw, _NOTHING) for name in content.__struct_fields__])


def _columns_bytes(raw: msgspec.Raw) -> int:
    if not len(raw):
        return 0
    columns = _COLUMNS.decode(raw)
    known = sum(len(getattr(columns, name)) for name in _Columns.__struct_fields__)
    return known + _COLUMN_BYTES * (len(raw) - known)


def _values_bytes(raw: msgspec.Raw) -> int:
    values = np.frombuffer(raw, np.uint8)
    chunks = (values[at : at + _CHUNK_BYTES] for at in range(0, len(values), _CHUNK_BYTES))
    return sum(int(np.bincount(chunk, minlength=256) @ _COSTS) for chunk in chunks)
