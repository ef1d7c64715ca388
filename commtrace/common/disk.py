"""Files of this machine: replaced whole or not at all, locked, and opened without ever blocking.

The operations that all writing uses stand alone, so that tests can make each of them fail.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

# Signals that end a program, and would leave half a file behind.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_AT_ONCE = 1 << 24
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_KINDS = (
    (stat.S_ISDIR, "Is a directory"),
    (stat.S_ISLNK, "is a link"),
    (stat.S_ISFIFO, "is a pipe"),
    (stat.S_ISSOCK, "is a socket"),
)


def create(path: Path, mode: int) -> int:
    """A descriptor of a new file, to write to. Raises OSError if anything has that name, even a link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def write(descriptor: int, data: memoryview) -> int:
    """The number of bytes written. Raises OSError."""
    return os.write(descriptor, data)


def sync(descriptor: int) -> None:
    """Wait until what was written is on the disk. Raises OSError."""
    os.fsync(descriptor)


def close(descriptor: int) -> None:
    """Raises OSError if a network file system reports only now that it did not write; the file is closed anyway."""
    os.close(descriptor)


def set_mode(descriptor: int, mode: int) -> None:
    """Raises OSError."""
    os.fchmod(descriptor, mode)


def rename(old: Path, new: Path) -> None:
    """Rename, replacing an existing file. Raises OSError."""
    old.replace(new)


def make_folder(path: Path) -> None:
    """Make a folder that no other user can enter. Raises OSError."""
    path.mkdir(mode=0o700)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[write(descriptor, left) :]


class Writer:
    """Takes the bytes of a new file, as a binary file does."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes | memoryview) -> int:
        """Write all of it. Raises OSError."""
        write_all(self._descriptor, data)
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered here."""


def permissions(path: Path) -> int | None:
    """The permissions of a file, None where there is none. Raises OSError."""
    try:
        return path.lstat().st_mode & 0o777
    except FileNotFoundError:
        return None


@contextmanager
def replacing(path: Path, *, mode: int | None = None, lasting: bool = True) -> Iterator[Writer]:
    """Make the bytes written in the block the content of the file at `path` when it ends without an error.

    Otherwise nothing changes, and nothing is left behind. A link at `path` is replaced, not followed. The file gets the
    permissions `mode`; for None those of a new file. One that is not `lasting` may be damaged by a power cut. Raises
    OSError.
    """
    with ExitStack() as until_renamed:
        partial, descriptor = _begun(path, 0o666 if mode is None else 0o600)
        try:
            try:
                # The file is closed before it is renamed, but its lock has to last until then.
                until_renamed.callback(os.close, os.dup(descriptor))
                yield Writer(descriptor)
                if mode is not None:
                    set_mode(descriptor, mode)
                if lasting:
                    sync(descriptor)
            finally:
                close(descriptor)
            rename(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise


def replace_file(path: Path, parts: Iterable[bytes], *, mode: int | None = None, lasting: bool = True) -> None:
    """Make `parts` the content of the file at `path`, as `replacing` does. Raises OSError.

    Signals that end the program wait until it is done.
    """
    with _undisturbed(), replacing(path, mode=mode, lasting=lasting) as file:
        for part in parts:
            file.write(part)


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """A hidden folder beside `path`, removed after the block with everything in it. Raises OSError."""
    folder = path.with_name(_partial_name())
    make_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def append(path: Path, content: bytes) -> None:
    """Add to the end of the file at `path`, which is made if it is not there. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        write_all(descriptor, content)
    finally:
        close(descriptor)


def held(path: Path) -> tuple[int, bool]:
    """A descriptor of the file at `path`, to read from and add to, that no other process holds until it is closed.

    With it, False if the file system has no locks. A file that is not there is made. Raises BlockingIOError if it is
    held already, OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags, 0o666)
    try:
        _check_plain(os.fstat(descriptor))
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        if err.errno in _NO_LOCKS:
            return descriptor, False
        os.close(descriptor)
        raise
    return descriptor, True


def held_folder(path: Path) -> int:
    """A descriptor of the folder at `path`, whose number no other one gets until it is closed. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def new_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder with these files at `path`, whole or not at all; an empty one there is replaced.

    Raises OSError, also if anything else is there.
    """
    with _undisturbed():
        partial = path.with_name(_partial_name())
        partial.mkdir()
        try:
            for name, content in files.items():
                replace_file(partial / name, [content])
            rename(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


PARTIAL_SUFFIX = ".partial"
"""The end of the name of a file that is still being written."""
_PARTIAL_NAME = re.compile(rf"\.(?:([0-9a-f]{{8}})-)?[0-9a-f]{{16}}{re.escape(PARTIAL_SUFFIX)}")
_STALE_S = 3600.0


def remove_partial_files(folder: Path) -> None:
    """Remove what killed writers of this user left in a folder: at once where their machine was this one, since it last
    started, and an hour after the last write where it was not, because its locks may not be seen here.
    """
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        name = _PARTIAL_NAME.fullmatch(entry.name)
        if name is None:
            continue
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
                continue
            if status.st_mtime < time.time() - _STALE_S:
                Path(entry.path).unlink()
            elif name[1] == _this_boot():
                _remove_unlocked(Path(entry.path))


def _remove_unlocked(path: Path) -> None:
    """Remove a file unless somebody has locked it. Raises OSError, also then, and where a file system has no locks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


def _begun(path: Path, permissions: int) -> tuple[Path, int]:
    """A new file beside `path`, locked, and its descriptor. Raises OSError."""
    while True:
        partial = path.with_name(_partial_name())
        descriptor = create(partial, permissions)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody took it for a killed writer's before it was locked, and is removing it
            os.close(descriptor)
            continue
        except OSError:  # a file system without locks
            return partial, descriptor
        if partial.exists():
            return partial, descriptor
        os.close(descriptor)  # as above, and it is removed


def _partial_name() -> str:
    return f".{_this_boot()}-{os.urandom(8).hex()}{PARTIAL_SUFFIX}"


@lru_cache(maxsize=1)
def _this_boot() -> str:
    """What tells this machine, since it last started, from others."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        name = socket.gethostname().encode()
    return hashlib.sha256(name).hexdigest()[:8]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would end the program wait until the block is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def open_plain(path: Path, *, follow: bool = True) -> tuple[int, os.stat_result]:
    """A descriptor of the plain file at `path`, to read from, and its status; a link only where links are followed.

    Raises OSError for anything but a plain file. A pipe is not opened: it might block forever.
    """
    _check_plain(path.stat(follow_symlinks=follow))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        _check_plain(status)  # it may have been replaced
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def content_of(path: Path, size: int) -> Iterator[bytes]:
    """The first bytes of a plain file, this many, in parts. Raises OSError, also where there are fewer.

    It may be read while another file is being replaced: a signal that would end the program then raises
    KeyboardInterrupt.
    """
    descriptor, _ = open_plain(path)
    with os.fdopen(descriptor, "rb") as file:
        while size:
            if any(ending in _ENDING for ending in signal.sigpending()):
                raise KeyboardInterrupt
            part = file.read(min(size, _AT_ONCE))
            if not part:
                raise OSError(errno.EIO, "became shorter while it was read")
            size -= len(part)
            yield part


def _check_plain(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, next((what for is_it, what in _KINDS if is_it(status.st_mode)), "is a device"))
