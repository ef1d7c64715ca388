"""Keep NCCL's own log in the run directory. Knows no torch.

NCCL opens the file that NCCL_DEBUG_FILE names when a process first uses it, which is before the ranks have agreed on a
run directory. So it opens one in a hidden folder beside the run directories, and each rank moves its own once there is
one: the file stays open, and NCCL goes on writing to it. Of a process that captures nothing it stays in that folder.

People look for NCCL's warnings on the console. They stay there where the user asked for nothing else, and are repeated
there from the file where it has more.
"""

import os
import threading
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import TextIO

from ..base import run_directory as rundir
from ..base.console.notices import say, show
from ..base.detail import NcclDebug
from .places import local_place

_LEVEL = "NCCL_DEBUG"
_FILE = "NCCL_DEBUG_FILE"
_HIDDEN = ".nccl-log-"
_SHORT = ("VERSION", "WARN")  # levels at which NCCL says what is to be seen at once, and no more
_WARNING = "NCCL WARN"
_LOOK_EVERY_S = 0.5


def redirect(out: Path, level: NcclDebug | None, env: MutableMapping[str, str] = os.environ) -> None:
    """Make NCCL log to a file under `out`, at this level or the user's. Call it before the first use of NCCL.

    Nothing happens where neither says a level, or the user's own is for warnings only. A file that the user has named
    stays. Raises RunDirError.
    """
    own = env.get(_LEVEL, "").upper()
    if level is not None:
        env[_LEVEL] = level
    if _LEVEL not in env or _FILE in env or (level is None and own in _SHORT):
        return
    if level is None and not local_place():
        say(f"{_LEVEL}={own}: what NCCL logs goes to a file of each rank in the run directory; warnings come here, too")
    with rundir.explained(out):
        out.mkdir(parents=True, exist_ok=True)
        folder = mkdtemp(prefix=f"{_HIDDEN}{os.getpid()}-", dir=out.absolute())
    env[_FILE] = f"{folder.replace('%', '%%')}/%h.%p"  # NCCL puts in host and process
    _Warnings.of_this_process(Path(folder))


def keep(file: Path, env: MutableMapping[str, str] = os.environ) -> bool:
    """Move this process's log to `file`; return whether there was one."""
    folder = _folder(env)
    if folder is None:
        return False
    warnings = _Warnings.of_this_process(folder)
    for log in folder.glob(f"*.{os.getpid()}"):
        with suppress(OSError):  # it stays where it is
            warnings.repeat()  # and has it open from here on
            log.rename(file)
            return True
    return False


def tidy(env: MutableMapping[str, str] = os.environ) -> None:
    """Remove the folder when the process that made it ends, unless a log is left in it."""
    folder = _folder(env)
    if folder is not None:
        _Warnings.of_this_process(folder).end()
    if folder is not None and folder.name.startswith(f"{_HIDDEN}{os.getpid()}-"):
        with suppress(OSError):
            folder.rmdir()
            del env[_FILE]


def _folder(env: MutableMapping[str, str]) -> Path | None:
    """The folder of redirected logs; None if none are redirected."""
    folder = Path(env.get(_FILE, "").replace("%%", "%")).parent
    return folder if folder.name.startswith(_HIDDEN) else None


class _Warnings(threading.Thread):
    """Repeats the warnings in this process's log on the console, as they come."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="commtrace-nccl-warnings", daemon=True)
        self.folder = folder
        self._log: TextIO | None = None
        self._begun = ""
        self._reading = threading.Lock()
        self._over = threading.Event()

    @classmethod
    def of_this_process(cls, folder: Path) -> "_Warnings":
        """The one that runs here, or a new one: a child has none of its parent's threads."""
        for thread in threading.enumerate():
            if isinstance(thread, cls) and thread.folder == folder:
                return thread
        new = cls(folder)
        new.start()
        return new

    def run(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            self.repeat()

    def end(self) -> None:
        """Repeat what has come since, and end."""
        self._over.set()
        self.join()
        self.repeat()
        if self._log is not None:
            self._log.close()

    def repeat(self) -> None:
        """Repeat the warnings that have come since the last time; the first time opens the log."""
        with self._reading, suppress(OSError):
            if self._log is None:
                logs = list(self.folder.glob(f"*.{os.getpid()}"))
                if not logs:
                    return
                self._log = logs[0].open(encoding="utf-8", errors="replace")
            *lines, self._begun = (self._begun + self._log.read()).split("\n")
            for line in lines:
                if _WARNING in line:
                    show(line)
