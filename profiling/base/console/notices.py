"""What we tell the user beside what a script says on its own. Knows no torch."""

import sys
from contextlib import suppress


def say(line: str) -> None:
    """One line on the stderr that this process started with: the script may have put something else in its place."""
    stream = sys.__stderr__
    if stream is not None:
        with suppress(OSError, ValueError):  # closed, or nobody reads
            print(f"commtrace: {line}", file=stream, flush=True)
