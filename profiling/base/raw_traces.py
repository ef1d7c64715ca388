"""Where the raw JSON of a trace goes before it is packed: a disk or the memory of this node. Knows no torch.

It is 10 to 20 times larger than the packed trace. Ranks of many nodes would write it to one network file system at the
same time, inside a training step, in which all of them wait for that.
"""

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

from ...common import disk

_MEMORY = Path("/dev/shm")  # noqa: S108  (only a folder that nobody else can enter is made there)
_ROOM_BYTES = 4 << 30
_PREFIX = ".commtrace-raw-"
_LOCK = "lock"


def node_local(run_dir: Path, places: Sequence[Path] | None = None) -> Path:
    """The first of `places` with room enough, or else the one with most of it, `run_dir` included.

    By default these are $TMPDIR, or /tmp, and /dev/shm.
    """
    free = {place: _free_bytes(place) for place in (*(places or (Path(gettempdir()), _MEMORY)), run_dir)}
    enough = [place for place, free_bytes in free.items() if place != run_dir and free_bytes >= _ROOM_BYTES]
    return enough[0] if enough else max(free, key=lambda place: free[place])


@contextmanager
def raw_file(run_dir: Path) -> Iterator[Path]:
    """A name for the raw trace, of which nothing is left after the block. Raises OSError.

    Of a process that is killed in between, the next one that writes a trace on this node removes what was left: it
    could be memory. Not a file without a name: Kineto writes another one first, and renames that.
    """
    place = node_local(run_dir)
    _remove_left_behind(place)
    name = os.urandom(8).hex()
    folder, unlocked = place / f"{_PREFIX}{name}", place / f".commtrace-new-{name}"
    disk.make_folder(unlocked)
    try:
        lock = os.open(unlocked / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            disk.rename(unlocked, folder)  # only now: before it is locked, another rank would take it for left behind
            yield folder / "trace.json.tmp"
        finally:
            os.close(lock)
    finally:
        for each in (folder, unlocked):
            shutil.rmtree(each, ignore_errors=True)


def _free_bytes(place: Path) -> int:
    """What this user can write there; -1 if nothing."""
    try:
        found = os.statvfs(place)
    except OSError:
        return -1
    return found.f_bavail * found.f_frsize if os.access(place, os.W_OK | os.X_OK) else -1


def _remove_left_behind(place: Path) -> None:
    """Remove folders of this user whose process has gone, and with it the lock."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    _remove_if_left(Path(entry.path), entry.stat(follow_symlinks=False))


def _remove_if_left(folder: Path, status: os.stat_result) -> None:
    """Remove the folder if nobody holds its lock. Raises OSError, also if somebody does."""
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        return
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
