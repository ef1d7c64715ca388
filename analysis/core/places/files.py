"""Files of this machine or named by URL: read without ever blocking, and replaced whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from ....common import disk
from .place import is_remote


def replace_file(path: Path, parts: Iterable[bytes], *, mode: int | None = None, lasting: bool = True) -> None:
    """Make `parts` the content of the file at `path`, as `disk.replace_file` does. Raises OSError."""
    if is_remote(path):
        path.replace_content(parts)
    else:
        disk.replace_file(path, parts, mode=mode, lasting=lasting)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file and its times; `target` is replaced whole or not at all. Raises OSError."""
    replace_file(target, [source.read_bytes()])
    if not is_remote(source) and not is_remote(target):
        with suppress(OSError):
            shutil.copystat(source, target)


def plain_file(path: Path, *, follow: bool = True) -> tuple[BufferedReader, os.stat_result]:
    """The plain file at `path`, open to be read, and its status. Raises OSError, see `disk.open_plain`."""
    if is_remote(path):
        return path.open("rb"), path.stat()
    descriptor, status = disk.open_plain(path, follow=follow)
    return os.fdopen(descriptor, "rb"), status


def open_state(file: BufferedReader) -> tuple[int, ...]:
    """Values that change when an open file is written to or, if named by URL, replaced. Raises OSError."""
    state: Callable[[], tuple[int, ...]] | None = getattr(file.raw, "state", None)  # see `streams`
    if state is not None:
        return state()
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
