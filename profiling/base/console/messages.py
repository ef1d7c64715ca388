"""What people read: results on stdout, and on stderr what happens meanwhile. Nobody has to read it. Knows no torch."""

import os
import sys
from typing import TextIO

from rich.console import Console


class Talk(Console):
    """stderr, as far as it is read."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002
        """Leave it alone: beside a moving line it would be hidden, and stay so after a signal that nobody handles."""
        return False

    def on_broken_pipe(self) -> None:
        """Go on without a reader, where rich would end the process."""
        self.quiet = True
        _discard(sys.stderr)


def tell(text: str) -> None:
    """Print to stdout at once; no error where the reader, head(1) for one, has seen enough."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _discard(sys.stdout)


def _discard(stream: TextIO) -> None:
    """Have what is still written there, also when the interpreter ends, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
