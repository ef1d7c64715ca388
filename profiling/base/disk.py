"""The operations on files that all writing of run directories rests on, one by one, so that tests can let each fail.

And a file that is written whole or not at all. Knows no torch.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PERMISSIONS = 0o777


def create(path: Path, mode: int) -> int:
    """A descriptor of a new file, to write to. Raises OSError where anything is there, a link too."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def write(descriptor: int, data: memoryview) -> int:
    """How many of the bytes were written. Raises OSError."""
    return os.write(descriptor, data)


def sync(descriptor: int) -> None:
    """Wait until what was written is on the disk. Raises OSError."""
    os.fsync(descriptor)


def set_mode(descriptor: int, mode: int) -> None:
    """Raises OSError."""
    os.fchmod(descriptor, mode)


def rename(old: Path, new: Path) -> None:
    """In place of what is there. Raises OSError."""
    old.replace(new)


def make_folder(path: Path) -> None:
    """One that nobody else can enter. Raises OSError."""
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
        """Nothing waits here."""


def hidden(path: Path) -> Path:
    """A name beside `path` that nobody can foresee; nobody takes it for a trace or a side file."""
    return path.with_name(f".{path.name.partition('.pt.trace')[0]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


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
