"""Find snapshots of torch's allocator."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from ..errors import AnalysisError, NoTraces, UnreadableFile
from ..formats.registry import format_named_like
from ..formats.snapshots.entry import is_pickled, looks_like_snapshot
from ..reading.trace_files import is_side_file

_HINT = "torch.cuda.memory._dump_snapshot(f'memory_rank_{rank}.pickle') writes one, see docs/capture.md"


def snapshot_files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and snapshots in the folders named, sorted. Raises NoTraces, UnreadableFile."""
    files: list[Path] = []
    for path in paths:
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError) as err:
            raise NoTraces(f"{path}: no such file or directory; expected snapshots of torch's allocator") from err
        except OSError as err:
            raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
        files += _snapshots_in(path) if is_folder else [path]
    return list(dict.fromkeys(files))


def only_snapshots(paths: Sequence[Path]) -> bool:
    """Whether each of these paths is a snapshot or another pickle, or a folder with snapshots and no traces."""

    def is_one(path: Path) -> bool:
        if not path.is_dir():
            return looks_like_snapshot(path) or is_pickled(path)
        try:
            found = set(_snapshots_in(path))
        except AnalysisError:
            return False
        others = (other.name for other in path.iterdir() if other not in found)
        return not any(format_named_like(name) for name in others if not is_side_file(name))

    return bool(paths) and all(map(is_one, paths))


def snapshots_beside(paths: Sequence[Path]) -> list[Path]:
    """The snapshots in these folders, which may hold traces as well; empty if there are none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            try:
                found += _snapshots_in(path)
            except AnalysisError:
                continue
    return found


def _snapshots_in(folder: Path) -> list[Path]:
    """The snapshots in a folder. Raises NoTraces, UnreadableFile."""
    try:
        inside = sorted(folder.iterdir())
        files = [p for p in inside if p.name[0] != "." and not is_side_file(p.name) and p.is_file()]
    except OSError as err:
        raise UnreadableFile(f"{folder}: cannot be read: {err.strerror}") from err
    found = [path for path in files if looks_like_snapshot(path)]
    if not found:
        inner = [path.name for path in inside if path.is_dir()]
        hint = f"did you mean one of its folders ({', '.join(inner[:5])})?" if inner else _HINT
        raise NoTraces(f"{folder}: holds no snapshot of torch's memory allocator; {hint}")
    return found
