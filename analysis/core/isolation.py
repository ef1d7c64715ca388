"""Processes of our own, which import libraries from where they are installed, and nothing from where a user works."""

from __future__ import annotations

from pathlib import Path

ANYWHERE = "/"
"""Where such a process works: an empty entry of PYTHONPATH means the folder that a process works in."""
_ROOT = Path(__file__).resolve().parents[__name__.count(".")]


def isolated(statements: str) -> list[str]:
    """Arguments for Python to run these statements, which find this package, in a process that works in ANYWHERE.

    `python -m` and `python -c` search the current folder first, where a file that came with somebody's traces may have
    the name of a library. Python 3.10 has no option against that, and `-I` would also ignore the PYTHONPATH by which
    many clusters provide their libraries.
    """
    path = f"[{str(_ROOT)!r}, *(place for place in sys.path if place not in ('', {ANYWHERE!r}))]"
    return ["-c", f"import sys; sys.path = {path}; {statements}"]
