"""`comms` as a task of ranks."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ...contract.comms import COMMS_FILE
from ..errors import UsageError
from ..ranks import process_group as parallel
from ..ranks.task import Task
from . import bench
from .backends import backend_for
from .config import CommsConfig


def task(config: CommsConfig) -> Task:
    """The task for `ranks.run_task`."""

    def check(ranks: int) -> None:
        backend_for(config.backend, parallel.rank_device(config.device, 0))
        if config.root >= ranks:
            raise UsageError(f"--root {config.root}: there are {ranks} ranks, counted from 0; choose one of them")

    def run_rank(command: Sequence[str]) -> Path:
        return bench.measure_rank(config, command)

    run_dir = config.out / config.run_name if config.run_name is not None else None
    return Task(config.device, run_dir, check, run_rank, _say_done)


def _say_done(run_dir: Path) -> None:
    command = "commtrace bandwidth"
    ceiling = shlex.quote(str(run_dir))
    print(f"{run_dir / COMMS_FILE}\n  compare a run with it:  {command} --ceiling {ceiling} RUN", file=sys.stderr)
