"""Read recordings."""

from __future__ import annotations

from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from ...core.budget import Budget
from ...core.escaping import encodable
from ...core.kinds import COMM, MEMORY, kernel_kind, memory_kind
from ...core.places.files import plain_file
from ...errors import DamagedTrace, UnreadableFile
from ...recording.compression import BrokenPacking, all_bytes, packed_bytes
from ...recording.options import Progress, ReadOptions
from ...recording.recording import RawTrace
from .content import BadRecording, Content, recorded_content, trace_of, without_details


def read_recording(path: Path, options: ReadOptions, progress: Progress | None = None) -> RawTrace:
    """Read the trace that was recorded in the file at `path`, as if the trace were read now.

    Without operators and calls if they were asked for but not recorded; a note says so. Raises UnreadableFile,
    NotATrace, DamagedTrace, TooLarge.
    """
    trace = recorded_in(path, packed_content(path, options.budget()), options).trace
    if progress is not None:
        progress(packed_bytes(path))
    return trace


class Recorded(NamedTuple):
    """The trace in a recording, the `content` that it was made from, and whether this is all that was recorded."""

    trace: RawTrace
    content: Content
    is_all: bool


def recorded_in(path: Path, data: bytes, options: ReadOptions, *, with_calls: bool = True) -> Recorded:
    """Decode the bytes of the file at `path`; `with_calls` as in `trace_of`.

    Raises NotATrace, DamagedTrace, TooLarge.
    """
    try:
        what, budget = f"{path}: what is recorded in it", options.budget()
        budget.draw(what, len(data))
        plain = _unpacked(path, data, budget)
        content = recorded_content(plain, what, budget)
        budget.give_back(len(plain))
        del plain
        is_all = options.details or not content.detailed
        content = content if is_all else without_details(content, options, what, budget)
        trace = trace_of(content, what, budget, with_calls=with_calls)
    except BadRecording as err:
        raise DamagedTrace(f"{path}: {err}; pack the trace again") from err
    if trace.damage is not None and not options.keep_going:
        raise DamagedTrace(f"{path}: was packed from a damaged trace; --keep-going uses what is there: {trace.damage}")
    if options.comm_names != content.source.comm_names:
        comm_names, is_all = options.comm_names, False
        trace.kinds = [_kind(name, kind, comm_names) for name, kind in zip(trace.names, trace.kinds, strict=True)]
        source = msgspec.structs.replace(content.source, comm_names=options.comm_names)
        content = msgspec.structs.replace(content, kinds=trace.kinds, source=source)
    if options.details and not (trace.detailed or options.details_if_recorded):
        name = encodable(path.name)
        trace.notes.append(f"{name}: packed --no-details: operators and runtime calls are only in the trace itself")
    return Recorded(trace, content, is_all)


def packed_content(path: Path, budget: Budget) -> bytes:
    """Read the bytes of a file from disk. Raises UnreadableFile, TooLarge."""
    budget.check(f"{path}: the file itself", packed_bytes(path))
    try:
        with plain_file(path)[0] as file:
            return file.read()
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror or err}") from err


def _unpacked(path: Path, data: bytes, budget: Budget) -> bytes:
    """Unpack a recording. Raises NotATrace, DamagedTrace, TooLarge."""
    try:
        return all_bytes(path, BufferedReader(cast("RawIOBase", BytesIO(data))), budget)
    except BrokenPacking as err:
        raise DamagedTrace(f"{path}: {err}; pack the trace again") from err


def _kind(name: str, kind: str, comm_names: tuple[str, ...]) -> str:
    """Kind of kernels with this name, by the names of communication known now."""
    is_copy = kind == MEMORY or (kind == COMM and memory_kind(name) == COMM)
    return kind if is_copy else kernel_kind(name, comm_names)
