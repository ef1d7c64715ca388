"""From checked options to training: this process as one rank, or as the launcher of several; and how ranks end."""

import os
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from signal import Signals

from . import launch, parallel, rundir, train
from .config import TrainConfig
from .errors import ProfilingError, RunDirRefusedError, UsageError
from .workloads.data import check_cifar10

# A rank whose peer is gone lets the launcher see the peer's failure first: that is the one to report.
_CAUSE_FIRST_S = 2.0


def run(config: TrainConfig, workers: int | None, package: str, args: Sequence[str]) -> int:
    """Train as `config` says; the exit code. Raises ProfilingError for what is found before ranks start."""
    command = ["python", "-m", package, *args]
    if parallel.under_torchrun():
        return _run_launched_rank(config, workers, command)
    if config.parallel == "single":
        if workers not in (None, 1):
            raise UsageError(f"--workers {workers}: --parallel single is one process; use --parallel ddp")
        _check(config, workers=1)
        return _run_alone(config, package, command)
    workers = workers or parallel.default_workers(config.device)
    _check(config, workers)
    return launch.launch(package, args, workers)


def _run_alone(config: TrainConfig, package: str, command: Sequence[str]) -> int:
    try:
        run_dir = train.run_rank(config, command)
    except KeyboardInterrupt:
        return _stopped(0, 128 + Signals.SIGINT)
    except SystemExit as err:
        return _stopped(0, err.code)
    _print_next_steps(run_dir, package)
    return 0


def _run_launched_rank(config: TrainConfig, workers: int | None, command: Sequence[str]) -> int:
    who = parallel.identity()
    try:
        if workers not in (None, who.world_size):
            raise UsageError(f"--workers {workers}: torchrun started {who.world_size} ranks; leave --workers out")
        _check(config, workers=int(os.environ.get("LOCAL_WORLD_SIZE", who.local_rank + 1)))
    except ProfilingError as err:
        if who.local_rank == 0:
            raise
        return err.exit_code
    try:
        run_dir = train.run_rank(config, command)
    except BaseException as err:  # noqa: BLE001  (whatever it was, the process ends here)
        code = _report(err, who.rank)
    else:
        if who.rank == 0:
            _print_next_steps(run_dir, command[2])
        return 0
    # Not through the interpreter's exit: that waits for communication with peers which may be gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _check(config: TrainConfig, workers: int) -> None:
    """What can be known before ranks start. Raises ProfilingError."""
    parallel.device(config.device, workers - 1)
    if config.data == "cifar10":
        check_cifar10(config.data_root)
    if config.run_name is not None and not parallel.under_torchrun():
        rundir.check_free(config.out / config.run_name)


def _report(error: BaseException, rank: int) -> int:
    """Say why a launched rank ends; its exit code."""
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


def _print_next_steps(run_dir: Path, package: str) -> None:
    analysis = "commtrace" if "." in package else "python -m analysis"
    run, folder = shlex.quote(str(run_dir)), shlex.quote(str(run_dir.parent))
    print(f"{run_dir}\n  tables:       {analysis} {run}\n  TensorBoard:  tensorboard --logdir {folder}")
