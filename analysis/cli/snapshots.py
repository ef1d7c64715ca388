"""Snapshots of torch's allocator where a command also takes runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.places.place import is_remote
from ..core.process import gc_frozen
from ..recording.options import ReadOptions
from ..snapshots.files import only_snapshots
from .output import print_message

if TYPE_CHECKING:
    from ..snapshots.analysis import SnapshotAnalysis


def given_snapshots(paths: Sequence[Path]) -> list[Path]:
    """The paths, if all are snapshots or folders of nothing but these; else none."""
    return list(paths) if not any(map(is_remote, paths)) and only_snapshots(paths) else []


def analyse_given(paths: Sequence[Path], reading: ReadOptions) -> SnapshotAnalysis:
    """Read snapshots, and print what is to be known of all of them. Raises AnalysisError."""
    with gc_frozen():
        from ..snapshots.analysis import analyse_snapshots
    found = analyse_snapshots(
        paths, keep_going=reading.keep_going, workers=reading.workers, memory_gb=reading.memory_gb
    )
    for note in found.notes:
        print_message(note, kind="note")
    return found
