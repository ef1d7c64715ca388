"""Run one cell of a sweep in its own processes, and classify its end. Knows no torch."""

import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from signal import Signals

from ...contract.sweep import Status
from ..base import run_directory as rundir
from ..errors import OutOfDataError, OutOfMemoryError, UsageError
from ..machine import memory
from ..ranks.apart import first_error, log_tail, run_apart
from .directory import missing
from .grid import Cell

_BY_CODE: dict[int, Status] = {
    OutOfMemoryError.exit_code: "out_of_memory",
    OutOfDataError.exit_code: "out_of_data",
    UsageError.exit_code: "skipped",  # `train` refuses it: there is no such cell
}


def run_cell(cell: Cell, arguments: Sequence[str], folder: Path, lock: int) -> Cell:
    """Run `train` with `arguments`; return the cell with its result. Its processes end with this one."""
    log = folder / f"{cell.run}.log"
    kills_before = memory.kernel_kills()
    begun = time.monotonic()
    code = _run(["train", *arguments], log, lock)
    dur_s = round(time.monotonic() - begun, 3)
    kills = (kills_before, memory.kernel_kills())
    status, reason = verdict(code, log_tail(log), folder / cell.run, kills)
    return replace(cell, status=status, reason=reason, dur_s=dur_s)


def verdict(code: int, log: str, run_dir: Path, kills: tuple[int | None, int | None]) -> tuple[Status, str | None]:
    """Status and reason of a cell from the exit code and log of its process.

    `kills` is the kernel's count of processes killed for memory, before and after.
    """
    said = first_error(log)
    if code == 0:
        lacking = missing(run_dir)
        return ("done", None) if lacking is None else ("failed", lacking)
    if code in _BY_CODE:
        return _BY_CODE[code], said
    if code in (128 + signal.SIGKILL, -signal.SIGKILL):
        return _killed(kills)
    if memory.says_exhausted(log):  # also by abort(), where C++ could not throw
        return "out_of_memory", said
    if code < 0:
        return "failed", f"its process was ended by {Signals(-code).name}"
    return "failed", said


def _killed(kills: tuple[int | None, int | None]) -> tuple[Status, str]:
    reason = memory.killed_for_memory(*kills)
    if reason is not None:
        return "out_of_memory", reason
    return "failed", "killed by SIGKILL, but not by the kernel's OOM killer: its count did not rise"


def _run(arguments: Sequence[str], log: Path, lock: int) -> int:
    """Run it and return the exit code, negative after a signal."""
    with rundir.explained(log):
        file = log.open("wb")
    with file:
        return run_apart(arguments, stdout=file, stderr=subprocess.STDOUT, pass_fds=(lock,))
