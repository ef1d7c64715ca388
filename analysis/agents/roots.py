"""The folders that an agent may read, and the runs in them that it has opened."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from threading import Lock
from typing import TYPE_CHECKING

from ..core.escaping import printable
from ..errors import AnalysisError

if TYPE_CHECKING:
    from ..results.analysis import Analysis

_MOST_KEPT = 4
"""Runs that stay open: a comparison needs two, and another one is looked at beside it."""
_MOST_NAMED = 20

_State = frozenset[tuple[str, int, int]]


class NotAllowed(AnalysisError):
    """A path leads out of the folders that were named, or to nothing."""


class Roots:
    """Folders that may be read, and nothing else."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Keep these folders, which exist."""
        self.folders = tuple(folder.resolve() for folder in folders)
        self._kept: OrderedDict[Path, tuple[_State, Analysis]] = OrderedDict()
        self._lock = Lock()

    def path(self, name: str) -> Path:
        """The file or folder that this names: a path below one of the folders. Raises NotAllowed.

        Links are followed first, so that one which leads elsewhere is refused, and so is a folder that holds one.
        """
        for folder in self.folders:
            found = self._below(folder, name)
            if found is not None:
                return found
        there = ", ".join(self.names()) or "nothing"
        raise NotAllowed(f"{printable(name) or 'no name'}: not below the folders that may be read; there are: {there}")

    def _below(self, folder: Path, name: str) -> Path | None:
        try:
            found = (folder / name).resolve()
            return found if found.exists() and self._holds(found) else None
        except (OSError, ValueError, RuntimeError):  # too long, a null byte, a circle of links
            return None

    def _holds(self, path: Path) -> bool:
        """Whether this lies below the folders, with all that is in it."""
        every = [path, *(path.rglob("*") if path.is_dir() else ())]
        return all(any(each.resolve().is_relative_to(folder) for folder in self.folders) for each in every)

    def names(self) -> list[str]:
        """The first names in each folder, as `path` takes them."""
        return [name for folder in self.folders for name in _inside(folder)]

    def run(self, name: str) -> Analysis:
        """The analysis of a run, kept until its files change. Raises AnalysisError."""
        path = self.path(name)
        with self._lock:  # of two questions at once about a run, the second finds what the first has read
            state = _state(path)
            if path not in self._kept or self._kept[path][0] != state:
                from ..results.opening import analyse

                self._kept[path] = state, analyse(path)
                if len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(path)
            return self._kept[path][1]


def _inside(folder: Path) -> Iterator[str]:
    try:
        names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    except OSError:
        return
    yield from map(printable, names[:_MOST_NAMED])
    if len(names) > _MOST_NAMED:
        yield f"and {len(names) - _MOST_NAMED} more in {printable(folder.name)}"


def _state(path: Path) -> _State:
    """Names, sizes and times of the files of a run: any change makes it another one."""
    found = set()
    for each in [path] if path.is_file() else path.rglob("*"):
        with suppress(FileNotFoundError):  # removed meanwhile, as in a run that goes on
            status = each.stat()
            if S_ISREG(status.st_mode):
                found.add((str(each), status.st_size, status.st_mtime_ns))
    return frozenset(found)
