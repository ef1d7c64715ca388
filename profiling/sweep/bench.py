"""Run the cells of a grid one after another, each in fresh processes; resumable at any moment."""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from ...contract.record import SCHEMA_VERSION
from ...contract.sweep import SWEEP_FILE
from ..base.console.messages import tell
from ..errors import DeviceError, ProfilingError, UsageError
from . import directory as sweep_dir
from .cell import run_cell
from .directory import SweepFile
from .grid import (
    EXHAUSTED,
    FINAL,
    GRID,
    Cell,
    SweepConfig,
    asked_for,
    cells,
    changed,
    contradictions,
    train_arguments,
    train_config,
    with_larger,
)
from .progress import SweepReporter, table

RunCell = Callable[[Cell, Sequence[str], Path, int], Cell]
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Request:
    """The requested sweep. `given` are the options given; `resume` takes the others from sweep.json."""

    folder: Path
    given: Mapping[str, Any]
    command: Sequence[str]
    resume: bool = False


def run_sweep(request: Request, *, run_cell: RunCell = run_cell) -> int:
    """Run the remaining cells; return the exit code: 0, 1 if cells failed, 128 + N after signal N.

    Raises ProfilingError for what is found before the first cell.
    """
    folder = request.folder
    if request.resume and not (folder / SWEEP_FILE).is_file():
        raise UsageError(f"--resume {folder}: expected a sweep's directory, found no {SWEEP_FILE} in it")
    try:
        with signals_raise(), SweepReporter() as reporter:
            content = _run(request, run_cell, reporter)
    except (KeyboardInterrupt, SystemExit) as err:
        return _stopped(err, folder)
    return _finished(content, folder)


def _run(request: Request, run_cell: RunCell, reporter: SweepReporter) -> SweepFile:
    """Run all remaining cells and return the final record. Raises ProfilingError."""
    folder = request.folder
    _check(_planned(request, sweep_dir.read(folder)).config)  # before anything is written
    everything = request.resume and not any(key in request.given for key in GRID)
    with sweep_dir.locked(folder, reporter.say) as lock:
        content = _reopened(_planned(request, sweep_dir.read(folder)), folder, reporter)
        sweep_dir.write_sweep(folder, content)

        def run(cell: Cell, config: SweepConfig) -> Cell:
            return run_cell(cell, train_arguments(config, cell, folder), folder, lock)

        return _loop(content, folder, run, reporter, everything=everything)


def _planned(request: Request, recorded: SweepFile | None) -> SweepFile:
    """The content of sweep.json with every requested cell. Raises UsageError if it contradicts the record."""
    config = changed(recorded.config if recorded and request.resume else SweepConfig(), request.given)
    if recorded is None:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        command = list(request.command)
        return SweepFile(SCHEMA_VERSION, request.folder.name, now, command, config, cells(config))
    if differences := contradictions(recorded.config, config):
        raise UsageError(
            f"{request.folder}: its cells were made with {'; '.join(differences)}: they could not be compared; "
            "use another --run-name, or --resume without these options"
        )
    known = {each.run for each in recorded.cells}
    added = [each for each in cells(config) if each.run not in known]
    return replace(recorded, config=config, cells=recorded.cells + added)


def _check(config: SweepConfig) -> None:
    """Check what would be wrong in every cell. Raises ProfilingError."""
    faults = [fault for each in cells(config) if (fault := _fault(config, each))]
    if len(faults) == len(cells(config)):
        raise faults[0]
    if config.data == "cifar10":
        from ..workloads.data import check_cifar10

        check_cifar10(Path(config.data_root))


def _fault(config: SweepConfig, cell: Cell) -> ProfilingError | None:
    """Why this cell cannot be run here; None if it can."""
    try:
        train_config(config, cell, Path())
        if config.device != "cpu":
            from ..ranks import process_group as parallel  # torch takes seconds

            parallel.rank_device(config.device, cell.workers - 1)  # however a mode uses them, it needs that many GPUs
    except (UsageError, DeviceError) as err:
        return err
    return None


