"""Continue a command after its options are parsed, and end it. Knows no torch."""

import os
import signal
from collections.abc import Callable
from typing import NoReturn

import typer

from ..errors import ProfilingError
from ..machine.tether import tie_to_parent


class RunAfterParsing(Exception):
    """Leave the parser, which ends programs in its own way, before the work starts.

    `start` gets a function that shows a ProfilingError and returns its exit code; it returns the exit code.
    """

    def __init__(self, start: Callable[[Callable[[ProfilingError], int]], int]) -> None:
        super().__init__()
        self.start = start


def exit_with(start: Callable[[], int]) -> NoReturn:
    """End with the exit code of `start`, or 130 if interrupted; `start` imports torch."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        tie_to_parent(os.getppid())  # so that a killed launcher leaves no orphans
    if os.environ.get("RANK", "0") != "0":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch reads it on import; rank 0 warns for all
    try:
        code = start()
    except KeyboardInterrupt:  # typer would end with exit code 1
        code = 128 + signal.SIGINT
    raise typer.Exit(code)
