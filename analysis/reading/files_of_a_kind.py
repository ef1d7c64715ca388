"""The files of one kind, such as dumps or snapshots, among those that are named and in folders."""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import NoTraces, UnreadableFile
from .trace_files import is_side_file


@dataclass(frozen=True)
class FileKind:
    """A kind of file: its name in words, one and several, how one is told, and where such files come from."""

    one: str
    several: str
    looks_like: Callable[[Path], bool]
    hint: str

    def named(self, paths: Sequence[Path]) -> list[Path]:
        """The files named, and those of the kind in the folders named. Raises NoTraces, UnreadableFile."""
        files: list[Path] = []
        for path in paths:
            try:
                is_folder = stat.S_ISDIR(path.stat().st_mode)
            except (FileNotFoundError, NotADirectoryError) as err:
                raise NoTraces(f"{path}: no such file or directory; expected {self.several}") from err
            except OSError as err:
                raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
            files += self.inside(path) if is_folder else [path]
        return list(dict.fromkeys(files))

    def inside(self, folder: Path) -> list[Path]:
        """Those in a folder, sorted. Raises NoTraces, UnreadableFile."""
        try:
            inside = sorted(folder.iterdir())
            files = [p for p in inside if p.name[0] != "." and not is_side_file(p.name) and p.is_file()]
        except OSError as err:
            raise UnreadableFile(f"{folder}: cannot be read: {err.strerror}") from err
        found = [path for path in files if self.looks_like(path)]
        if not found:
            inner = [path.name for path in inside if path.is_dir()]
            hint = f"did you mean one of its folders ({', '.join(inner[:5])})?" if inner else self.hint
            raise NoTraces(f"{folder}: holds no {self.one}; {hint}")
        return found
