"""How a command that runs ranks starts torch, and ends. Knows no torch."""

import os
import signal
from collections.abc import Callable
from typing import NoReturn

import typer


def exit_with(start: Callable[[], int]) -> NoReturn:
    """End with the exit code that `start` returns, 130 when it is interrupted; `start` imports torch."""
    if os.environ.get("RANK", "0") != "0":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch reads it on import; rank 0 warns for all
    try:
        code = start()
    except KeyboardInterrupt:  # typer's own answer would be exit code 1
        code = 128 + signal.SIGINT
    raise typer.Exit(code)
