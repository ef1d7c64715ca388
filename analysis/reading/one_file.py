"""One trace file, of whatever format, read by this process."""

from __future__ import annotations

from pathlib import Path

from ..core.escaping import encodable
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
