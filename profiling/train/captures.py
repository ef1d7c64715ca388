"""Repeat a capture in separate processes, so that `compare` sees how much runs differ."""

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..base import run_directory as rundir
from ..base.commands import options
from ..base.console.messages import Talk, tell
from ..errors import UsageError
from ..ranks.apart import run_apart
from .config import TrainConfig

_OWN = ("--captures", "--run-name")


def run_captures(config: TrainConfig, captures: int, args: Sequence[str]) -> int:
    """Run `train` with `args` several times, as NAME-1, NAME-2, ...; return the first exit code that is not 0.

    Raises UsageError under another launcher, whose processes are there already, RunDirError if a name is taken.
    """
    if "RANK" in os.environ:
        raise UsageError(
            f"--captures {captures}: each capture needs processes of its own, and a launcher has started these; start "
            "it once for each, with --run-name NAME-1, NAME-2, ..."
        )
    run_dirs = _run_dirs(config, captures)
    for run_dir in run_dirs:
        rundir.check_free(run_dir)
    talk = Talk()
    for number, run_dir in enumerate(run_dirs, 1):
        talk.print(f"capture {number} of {captures}: {run_dir}")
        code = run_apart([*_without_capture_options(args), "--run-name", run_dir.name])
        if code:
            return code if code > 0 else 128 - code
    tell(_next_steps(run_dirs))
    return 0


def _run_dirs(config: TrainConfig, captures: int) -> list[Path]:
    named = options.run_dir(config.out, config.run_name, f"{config.model}-{config.parallel}")
    return [named.with_name(f"{named.name}-{number}") for number in range(1, captures + 1)]


def _without_capture_options(args: Sequence[str]) -> Iterator[str]:
    """Drop the arguments that differ between captures."""
    left = iter(args)
    for arg in left:
        if arg in _OWN:
            next(left, None)
        elif not arg.startswith(tuple(f"{name}=" for name in _OWN)):
            yield arg


def _next_steps(run_dirs: Sequence[Path]) -> str:
    side = " ".join(shlex.quote(str(run_dir)) for run_dir in run_dirs)
    return f"{len(run_dirs)} captures\n  compare:      commtrace compare {side} --against OTHER-*"
