"""The entry of Nsight Systems in the registry of formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...recording.shared_files import shared_rank
from ..format import Reader, TraceFormat

_BEGIN = b"SQLite format 3\0"
_EXPORTS = (".sqlite", ".sqlite3")
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


def _reader() -> Reader:
    from .reader import read_nsight

    return Reader(read=read_nsight)


def _ranks(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    from .ranks import ranks_in

    return ranks_in(paths)


def _recognised(path: Path, begin: Callable[[], bytes]) -> bool:
    """By name as well, so that damaged exports, and reports that were not exported, get errors that fit them."""
    name = path.parent.name if shared_rank(path) else path.name
    return name.lower().endswith((*_EXPORTS, *_REPORTS)) or begin().startswith(_BEGIN)


def is_report(path: Path) -> bool:
    """Whether this is a report of Nsight Systems before it is exported, by its name."""
    return path.name.lower().endswith(_REPORTS)


NSIGHT = TraceFormat(
    name="Nsight Systems",
    version=1,
    file_names=tuple(f"*{ending}" for ending in _EXPORTS),
    recognises=_recognised,
    reader=_reader,
    ranks=_ranks,
    a_file="Nsight Systems export",
    unread_names=tuple(f"*{ending}" for ending in _REPORTS),
    how_to_make="export it with nsys export --type sqlite --include-blobs=true",
)
