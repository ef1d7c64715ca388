"""Properties of stdout and stderr: width of the terminal, colours, ASCII."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

_BOLD_RED, _BOLD, _PLAIN = "\x1b[1;31m", "\x1b[1m", "\x1b[0m"
_LEAST_WIDTH = 40


def width_of_stdout() -> int | None:
    """Columns of the terminal, at least 40; None if stdout is no terminal, so that text may be as wide as it needs."""
    if not sys.stdout.isatty():
        return None
    return max(_LEAST_WIDTH, shutil.get_terminal_size().columns)


def has_colours(stream: TextIO) -> bool:
    """Whether to use colours: on a terminal that is not dumb; NO_COLOR and FORCE_COLOR override."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return can_redraw(stream)


def can_redraw(stream: TextIO) -> bool:
    """Whether what was written can be taken away again: on a terminal that is not dumb."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def takes_only_ascii(stream: TextIO) -> bool:
    """Whether the stream takes only ASCII."""
    return not (stream.encoding or "ascii").lower().startswith("utf")


def marked(kind: str, stream: TextIO) -> str:
    """The first word of a message, coloured so that it can be seen among others."""
    if not has_colours(stream):
        return kind
    return f"{_BOLD_RED if kind == 'error' else _BOLD}{kind}{_PLAIN}"
