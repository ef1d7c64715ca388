"""Run a task as one rank, or launch several ranks, and end them."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from ..base import run_directory as rundir
from ..base.commands.choices import DeviceName
from ..base.tied_process import tied_program
from ..errors import ProfilingError, RunDirRefusedError, UsageError
from . import launch
from . import process_group as parallel
from .places import join_launched, speaks_for_all

# A rank whose peer is gone waits for the launcher to see the peer's failure first: that is the one to report.
_CAUSE_FIRST_S = 2.0


@dataclass(frozen=True)
class Task:
    """A command as its ranks run it. `run_dir` is None if rank 0 names it at its start.

    `check` gets the number of ranks in the job and raises ProfilingError for what can be known before they start.
    `run_rank` gets the command line and returns the run directory, which is passed to `say_done`.
    """

    device: DeviceName
    run_dir: Path | None
    check: Callable[[int], None]
    run_rank: Callable[[Sequence[str]], Path]
    say_done: Callable[[Path], None]


def run_task(task: Task, workers: int | None, args: Sequence[str]) -> int:
    """Run one rank of the task under torchrun, else launch `workers` ranks; return the exit code.

    Raises ProfilingError.
    """
    join_launched()
    if parallel.under_torchrun():
        return _run_launched_rank(task, workers, _command(args))
    workers = workers or parallel.default_workers(task.device)
    _check(task, workers, workers)
    return launch.launch(tied_program(args), workers)


def _command(args: Sequence[str]) -> list[str]:
    return ["commtrace", *args]


def run_alone(task: Task, args: Sequence[str]) -> int:
    """Run the task in this process as rank 0 of 1; return the exit code. Raises ProfilingError."""
    _check(task, ranks=1, ranks_here=1)
    try:
        run_dir = task.run_rank(_command(args))
    except KeyboardInterrupt:
        return _stopped(0, 128 + Signals.SIGINT)
    except SystemExit as err:
        return _stopped(0, err.code)
    task.say_done(run_dir)
    return 0


def _run_launched_rank(task: Task, workers: int | None, command: Sequence[str]) -> int:
    who = parallel.identity()
    try:
        if workers not in (None, who.world_size):
            raise UsageError(f"--workers {workers}: torchrun started {who.world_size} ranks; leave --workers out")
        _check(task, who.world_size, int(os.environ.get("LOCAL_WORLD_SIZE", who.local_rank + 1)))
    except ProfilingError as err:
        if who.local_rank == 0:
            raise
        return err.exit_code
    try:
        run_dir = task.run_rank(command)
    except BaseException as err:  # noqa: BLE001  (whatever it was, the process ends here)
        code = _report(err, who.rank)
    else:
        if who.rank == 0:
            task.say_done(run_dir)
        return 0
    # Not through the interpreter's exit, which waits for communication with peers that may be gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _check(task: Task, ranks: int, ranks_here: int) -> None:
    """Check what is known before ranks start; `ranks_here` is their number on this host. Raises ProfilingError."""
    parallel.rank_device(task.device, ranks_here - 1)
    task.check(ranks)
    if task.run_dir is not None and speaks_for_all():
        rundir.check_free(task.run_dir)


def _report(error: BaseException, rank: int) -> int:
    """Print why a launched rank ends; return its exit code."""
    if isinstance(error, KeyboardInterrupt):
        return _stopped(rank, 128 + Signals.SIGINT)
    if isinstance(error, SystemExit):
        return _stopped(rank, error.code)
    if isinstance(error, RunDirRefusedError):
        return error.exit_code
    if isinstance(error, ProfilingError):
        print(f"error: rank {rank}: {error}", file=sys.stderr)
        return error.exit_code
    if parallel.lost_peer(error):
        time.sleep(_CAUSE_FIRST_S)  # the launcher ends this process meanwhile
    print(f"rank {rank} failed:\n{''.join(traceback.format_exception(error))}", file=sys.stderr, end="")
    return 1


def _stopped(rank: int, code: str | int | None) -> int:
    """Exit code of a rank that a signal stopped."""
    number = code if isinstance(code, int) else int(code is not None)
    if number > 128:
        print(f"rank {rank}: stopped by {Signals(number - 128).name}", file=sys.stderr)
    return number
