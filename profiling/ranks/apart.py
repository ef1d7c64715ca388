"""Run one of our commands in its own session, and end it in order with this process. Knows no torch."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from ..base.tied_process import tied_program

# torchrun gives its ranks 30 s to write their files.
_GRACE_S = 45.0


def run_apart(arguments: Sequence[str], **how: Any) -> int:
    """Run our command line with these arguments; return its exit code, negative after a signal.

    Ctrl-C reaches only this process, which ends the other one in order, and then raises what it was ended by.
    """
    command = [sys.executable, *tied_program(arguments)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **how)  # noqa: S603  (this program itself)
    try:
        return process.wait()
    except BaseException:
        _end(process)
        raise


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Let the launcher end its ranks, which write what they have; kill it at a second signal or after a while."""
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
