"""Find dumps of the flight recorder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import AnalysisError
from ..formats.flight_recorder.entry import looks_like_dump
from ..reading.files_of_a_kind import FileKind
from ..reading.trace_files import is_without_traces

DUMPS = FileKind(
    "dump of the flight recorder",
    "dumps of the flight recorder",
    looks_like_dump,
    "torch writes one per rank when a collective times out, see docs/hang.md",
)


def looks_like_dumps(paths: Sequence[Path]) -> bool:
    """Whether the first of these paths has dumps and no traces; False if it cannot be read."""
    first = paths[0] if paths else Path()
    if not first.is_dir():
        return looks_like_dump(first)
    try:
        return is_without_traces(first) and bool(DUMPS.inside(first))
    except AnalysisError:
        return False


def holds_dumps(paths: Sequence[Path]) -> bool:
    """Whether any of these paths is a dump, or a folder that holds one; False where nothing can be read."""

    def holds(path: Path) -> bool:
        try:
            return bool(DUMPS.inside(path)) if path.is_dir() else looks_like_dump(path)
        except (AnalysisError, OSError):
            return False

    return any(map(holds, paths))
