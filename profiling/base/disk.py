"""The file operations behind all writing of run directories, one function each, so that tests can make them fail.

Also a file that is written completely or not at all. Knows no torch.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PERMISSIONS = 0o777


def create(path: Path, mode: int) -> int:
    """A descriptor of a new file, for writing. Raises OSError if anything is there, even a link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def write(descriptor: int, data: memoryview) -> int:
    """The number of bytes written. Raises OSError."""
    return os.write(descriptor, data)


def sync(descriptor: int) -> None:
    """Wait until what was written is on the disk. Raises OSError."""
    os.fsync(descriptor)


def set_mode(descriptor: int, mode: int) -> None:
    """Raises OSError."""
    os.fchmod(descriptor, mode)


def rename(old: Path, new: Path) -> None:
    """Rename, replacing what is there. Raises OSError."""
    old.replace(new)


def make_folder(path: Path) -> None:
    """Make a folder that no other user can enter. Raises OSError."""
    path.mkdir(mode=0o700)


class Writer:
    """Takes the bytes of a new file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> int:
        """Write all of it. Raises OSError."""
        left = memoryview(data)
        while left:
            left = left[write(self._descriptor, left) :]
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered here."""


def hidden(path: Path) -> Path:
    """An unpredictable name beside `path`, which is not mistaken for a trace or a side file."""
    return path.with_name(f".{path.name.partition('.pt.trace')[0]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """A hidden folder beside `path`, removed afterwards with all that is in it. Raises OSError."""
    folder = hidden(path)
    make_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Writer]:
    """What is written becomes `path` when the block ends without an error, with the permissions of what it replaces.

    Raises OSError. Nothing is left behind then.
    """
    try:
        mode = path.lstat().st_mode & _PERMISSIONS
    except FileNotFoundError:
        mode = None
    partial = hidden(path)
    descriptor = create(partial, 0o666)
    try:
        try:
            yield Writer(descriptor)
            if mode is not None:
                set_mode(descriptor, mode)
            sync(descriptor)
        finally:
            os.close(descriptor)
        rename(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
