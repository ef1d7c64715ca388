"""Make processes end with their parent."""

import ctypes
import os
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def tie_to_parent(parent_pid: int) -> None:
    """Get SIGTERM when the parent ends, in any way. Linux only; elsewhere nothing happens."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent_pid:  # the parent has already ended
        os.kill(os.getpid(), signal.SIGTERM)
