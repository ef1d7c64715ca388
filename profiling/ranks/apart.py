"""Run one of our commands in its own session, end it in order with this process, read its log. Knows no torch."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..base.tied_process import tied_program

# torchrun gives its ranks 30 s to write their files.
_GRACE_S = 45.0
_LOG_TAIL_BYTES = 64 * 1024
_ERROR = "error: "
_POINTER = "its own message is above"  # the launcher's, of a rank that has said more itself
_EXCEPTION = re.compile(r"\A[\w.]*(Error|Exception)(: |$)")


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


def log_tail(log: Path) -> str:
    """The end of a log; empty if it is not there."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:  # somebody has tidied up
        return ""


def first_error(log: str) -> str | None:
    """The first error that a command reports, else the last exception, else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR) and _POINTER not in line]
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    return next(iter(named + exceptions[-1:] + lines[-1:]), None)
