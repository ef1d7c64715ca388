"""A process that ends with the one that started it: `python -m profiling.tether PARENT_PID train ...`.

Tied before anything is imported that takes time, torch above all.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def program(package: str, args: Sequence[str]) -> list[str]:
    """What to have Python run for our command line, in a process that ends with this one."""
    return ["-m", f"{package}.tether", str(os.getpid()), *args]


def tie_to_parent(parent_pid: int) -> None:
    """Get SIGTERM when the parent ends, however it ends. Linux only; elsewhere nothing happens."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before that
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    tie_to_parent(int(sys.argv[1]))
    from .cli import main

    sys.exit(main(sys.argv[2:]))
