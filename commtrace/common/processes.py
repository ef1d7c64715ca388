"""Processes of our own: Python that finds this package, and no library of the same name where a user works.

`python -m` and `python -c` search the current folder first, where a file that came with somebody's traces, or belongs
to a script, may have the name of a library. Python 3.10 has no option against that, and `-I` would also ignore the
PYTHONPATH by which many clusters provide their libraries.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import commtrace

ROOT = str(Path(commtrace.__file__).resolve().parents[1])
"""The folder that holds the package: site-packages, or a checkout."""
ANYWHERE = "/"
"""Where an isolated process works: an empty entry of PYTHONPATH means the folder that a process works in."""


def isolated(statements: str) -> list[str]:
    """Arguments for Python to run these statements, in a process that works in ANYWHERE."""
    path = f"[{ROOT!r}, *(place for place in sys.path if place not in ('', {ANYWHERE!r}))]"
    return ["-c", f"import sys; sys.path = {path}; {statements}"]


def calling(module: str, function: str, args: Sequence[str]) -> list[str]:
    """Arguments for Python to call `commtrace.<module>.<function>(args)`, and to exit with what it returns.

    `sys.path` begins with the folder of Python's programs, as for the program `commtrace`, until a script that is run
    puts its own there. Ours comes last, for a checkout that is not installed: it hides nothing that belongs to others.
    """
    # With PYTHONSAFEPATH, Python itself puts no folder first.
    first = "sys.path[: sys.path[0] == ''] = [os.path.dirname(sys.executable)]"
    last = f"{ROOT!r} in sys.path or sys.path.append({ROOT!r})"
    call = f"from commtrace.{module} import {function}; sys.exit({function}(sys.argv[1:]))"
    return ["-c", f"import os, sys; {first}; {last}; {call}", *args]