def _reopened(content: SweepFile, folder: Path, reporter: SweepReporter) -> SweepFile:
    """Reopen cells that are recorded as done but lack files."""
    checked = []
    for cell in content.cells:
        lacking = sweep_dir.missing(folder / cell.run) if cell.status == "done" else None
        if lacking is not None:
            reporter.say(f"{cell.run}: was done, but {lacking}; it is run again")
            cell = replace(cell, status="open", dur_s=None)
        checked.append(cell)
    return replace(content, cells=checked)


def _loop(
    content: SweepFile,
    folder: Path,
    run: Callable[[Cell, SweepConfig], Cell],
    reporter: SweepReporter,
    *,
    everything: bool,
) -> SweepFile:
    """Run every requested cell that is not final; sweep.json is rewritten after each."""
    config, tried = content.config, set[str]()
    while True:
        content = replace(content, cells=with_larger(content.cells, config))
        asked = [cell for cell in content.cells if everything or asked_for(config, cell)]
        left = [cell for cell in asked if cell.status not in FINAL and cell.run not in tried]
        if not left:
            return content
        cell = left[0]
        tried.add(cell.run)
        reason = _skip_reason(config, cell, content.cells)
        if reason is not None:
            ended = replace(cell, status="skipped", reason=reason, dur_s=None)
        else:
            reporter.begin(cell, left, asked, growing=config.batch_size_until_oom)
            if aside := sweep_dir.set_aside(folder, cell.run):
                reporter.say(f"{cell.run}: its old files are now in {aside}")
            ended = run(cell, config)
        reporter.end(ended)
        content = replace(content, cells=[ended if other.run == cell.run else other for other in content.cells])
        sweep_dir.write_sweep(folder, content)


def _skip_reason(config: SweepConfig, cell: Cell, cells: Sequence[Cell]) -> str | None:
    fault = _fault(config, cell)
    if fault is not None:
        return str(fault)
    for other in cells:
        smaller = other.series == cell.series and other.batch_size_per_rank < cell.batch_size_per_rank
        if smaller and other.status in EXHAUSTED:
            return f"{other.batch_size_per_rank} per rank was {other.status.replace('_', ' ')} already"
    return None


@contextmanager
def signals_raise() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit(128 + number), unless they are ignored; SIGINT raises anyway."""

    def stop(signum: int, frame: object) -> NoReturn:  # noqa: ARG001  (the signature of a handler)
        if signum == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + signum)

    before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
    for signum, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(signum, stop)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _stopped(error: KeyboardInterrupt | SystemExit, folder: Path) -> int:
    code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else int(error.code or 0)
    name = signal.Signals(code - 128).name
    if (folder / SWEEP_FILE).is_file():
        resume = f"commtrace sweep --resume {shlex.quote(str(folder))}"
        print(f"stopped by {name}; finished cells are kept; to go on: {resume}", file=sys.stderr)
    else:
        print(f"stopped by {name} before anything was written", file=sys.stderr)
    return code


def _finished(content: SweepFile, folder: Path) -> int:
    where = shlex.quote(str(folder))
    tell(
        f"{table(content.cells, folder)}\n\n{folder}\n  scaling:      commtrace table scaling {where}\n"
        f"  subtraction:  commtrace table subtraction {where}"
    )
    failed = [cell.run for cell in content.cells if cell.status == "failed"]
    if failed:
        log = folder / f"{failed[0]}.log"
        print(f"error: {len(failed)} of {len(content.cells)} cells failed; see {log}", file=sys.stderr)
    return int(bool(failed))


def check_not_launched(env: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError inside torchrun: a sweep starts its own ranks."""
    if "RANK" in env:
        raise UsageError("sweep starts the ranks of every cell itself; run it without torchrun")
