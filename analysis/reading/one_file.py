"""One trace file, of whatever format, read by this process."""

from __future__ import annotations

from ..core.escaping import encodable
from ..recording.options import Progress, ReadOptions
from ..recording.recording import RawTrace
from .cache import Cache
from .trace_input import TraceInput


def read_file(
    trace: TraceInput, options: ReadOptions, cache: Cache | None, progress: Progress | None = None
) -> RawTrace:
    """What a file holds, from the cache if possible; with `verify`, compared with a second reading.

    Raises TraceError.
    """
    reader = trace.format.reader()
    found = reader.read(trace.path, options, progress) if cache is None else cache.read(trace, options, progress)
    if not options.verify:
        return found
    if reader.verified is None:
        name, kind = encodable(trace.path.name), trace.format.name
        found.notes.append(f"{name}: files of the format {kind} cannot be verified, so it was not")
        return found
    return reader.verified(trace.path, found, progress)
