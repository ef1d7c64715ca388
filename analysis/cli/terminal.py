"""What stdout and stderr are: how wide a terminal, with colours or not."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

_BOLD_RED, _BOLD, _PLAIN = "\x1b[1;31m", "\x1b[1m", "\x1b[0m"
_LEAST_WIDTH = 40


def width_of_stdout() -> int | None:
    """Columns of the terminal that stdout is; None where it is none, and text may be as wide as it needs to be."""
    if not sys.stdout.isatty():
        return None
    return max(_LEAST_WIDTH, shutil.get_terminal_size().columns)


def has_colours(stream: TextIO) -> bool:
    """Whether to write colours there: on a terminal that is not dumb, unless NO_COLOR says no or FORCE_COLOR yes."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def takes_only_ascii(stream: TextIO) -> bool:
    """Whether the stream takes nothing but ASCII."""
    return not (stream.encoding or "ascii").lower().startswith("utf")


def marked(kind: str, stream: TextIO) -> str:
    """The first word of a message, so that it can be seen among others."""
    if not has_colours(stream):
        return kind
    return f"{_BOLD_RED if kind == 'error' else _BOLD}{kind}{_PLAIN}"
