"""Our command line in a process that ends with this one."""

import os
from collections.abc import Sequence

from ...common.processes import calling


def tied_program(args: Sequence[str]) -> list[str]:
    """Arguments for Python to run our command line in a process that ends with this one."""
    return calling("profiling.tied", "run_tied", [str(os.getpid()), *args])
