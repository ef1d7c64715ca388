"""Where trace files are, and what their names tell."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from pathlib import Path

from ..core.escaping import as_text
from ..errors import NoTraces, UnreadableFile

TORCH_NAME = re.compile(r"(?P<worker>.+?)\.(?P<cycle>\d+)\.pt\.trace\.json(\.gz)?$")
_TRACE_NAME = re.compile(r"\.json(\.gz)?$")
_SIDE_FILE = re.compile(r"(\.meta\.json|^run\.json|^sweep\.json|^comms\.json|^training\.json)$")


def trace_files(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The trace files at `paths`, sorted, and a note on every folder where something like them was left out.

    Raises NoTraces, UnreadableFile.
    """
    found: list[Path] = []
    skipped: list[str] = []
    for path in paths:
        mode = _mode(path)
        if mode is None:
            raise NoTraces(f"{path}: no such file or directory; expected a run directory or Kineto traces")
        if stat.S_ISDIR(mode):
            files, others, streams = _files_in(path)
            found += files
            skipped += [f"{path.name}: left out {name}, which is no file" for name in streams]
            if others:
                skipped.append(f"{path.name}: left out {len(others)} JSON files not named like torch's traces: "
                               f"{', '.join(others[:3])}{', ...' if len(others) > 3 else ''}")  # fmt: skip
        else:
            found.append(path)
    return list(dict.fromkeys(found)), skipped


def is_side_file(name: str) -> bool:
    """Is this the name of a file that tells of a run, and is no trace?"""
    return _SIDE_FILE.search(name) is not None


def run_name(paths: Sequence[Path]) -> str:
    """What the run found at `paths` is called."""
    first = paths[0].resolve()
    name = first.name if first.is_dir() or len(paths) == 1 else first.parent.name
    return as_text(name)


def _mode(path: Path) -> int | None:
    """What is there; None if nothing is. Raises UnreadableFile."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err


def _is_stream(path: Path) -> bool:
    """A pipe, socket or device: nobody knows when reading it ends."""
    mode = _mode(path)
    return mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _files_in(folder: Path) -> tuple[list[Path], list[str], list[str]]:
    """Trace files of the folder, names of the JSON files that are none if some bear torch's names, and of pipes."""
    try:
        named = sorted(
            p
            for p in folder.iterdir()
            if _TRACE_NAME.search(p.name) and not _SIDE_FILE.search(p.name) and p.name[0] != "."
        )
    except OSError as err:
        raise UnreadableFile(f"{folder}: cannot be read: {err.strerror}") from err
    names = [p for p in named if not _is_stream(p)]
    torch_named = [p for p in names if TORCH_NAME.match(p.name)]
    files = torch_named or names
    if not files:
        inner = sorted(p.name for p in folder.iterdir() if stat.S_ISDIR(_mode(p) or 0))
        hint = f"; did you mean one of its folders ({', '.join(inner[:5])})?" if inner else ""
        raise NoTraces(f"{folder}: holds no Kineto trace (*.json or *.json.gz){hint}")
    return files, [p.name for p in names if p not in files], [p.name for p in named if p not in names]
