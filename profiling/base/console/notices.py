"""What we tell the user beside what a script says on its own. Knows no torch."""

import sys
from contextlib import suppress


def say(line: str) -> None:
    """One line on the stderr that this process started with: the script may have put something else in its place."""
    show(f"commtrace: {line}")


def show(text: str) -> None:
    """Print without the `commtrace:` prefix."""
    stream = sys.__stderr__
    if stream is not None:
        with suppress(OSError, ValueError):  # closed, or nobody reads
            print(text, file=stream, flush=True)
