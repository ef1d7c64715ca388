"""Reads recordings."""

from __future__ import annotations

import re
from pathlib import Path

from ...core.disk import open_plain
from ...core.escaping import encodable
from ...core.kinds import COMM, MEMORY, kernel_kind, memory_kind
from ...errors import DamagedTrace, UnreadableFile
from ...recording.compression import BrokenPacking, all_bytes, packed_bytes
from ...recording.options import Progress, ReadOptions
from ...recording.recording import RawTrace
from .content import BadRecording, recorded_content, trace_of, without_details


def read_recording(path: Path, options: ReadOptions, progress: Progress | None = None) -> RawTrace:
    """What was read from the trace that was recorded in the file at `path`, as if it were read now.

    Without operators and calls if they were asked for but not recorded; a note says so. Raises UnreadableFile,
    NotATrace, DamagedTrace, TooLarge.
    """
    try:
        content = recorded_content(_unpacked(path))
        trace = trace_of(content, f"{path}: what is recorded in it", options.limit_bytes)
    except BadRecording as err:
        raise DamagedTrace(f"{path}: {err}; pack the trace again") from err
    if trace.damage is not None and not options.keep_going:
        raise DamagedTrace(f"{path}: was packed from a damaged trace; --keep-going uses what is there: {trace.damage}")
    if progress is not None:
        progress(packed_bytes(path))
    if options.comm_names != content.source.comm_names:
        pattern = options.pattern
        trace.kinds = [_kind(name, kind, pattern) for name, kind in zip(trace.names, trace.kinds, strict=True)]
    if options.details and not trace.detailed:
        name = encodable(path.name)
        trace.notes.append(f"{name}: was packed without operators and runtime calls; pack with --details to keep them")
    return trace if options.details else without_details(trace)


def _unpacked(path: Path) -> bytes:
    """Raises UnreadableFile, NotATrace, DamagedTrace."""
    try:
        descriptor, _ = open_plain(path)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            return all_bytes(path, file)
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror or err}") from err
    except BrokenPacking as err:
        raise DamagedTrace(f"{path}: {err}; pack the trace again") from err


def _kind(name: str, kind: str, pattern: re.Pattern[str]) -> str:
    """What kernels of that name do, by the names of communication that are known now."""
    is_copy = kind == MEMORY or (kind == COMM and memory_kind(name) == COMM)
    return kind if is_copy else kernel_kind(name, pattern)
