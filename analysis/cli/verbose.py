"""`--verbose`: the log on stderr. The option is taken out before the command line is parsed, wherever it stands."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..core.escaping import printable
from ..core.places.redaction import hide_secrets

VERBOSE = "--verbose"
ABOUT_VERBOSE = "Say on stderr what is read, how, and how long that takes; show the traceback of an internal error."


class _OnStderr(logging.Handler):
    """One line for each record, without control characters and without secrets of URLs among the `given` words."""

    def __init__(self, given: Sequence[str]) -> None:
        super().__init__()
        self._given = given
        self.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        # The stderr of this moment: while a progress bar is shown, rich puts lines above it.
        print(printable(hide_secrets(self.format(record), self._given)), file=sys.stderr)


@contextmanager
def log_on_stderr(given: Sequence[str]) -> Iterator[None]:
    """Show the log of the block on stderr, from INFO on; `given` are the words of the command line."""
    logger, handler = logging.getLogger("commtrace"), _OnStderr(given)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
