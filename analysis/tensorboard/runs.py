"""Find the runs below a folder without opening a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TRACE = ".pt.trace."  # or a recording of one
_MOST_FOLDERS, _DEEPEST = 2000, 5

Stamp = tuple[tuple[str, int, int], ...]
"""What tells whether a run changed: name, size and time of change of its traces."""


def runs_below(root: Path) -> Iterator[Path]:
    """Yield folders with traces, including `root`, nearest first.

    Links to folders are not followed, and no more than 2,000 folders are looked into, 5 levels deep: TensorBoard asks
    often, and a folder of checkpoints may be large.
    """
    waiting, seen = [(root, 0)], 0
    while waiting and seen < _MOST_FOLDERS:
        folder, depth = waiting.pop(0)
        seen += 1
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        if any(_TRACE in entry.name and _is_file(entry) for entry in entries):
            yield folder
        if depth < _DEEPEST:
            inner = [e for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
            waiting += [(Path(entry.path), depth + 1) for entry in inner]


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link in a circle, or into a folder of somebody else
        return False


def stamp_of(run: Path) -> Stamp:
    """The present state of a run's traces, for comparison. Raises OSError."""
    with os.scandir(run) as entries:
        traces = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith((".json", ".gz", ".ctrace"))]
    return tuple(sorted((name, status.st_size, status.st_mtime_ns) for name, status in traces))
