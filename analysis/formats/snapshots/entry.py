"""Recognise snapshots of torch's allocator by the first bytes of the file."""

from __future__ import annotations

from pathlib import Path

from ..others import SNAPSHOT, foreign_file


def is_pickled(path: Path) -> bool:
    """Whether a plain file may be a pickle of a dictionary; False if it cannot be read."""
    from ...recording.compression import first_bytes
    from ...recording.plain_content import is_pickle

    return is_pickle(first_bytes(path))


def looks_like_snapshot(path: Path) -> bool:
    """Whether a plain file begins like a snapshot, as pickle or JSON; False if it cannot be read."""
    from ...recording.compression import first_bytes  # slow to import: it loads the unpacker

    return foreign_file(first_bytes(path)) is SNAPSHOT
