"""Find snapshots of torch's allocator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import AnalysisError
from ..formats.registry import format_named_like
from ..formats.snapshots.entry import is_pickled, looks_like_snapshot
from ..reading.files_of_a_kind import FileKind
from ..reading.trace_files import is_side_file

SNAPSHOTS = FileKind(
    "snapshot of torch's memory allocator",
    "snapshots of torch's allocator",
    looks_like_snapshot,
    "torch.cuda.memory._dump_snapshot(f'memory_rank_{rank}.pickle') writes one, see docs/capture.md",
)


def only_snapshots(paths: Sequence[Path]) -> bool:
    """Whether each of these paths is a snapshot or another pickle, or a folder with snapshots and no traces."""

    def is_one(path: Path) -> bool:
        if not path.is_dir():
            return looks_like_snapshot(path) or is_pickled(path)
        try:
            found = set(SNAPSHOTS.inside(path))
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
                found += SNAPSHOTS.inside(path)
            except AnalysisError:
                continue
    return found
