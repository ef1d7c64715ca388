"""Estimate the memory of a file's rows, with all tables made from them."""

from __future__ import annotations

from ..core.tables.events import EVENT_SORTS

# Bytes that a row takes at most in all tables made from it, and a name and its letters, as measured.
_ROW_BYTES = {name: sort.event_bytes for name, sort in EVENT_SORTS.items()} | {
    "annotations": 1_500, "calls": 3_300, "names": 300, "letters": 4,
}  # fmt: skip
_FILE_BYTES = 150_000  # however little it holds
_LIST_BYTES, _NUMBER_BYTES = 130, 40


def tables_bytes(**rows: int) -> int:
    """Upper bound of the memory of a file with these numbers of rows, in bytes."""
    return _FILE_BYTES + sum(count * _ROW_BYTES[kind] for kind, count in rows.items())


def shapes_bytes(args: bytes) -> int:
    """Upper bound of the memory of the lists in an event's arguments as Python objects, in bytes."""
    return args.count(b"[") * _LIST_BYTES + args.count(b",") * _NUMBER_BYTES
