"""One trace file, of whatever format: read by this process, or by another one, which sends what it read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..core.escaping import encodable
from ..core.places.place import path_at
from ..core.process import stop_garbage_collection
from ..errors import TraceError
from ..recording.options import Progress, ReadOptions
from ..recording.recording import RawTrace
from .cache import Cache, read_anew
from .trace_input import TraceInput

_LOG = logging.getLogger("commtrace.reading")
_T = TypeVar("_T")


def read_file(
    trace: TraceInput, options: ReadOptions, cache: Cache | None, progress: Progress | None = None
) -> RawTrace:
    """What a file holds, from the cache if possible; with `verify`, compared with a second reading.

    Raises TraceError.
    """
    found = read_anew(trace, options, progress) if cache is None else cache.read(trace, options, progress)
    if not options.verify:
        return found
    reader = trace.format.reader()
    if reader.verified is None:
        name, kind = encodable(trace.path.name), trace.format.name
        found.notes.append(f"{name}: files of the format {kind} cannot be verified, so it was not")
        return found
    begun = time.monotonic()
    verified = reader.verified(trace.path, found, progress)
    _LOG.info("%r: compared with a second reading, in %.3f s", str(trace.path), time.monotonic() - begun)
    return verified


def file_at(address: bytes, options: ReadOptions, cache: Cache | None, progress: Progress | None = None) -> RawTrace:
    """What the file at this address holds, for a process that does nothing but read. Raises TraceError."""
    stop_garbage_collection()
    return read_file(TraceInput(path_at(address)), options, cache, progress)


def whole_at(path: Path, read: Callable[..., _T], options: ReadOptions, cache: Cache | None) -> _T | TraceError:
    """What `read` makes of the file at this path, for a process that makes tables; or its error."""
    try:
        return read(TraceInput(path), options, cache, None)
    except TraceError as err:
        return err


def part_at(address: bytes, options: ReadOptions, part: int, parts: int, progress: Progress | None = None) -> Any:
    """One of the `parts` parts of that file, a structure of its format; never from a cache. Raises TraceError."""
    stop_garbage_collection()
    trace = TraceInput(path_at(address))
    in_parts = trace.format.reader().parts
    assert in_parts is not None
    begun = time.monotonic()
    found = in_parts.read(trace.path, options, part, parts, progress)
    _LOG.debug("%r: part %d of %d read, in %.3f s", str(trace.path), part + 1, parts, time.monotonic() - begun)
    return found
