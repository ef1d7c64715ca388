"""All formats of trace files: the one place where a format is entered. See "Add an input format" in CONTRIBUTING.md."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .format import TraceFormat
from .inspector.entry import INSPECTOR
from .kineto.entry import KINETO
from .nsight.entry import NSIGHT
from .recordings.entry import RECORDING

TRACE_FORMATS: tuple[TraceFormat, ...] = (RECORDING, NSIGHT, INSPECTOR, KINETO)
"""In the order in which they are asked. Kineto is the last: its reader says what is wrong with a file that no format
recognises."""


class NameParts(NamedTuple):
    """What the usual name of a trace file says: the process that wrote it, and a number that grows with its files."""

    worker: str
    cycle: int


def format_of(path: Path) -> TraceFormat:
    """The format of the file at `path`; the last one if nothing identifies it."""
    from ..recording.compression import first_bytes  # slow to import: it loads the unpacker

    begin = cache(lambda: first_bytes(path))
    return next((one for one in TRACE_FORMATS if one.recognises(path, begin)), TRACE_FORMATS[-1])


def format_named_like(name: str) -> TraceFormat | None:
    """The format whose files are named like this; None if it is not the name of a trace."""
    return next((one for one in TRACE_FORMATS if any(fnmatchcase(name, pattern) for pattern in one.file_names)), None)


def name_parts(name: str) -> NameParts | None:
    """What a file's name says, if its usual writer named it."""
    for one in TRACE_FORMATS:
        found = one.usual_name.match(name) if one.usual_name else None
        if found:
            return NameParts(found["worker"], int(found["cycle"]))
    return None


def expected_files() -> str:
    """The formats and the names of their files, as `Kineto trace or recording (*.json, *.json.gz or *.ctrace)`."""
    formats = TRACE_FORMATS[::-1]
    patterns = [pattern for one in formats for pattern in one.file_names]
    return f"{_either([one.a_file or f'{one.name} trace' for one in formats])} ({_either(patterns)})"


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
