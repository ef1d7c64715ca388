"""Find dumps of the flight recorder."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from ..errors import AnalysisError, NoTraces, UnreadableFile
from ..formats.flight_recorder.entry import looks_like_dump
from ..reading.trace_files import is_side_file, is_without_traces

_HINT = "torch writes one per rank when a collective times out, see docs/hang.md"


def dump_files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and dumps in the folders named, sorted. Raises NoTraces, UnreadableFile."""
    files: list[Path] = []
    for path in paths:
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError) as err:
            raise NoTraces(f"{path}: no such file or directory; expected dumps of the flight recorder") from err
        except OSError as err:
            raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
        files += sorted(_dumps_in(path)) if is_folder else [path]
    return list(dict.fromkeys(files))


def looks_like_dumps(paths: Sequence[Path]) -> bool:
    """Whether the first of these paths has dumps and no traces; False if it cannot be read."""
    first = paths[0] if paths else Path()
    if not first.is_dir():
        return looks_like_dump(first)
    try:
        return is_without_traces(first) and bool(_dumps_in(first))
    except AnalysisError:
        return False


def holds_dumps(paths: Sequence[Path]) -> bool:
    """Whether any of these paths is a dump, or a folder that holds one; False where nothing can be read."""

    def holds(path: Path) -> bool:
        try:
            return bool(_dumps_in(path)) if path.is_dir() else looks_like_dump(path)
        except (AnalysisError, OSError):
            return False

    return any(map(holds, paths))


def _dumps_in(folder: Path) -> list[Path]:
    """The dumps in a folder. Raises NoTraces, UnreadableFile."""
    try:
        inside = sorted(folder.iterdir())
        files = [p for p in inside if p.name[0] != "." and not is_side_file(p.name) and p.is_file()]
    except OSError as err:
        raise UnreadableFile(f"{folder}: cannot be read: {err.strerror}") from err
    dumps = [path for path in files if looks_like_dump(path)]
    if not dumps:
        inner = [path.name for path in inside if path.is_dir()]
        hint = f"did you mean one of its folders ({', '.join(inner[:5])})?" if inner else _HINT
        raise NoTraces(f"{folder}: holds no dump of the flight recorder; {hint}")
    return dumps
