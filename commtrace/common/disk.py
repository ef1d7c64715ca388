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


def create(path: Path, mode: int, within: int | None = None) -> int:
    """Create a file and return its descriptor. Raises OSError if anything has that name, even a link.

    Here and below, `within` is the descriptor of an open folder that a relative path begins in.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=within)


def write(descriptor: int, data: memoryview) -> int:
    """The number of bytes written. Raises OSError."""
    return os.write(descriptor, data)


def sync(descriptor: int) -> None:
    """Wait until what was written is on the disk. Raises OSError."""
    os.fsync(descriptor)


def close(descriptor: int) -> None:
    """Close a descriptor. Raises OSError if a network file system reports a failed write only now."""
    os.close(descriptor)


def set_mode(descriptor: int, mode: int) -> None:
    """Set the permissions. Raises OSError."""
    os.fchmod(descriptor, mode)


def rename(old: Path, new: Path, within: int | None = None) -> None:
    """Rename, replacing an existing file. Raises OSError."""
    os.replace(old, new, src_dir_fd=within, dst_dir_fd=within)


def make_folder(path: Path) -> None:
    """Make a folder that no other user can enter. Raises OSError."""
    path.mkdir(mode=0o700)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all bytes. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[write(descriptor, left) :]


class Writer:
    """A binary file to write a new file's bytes to."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes | memoryview) -> int:
        """Write all of it. Raises OSError."""
        write_all(self._descriptor, data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


def permissions(path: Path) -> int | None:
    """The permissions of a file, None where there is none. Raises OSError."""
    try:
        return path.lstat().st_mode & 0o777
    except FileNotFoundError:
        return None


@contextmanager
def replacing(
    path: Path, *, mode: int | None = None, lasting: bool = True, within: int | None = None
) -> Iterator[Writer]:
    """Make the bytes written in the block the content of the file at `path` when it ends without an error.

    Otherwise nothing changes, and nothing is left behind. A link at `path` is replaced, not followed. The file gets the
    permissions `mode`; for None those of a new file. One that is not `lasting` may be damaged by a power cut. Raises
    OSError.
    """
    with ExitStack() as until_renamed:
        partial, descriptor = _begun(path, 0o666 if mode is None else 0o600, within)
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
            rename(partial, path, within)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial, dir_fd=within)
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
    """Append to the file at `path`, which is created if missing. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        write_all(descriptor, content)
    finally:
        close(descriptor)


def held(path: Path) -> tuple[int, bool]:
    """Open and lock the file at `path` to read and append, until the descriptor is closed.

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


def held_folder(path: Path, *, follow: bool = True) -> int:
    """A descriptor of the folder at `path`, which keeps its number from being reused. Raises OSError.

    A link to one is an error unless `follow`.
    """
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))


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
    """Remove a file unless it is locked. Raises OSError, also then and without support for locks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


def _begun(path: Path, permissions: int, within: int | None) -> tuple[Path, int]:
    """A new, locked file beside `path`, and its descriptor. Raises OSError."""
    while True:
        partial = path.with_name(_partial_name())
        descriptor = create(partial, permissions, within)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody took it for a killed writer's before it was locked, and is removing it
            os.close(descriptor)
            continue
        except OSError:  # a file system without locks
            return partial, descriptor
        with suppress(FileNotFoundError):
            os.stat(partial, dir_fd=within, follow_symlinks=False)
            return partial, descriptor
        os.close(descriptor)  # as above, and it is removed


def _partial_name() -> str:
    return f".{_this_boot()}-{os.urandom(8).hex()}{PARTIAL_SUFFIX}"


@lru_cache(maxsize=1)
def _this_boot() -> str:
    """An identifier of this machine since its last start."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        name = socket.gethostname().encode()
    return hashlib.sha256(name).hexdigest()[:8]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay signals that would end the program until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def open_plain(path: Path, *, follow: bool = True, within: int | None = None) -> tuple[int, os.stat_result]:
    """Open a plain file to read: descriptor and status; links only if `follow`.

    Raises OSError for anything but a plain file. A pipe is not opened: it might block forever.
    """
    _check_plain(os.stat(path, dir_fd=within, follow_symlinks=follow))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=within)
    try:
        status = os.fstat(descriptor)
        _check_plain(status)  # it may have been replaced
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def content_of(path: Path, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a plain file in parts. Raises OSError, also if it has fewer.

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
