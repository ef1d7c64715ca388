"""`--verbose`: the log on stderr. The option is taken out before the command line is parsed, wherever it stands."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from ..core.escaping import printable
from ..core.places.redaction import hide_secrets

VERBOSE = "--verbose"
_ABOUT = "Say on stderr what is read, how, and how long that takes; show the traceback of an internal error."


def verbose_option() -> Any:
    """The option, for the help of a command: typer builds it, whose class of options differs between versions."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def with_option(verbose: Annotated[bool, typer.Option(VERBOSE, help=_ABOUT)] = False) -> None: ...

    option = typer.main.get_command(app).params[0]
    option.expose_value = False  # it is taken out before the command line is parsed
    return option


class _OnStderr(logging.Handler):
    """One line for each record, without control characters and without secrets of URLs among the `given` words."""

    def __init__(self, given: Sequence[str]) -> None:
        super().__init__(logging.INFO)
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
