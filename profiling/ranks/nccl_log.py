"""Keep NCCL's own log in the run directory. Knows no torch.

NCCL opens the file that NCCL_DEBUG_FILE names when a process first uses it, which is before the ranks have agreed on a
run directory. So it opens one in a hidden folder beside the run directories, and each rank moves its own once there is
one: the file stays open, and NCCL goes on writing to it. Of a process that captures nothing it stays in that folder.
"""

import os
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

from ..base import run_directory as rundir
from ..base.detail import NcclDebug

_LEVEL = "NCCL_DEBUG"
_FILE = "NCCL_DEBUG_FILE"
_HIDDEN = ".nccl-log-"


def redirect(out: Path, level: NcclDebug | None, env: MutableMapping[str, str] = os.environ) -> None:
    """Make NCCL log to a file under `out`, at this level or the user's. Call it before the first use of NCCL.

    Nothing happens where neither says a level. A file that the user has named stays. Raises RunDirError.
    """
    if level is not None:
        env[_LEVEL] = level
    if _LEVEL not in env or _FILE in env:
        return
    with rundir.explained(out):
        out.mkdir(parents=True, exist_ok=True)
        folder = mkdtemp(prefix=f"{_HIDDEN}{os.getpid()}-", dir=out.absolute())
    env[_FILE] = f"{folder.replace('%', '%%')}/%h.%p"  # NCCL puts in host and process


def keep(file: Path, env: MutableMapping[str, str] = os.environ) -> bool:
    """Move this process's log to `file`; return whether there was one."""
    folder = _folder(env)
    if folder is None:
        return False
    for log in folder.glob(f"*.{os.getpid()}"):
        with suppress(OSError):  # it stays where it is
            log.rename(file)
            return True
    return False


def tidy(env: MutableMapping[str, str] = os.environ) -> None:
    """Remove the folder when the process that made it ends, unless a log is left in it."""
    folder = _folder(env)
    if folder is not None and folder.name.startswith(f"{_HIDDEN}{os.getpid()}-"):
        with suppress(OSError):
            folder.rmdir()
            del env[_FILE]


def _folder(env: MutableMapping[str, str]) -> Path | None:
    """The folder of redirected logs; None if none are redirected."""
    folder = Path(env.get(_FILE, "").replace("%%", "%")).parent
    return folder if folder.name.startswith(_HIDDEN) else None
