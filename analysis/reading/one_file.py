"""One trace file, of whatever format: read by this process, or by another one, which sends what it read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.escaping import encodable
from ..core.places.place import path_at
from ..core.process import stop_garbage_collection
from ..formats.registry import format_of
from ..recording.options import Progress, ReadOptions
from ..recording.recording import RawTrace
from .cache import Cache


def read_file(path: Path, options: ReadOptions, cache: Cache | None, progress: Progress | None = None) -> RawTrace:
    """What a file holds, from the cache if possible; with `verify`, compared with a second reading.

    Raises TraceError.
    """
    one = format_of(path)
    reader = one.reader()
    found = reader.read(path, options, progress) if cache is None else cache.read(path, options, progress)
    if not options.verify:
        return found
    if reader.verified is None:
        found.notes.append(f"{encodable(path.name)}: files of the format {one.name} cannot be verified, so it was not")
        return found
    return reader.verified(path, found, progress)


def file_at(address: bytes, options: ReadOptions, cache: Cache | None, progress: Progress | None = None) -> RawTrace:
    """What the file at this address holds, for a process that does nothing but read. Raises TraceError."""
    stop_garbage_collection()
    return read_file(path_at(address), options, cache, progress)


def part_at(address: bytes, options: ReadOptions, part: int, parts: int, progress: Progress | None = None) -> Any:
    """One of the `parts` parts of that file, a structure of its format; never from a cache. Raises TraceError."""
    stop_garbage_collection()
    path = path_at(address)
    in_parts = format_of(path).reader().parts
    assert in_parts is not None
    return in_parts.read(path, options, part, parts, progress)
