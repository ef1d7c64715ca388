"""What this package is called, and its commands: in a checkout by `python -m`, installed by their own names."""

import os
from collections.abc import Sequence

ALIAS = "commtrace_"
"""Prefix of our package's name while a script runs that may need the plain name itself."""
PACKAGE = str(__package__).rpartition(".")[0].removeprefix(ALIAS)
"""Our name after `python -m`: `profiling` in a checkout, `commtrace.profiling` when installed."""
_IS_INSTALLED = "." in PACKAGE

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
    return ["-m", f"{PACKAGE}.tied", str(os.getpid()), *args]
