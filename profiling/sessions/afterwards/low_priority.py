"""Run our analysis in a process that gives way to training and ends with its parent."""

import ctypes
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...machine.tether import tie_to_parent

_LEAST_NICE = 19
# linux/ioprio.h; glibc has no function for it.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
_THIS_PROCESS, _IDLE = 1, 3 << 13
_FIRST_TO_GO = "1000"


def give_way() -> None:
    """Take the lowest priority for cores and disks, if the system has one, and be killed first if memory is short."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _LEAST_NICE)
    with suppress(AttributeError, OSError, KeyError):
        ctypes.CDLL(None).syscall(_IOPRIO_SET[platform.machine()], _THIS_PROCESS, 0, _IDLE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")


def analyse_tied(arguments: Sequence[str]) -> int:
    """Run `commtrace ARGUMENTS`, which follow the parent's process id; return the exit code."""
    parent, *rest = arguments
    tie_to_parent(int(parent))
    give_way()
    from ....cli import main

    return main(rest)
