"""What this package is called, and its commands: in a checkout by `python -m`, installed by their own names."""

import os
from collections.abc import Sequence
from pathlib import Path

ALIAS = "commtrace_"
"""Prefix of our package's name while a script runs that may need the plain name itself."""
PACKAGE = str(__package__).rpartition(".")[0].removeprefix(ALIAS)
"""Our name after `python -m`: `profiling` in a checkout, `commtrace.profiling` when installed."""
_IS_INSTALLED = "." in PACKAGE
_ROOT = str(Path(__file__).resolve().parents[PACKAGE.count(".") + 2])

PROGRAM = "commtrace" if _IS_INSTALLED else f"python -m {PACKAGE}"
"""How a user starts a command of this package."""
ANALYSIS = "commtrace" if _IS_INSTALLED else "python -m analysis"
"""How a user starts the analysis of what this package writes."""


def as_called(examples: str, program: str) -> str:
    """Examples that are written for `python -m profiling`, with the names of commands as the user calls them."""
    if program == "python -m profiling":
        return examples
    analysis = "python -m analysis", program
    return examples.replace("python -m profiling", program).replace("-m profiling", "-m commtrace").replace(*analysis)


def tied_program(args: Sequence[str]) -> list[str]:
    """Arguments for Python to run our command line in a process that ends with this one."""
    return our_program("tied", "run_tied", [str(os.getpid()), *args])


def our_program(module: str, function: str, args: Sequence[str]) -> list[str]:
    """Arguments for Python to call a function of ours with `args`, and to exit with what it returns.

    Where the process works is not searched for modules, as `python -m` would do: what lies there may have the name of a
    library. The folder of a script is put first in place of ours when the script is run.
    """
    # With PYTHONSAFEPATH, Python itself puts no folder first.
    path = f"sys.path[: sys.path[0] == ''] = [{_ROOT!r}]"
    call = f"from {PACKAGE}.{module} import {function}; sys.exit({function}(sys.argv[1:]))"
    return ["-c", f"import sys; {path}; {call}", *args]
