"""Register the format of Nsight Systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...core.tables.events import COLUMNS
from ...recording.shared_files import shared_rank
from ..format import RanksInFiles, Reader, TraceFormat
from ..others import SQLITE
from .exporting import EXPORT, REPORTS

_EXPORTS = (".sqlite", ".sqlite3")


def _reader() -> Reader:
    from .reader import read_nsight

    return Reader(read=read_nsight)


def _ranks(paths: Sequence[Path]) -> RanksInFiles:
    from .ranks import ranks_in

    return ranks_in(paths)


def _recognised(path: Path, begin: Callable[[], bytes]) -> bool:
    """Whether it is an export; by name as well, so that damaged files and reports get fitting errors."""
    name = path.parent.name if shared_rank(path) else path.name
    return name.lower().endswith((*_EXPORTS, *REPORTS)) or begin().startswith(SQLITE)


NSIGHT = TraceFormat(
    name="Nsight Systems",
    version=3 + COLUMNS,
    file_names=tuple(f"*{ending}" for ending in _EXPORTS),
    recognises=_recognised,
    reader=_reader,
    ranks=_ranks,
    a_file="Nsight Systems export",
    unread_names=tuple(f"*{ending}" for ending in REPORTS),
    journals=("-wal", "-journal"),
    how_to_make=f"export it with {EXPORT}",
)
