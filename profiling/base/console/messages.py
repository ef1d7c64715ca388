"""What people read: results on stdout, progress on stderr. A closed pipe is no error for either. Knows no torch."""

import os
import sys
from typing import TextIO

from rich.console import Console


class Talk(Console):
    """stderr; drops output that nobody reads."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002
        """Leave the cursor visible: hidden beside a moving line, it would stay hidden after an unhandled signal."""
        return False

    def on_broken_pipe(self) -> None:
        """Continue without a reader; rich would end the process."""
        self.quiet = True
        _discard(sys.stderr)


def tell(text: str) -> None:
    """Print to stdout at once; no error if the reader, such as head(1), has closed the pipe."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _discard(sys.stdout)


def _discard(stream: TextIO) -> None:
    """Discard what is still written there, including when the interpreter exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
