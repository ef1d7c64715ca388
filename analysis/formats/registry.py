"""All formats of trace files, registered in one place. See "An input format" in CONTRIBUTING.md."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .format import TraceFormat
from .inspector.entry import INSPECTOR
from .kineto.entry import KINETO
from .nsight.entry import NSIGHT
from .pftrace.entry import PFTRACE
from .recordings.entry import RECORDING
from .rocprof.entry import ROCPD, ROCPROF_JSON
from .xplane.entry import XPLANE

TRACE_FORMATS: tuple[TraceFormat, ...] = (
    RECORDING, ROCPD, ROCPROF_JSON, NSIGHT, XPLANE, PFTRACE, INSPECTOR, KINETO
)  # fmt: skip
"""In the order in which they are asked. Kineto is the last: its reader says what is wrong with a file that no format
recognises."""


class NameParts(NamedTuple):
    """The parts of a trace file's usual name: the process that wrote it, and a number that grows by file."""

    worker: str
    cycle: int


def format_of(path: Path) -> TraceFormat:
    """The format of the file at `path`; the last one registered if none recognises it."""
    from ..recording.compression import first_bytes  # slow to import: it loads the unpacker

    begin = cache(lambda: first_bytes(path))
    return next((known for known in TRACE_FORMATS if known.recognises(path, begin)), TRACE_FORMATS[-1])


def format_named_like(name: str) -> TraceFormat | None:
    """The format whose files have such names; None if it is not the name of a trace."""
    return next(
        (known for known in TRACE_FORMATS if any(fnmatchcase(name, pattern) for pattern in known.file_names)), None
    )


def format_in_folder(path: Path) -> TraceFormat | None:
    """The format of a file by its name; where several have such names, and the first says less, by what it holds."""
    named = [known for known in TRACE_FORMATS if any(fnmatchcase(path.name, pattern) for pattern in known.file_names)]
    return format_of(path) if len(named) > 1 and named[0].is_less else next(iter(named), None)


def name_parts(name: str) -> NameParts | None:
    """Parse a file's name, if its usual writer named it; else None."""
    for known in TRACE_FORMATS:
        match = known.usual_name.match(name) if known.usual_name else None
        if match:
            return NameParts(match["worker"], int(match["cycle"]))
    return None


def expected_files() -> str:
    """The formats and the names of their files, as `Kineto trace or recording (*.json, *.json.gz or *.ctrace)`."""
    formats = TRACE_FORMATS[::-1]
    patterns = [pattern for known in formats for pattern in known.file_names]
    return f"{_either([known.a_file or f'{known.name} trace' for known in formats])} ({_either(patterns)})"


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
