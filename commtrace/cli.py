"""One command for both packages: what captures is done by `profiling`, all else by `analysis`."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from . import IN_CHECKOUT

CAPTURING = {
    "train": "Train a model and trace a few steps on every rank.",
    "run": "Run a script as it is and trace a few steps on every rank.",
    "capture": "The same as run.",
    "sweep": "Time and trace a grid of modes, workers and batch sizes.",
    "comms": "Measure collectives: the ceiling of this machine.",
    "layers": "Measure every layer by itself: time, memory and power.",
    "capacity": "Search how many layers a device can train.",
}
"""The commands of `profiling`, and what each does. Listed here, as reading it from there would slow down `--help`."""

_NO_TORCH = 'capturing needs torch, which is not installed: pip install "commtrace[profiling]"'
_PROGRAM = "python -m commtrace" if IN_CHECKOUT else "commtrace"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 done, 1 the input is at fault, 2 usage, or torch is missing."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    first = 1 if arguments and arguments[0].startswith(("--local_rank=", "--local-rank=")) else 0  # of a launcher
    if {*(arguments or _words_to_complete())[first : first + 1]} & {*CAPTURING}:
        return _capture(arguments)
    from .analysis.__main__ import main as analysis

    code: int = analysis(arguments, program=_PROGRAM, others=CAPTURING)
    return code


def _capture(arguments: list[str]) -> int:
    """Hand over to `profiling`."""
    # In a checkout by its own name, under which the ranks and scripts that it starts find it.
    package = "profiling" if IN_CHECKOUT else f"{__package__}.profiling"
    if not import_module(f"{package}.base.libraries").installed("torch"):
        print(f"error: {_NO_TORCH}", file=sys.stderr)
        return 2
    if not arguments:
        import_module("typer.completion").get_completion_inspect_parameters()  # has the shells known
    code: int = import_module(f"{package}.__main__").main(arguments, program=_PROGRAM)
    return code


def _words_to_complete() -> list[str]:
    """What stands behind the program's name where a shell asks how that may go on."""
    if "_COMMTRACE_COMPLETE" not in os.environ:
        return []
    asked = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return asked.split()[1:]
