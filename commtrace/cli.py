"""One command: what captures is in `profiling`, all else in `analysis`."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from .analysis.core.process import gc_frozen, interrupts_end_quietly

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 done, 1 the input is at fault, 2 usage, or torch is missing."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    first = 1 if arguments and arguments[0].startswith(("--local_rank=", "--local-rank=")) else 0  # of a launcher
    if {*(arguments or _words_to_complete())[first : first + 1]} & {*CAPTURING}:
        return _capture(arguments)
    with interrupts_end_quietly(), gc_frozen():
        from .analysis.cli.app import main as analyse
    return analyse(arguments, CAPTURING)


def _capture(arguments: list[str]) -> int:
    """Hand over to `profiling`."""
    from .profiling.base.libraries import installed

    if not installed("torch"):
        print(f"error: {_NO_TORCH}", file=sys.stderr)
        return 2
    if not arguments:
        import_module("typer.completion").get_completion_inspect_parameters()  # has the shells known
    with interrupts_end_quietly():
        from .profiling.cli import main as capture
    return capture(arguments)


def _words_to_complete() -> list[str]:
    """The words typed so far, when a shell asks for completions."""
    if "_COMMTRACE_COMPLETE" not in os.environ:
        return []
    asked = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return asked.split()[1:]
