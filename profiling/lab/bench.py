"""Run the commands of a lab one after another, each in its own process; resumable at any moment. Knows no torch."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from ...contract.lab import LAB_FILE, LabExperiment, LabRecord, LabTask
from ...contract.record import SCHEMA_VERSION
from ..base import run_directory as rundir
from ..base.console.messages import tell
from ..base.console.notices import show
from ..errors import RunDirError, UsageError
from ..ranks.apart import first_error, log_tail, run_apart
from ..sweep import directory as sweep_dir
from ..sweep.bench import signals_raise

PAGE = "lab.html"
_BUSY = 0.5  # of the cores
Run = Callable[[Sequence[str], Path, int], int]
"""Runs one of our commands with its output in a log, holding a lock; returns its exit code."""


@dataclass(frozen=True)
class LabRequest:
    """The requested lab: its folder, what to measure, and the numbers of the experiments, from 1."""

    folder: Path
    machine: str
    experiments: Sequence[LabExperiment]
    options: Sequence[str]
    """Options that the sizes follow from."""
    chosen: Sequence[int]
    command: Sequence[str]


def run(arguments: Sequence[str], log: Path, lock: int) -> int:
    """Run a command; it ends with this process."""
    with rundir.explained(log):
        file = log.open("wb")
    with file:
        return run_apart(arguments, stdout=file, stderr=subprocess.STDOUT, pass_fds=(lock,))


def run_lab(request: LabRequest, *, run: Run = run) -> int:
    """Measure what is missing, and write the page; the exit code: 0, 1 if something failed, 128 + N after signal N.

    Raises ProfilingError for what is found before the first command.
    """
    record = planned(request)
    show(plan_text(record, request.chosen))
    if os.getloadavg()[0] > _BUSY * (os.cpu_count() or 1):
        show("note: other programs use this machine now, which disturbs times; better wait until it is idle")
    try:
        with signals_raise(), sweep_dir.locked(request.folder, show) as lock:
            record = _measure(record, request, lambda arguments, log: run(arguments, log, lock))
            return _finished(record, request, lambda arguments, log: run(arguments, log, lock))
    except (KeyboardInterrupt, SystemExit) as err:
        code = 128 + signal.SIGINT if isinstance(err, KeyboardInterrupt) else int(err.code or 0)
        print(
            f"stopped by {signal.Signals(code - 128).name}; what was measured is kept; to go on: "
            f"{shlex.join(['commtrace', *request.command])}",
            file=sys.stderr,
        )
        return code


def plan_text(record: LabRecord, chosen: Sequence[int], *, commands: bool = False) -> str:
    """The chosen experiments with their expected times, on request with their commands."""
    lines, seen = [f"on {record.machine}"], set[str]()
    left_s = 0.0
    for number, experiment in _chosen(record, chosen):
        tasks = {task.folder: task for task in experiment.tasks if task.status != "done" and task.folder not in seen}
        expected_s = sum(task.expected_s for task in tasks.values())
        if experiment.impossible:
            when = f"NA: {experiment.impossible}"
        elif tasks:
            when = f"about {_about(expected_s)}"
        else:
            when = "measured before" if all(task.status == "done" for task in experiment.tasks) else "with one above"
        lines.append(f"  {number}  {experiment.name:<13}  {when}")
        lines += [f"       commtrace {shlex.join(task.arguments)}" for task in tasks.values() if commands]
        seen |= tasks.keys()
        left_s += expected_s
    return "\n".join([*lines, f"about {_about(left_s)} in all" if left_s else "nothing is missing"])


def planned(request: LabRequest) -> LabRecord:
    """What is recorded in the folder, or the plan. Raises UsageError if the record is of another plan."""
    folder, path = request.folder, request.folder / LAB_FILE
    try:
        recorded = msgspec.json.decode(path.read_bytes(), type=LabRecord)
    except FileNotFoundError:
        _check_no_stranger(folder)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return LabRecord(SCHEMA_VERSION, now, request.machine, list(request.options), list(request.experiments))
    except OSError as err:
        raise RunDirError(f"{path}: cannot be read: {err.strerror or err}") from err
    except msgspec.DecodeError as err:
        raise RunDirError(f"{path}: expected what a lab writes: {err}; use another --run-name") from err
    if recorded.options != list(request.options) or recorded.schema_version != SCHEMA_VERSION:
        raise UsageError(
            f"{folder}: was measured with {' '.join(recorded.options) or 'no options'}, now asked for "
            f"{' '.join(request.options) or 'none'}; use another --run-name"
        )
    there, here = (machine.partition(":")[0] for machine in (recorded.machine, request.machine))
    if there != here:
        raise UsageError(f"{folder}: was measured on {there}, and this is {here}; use another --run-name")
    return replace(recorded, experiments=[_checked(each, folder) for each in recorded.experiments])


def _checked(experiment: LabExperiment, folder: Path) -> LabExperiment:
    """With the tasks open again that were done, but whose folders are gone."""
    gone = {task.folder for task in experiment.tasks if task.status == "done" and not (folder / task.folder).is_dir()}
    tasks = [replace(task, status="open", dur_s=None) if task.folder in gone else task for task in experiment.tasks]
    return replace(experiment, tasks=tasks)


def _check_no_stranger(folder: Path) -> None:
    strangers = sorted(path.name for path in folder.glob("*") if not path.name.startswith("."))
    if strangers:
        raise RunDirError(
            f"{folder}: expected a new or empty directory, or a lab's with its {LAB_FILE}; found {strangers[0]}; use "
            "another --run-name"
        )


def _chosen(record: LabRecord, chosen: Sequence[int]) -> list[tuple[int, LabExperiment]]:
    return [(number, each) for number, each in enumerate(record.experiments, 1) if number in chosen]


def _measure(record: LabRecord, request: LabRequest, run: Callable[[Sequence[str], Path], int]) -> LabRecord:
    """Run every chosen task that is not done; lab.json is rewritten after each."""
    folder, expected_s, took_s = request.folder, 0.0, 0.0
    rundir.write_json(folder / LAB_FILE, record)
    tried = set[str]()
    while left := [
        (number, task)
        for number, experiment in _chosen(record, request.chosen)
        for task in experiment.tasks
        if task.status != "done" and task.folder not in tried
    ]:
        number, task = left[0]
        tried.add(task.folder)
        left_s = sum({each.folder: each.expected_s for _, each in left}.values())
        left_s *= took_s / expected_s if took_s else 1  # as much longer as those before
        show(f"experiment {number} of {len(record.experiments)}: {task.folder}; about {_about(left_s)} left")
        ended = _ended(task, folder, run)
        expected_s, took_s = expected_s + task.expected_s, took_s + (ended.dur_s or 0)
        why = f": {ended.reason}" if ended.reason else ""
        show(f"{ended.folder}: {ended.status} after {ended.dur_s:.0f} s{why}")
        record = _with(record, ended)
        rundir.write_json(folder / LAB_FILE, record)
    return record


def _ended(task: LabTask, folder: Path, run: Callable[[Sequence[str], Path], int]) -> LabTask:
    """The task after it has run. A sweep goes on with what it has; of others, a half-done folder is set aside."""
    if task.arguments[0] != "sweep" and (aside := sweep_dir.set_aside(folder, task.folder)):
        show(f"{task.folder}: its old files are now in {aside}")
    log, begun = folder / f"{task.folder}.log", time.monotonic()
    code = run([*task.arguments, "--out", str(folder), "--run-name", task.folder], log)
    dur_s = round(time.monotonic() - begun, 1)
    if code == 0:
        return replace(task, status="done", reason=None, dur_s=dur_s)
    reason = first_error(log_tail(log)) or f"ended with exit code {code}"
    return replace(task, status="failed", reason=f"{reason}; see {log.name}", dur_s=dur_s)


def _with(record: LabRecord, ended: LabTask) -> LabRecord:
    """With this result in every experiment that needs it."""
    return replace(
        record,
        experiments=[
            replace(each, tasks=[ended if task.folder == ended.folder else task for task in each.tasks])
            for each in record.experiments
        ],
    )


def _finished(record: LabRecord, request: LabRequest, run: Callable[[Sequence[str], Path], int]) -> int:
    """Write the page and print the result."""
    page, log = request.folder / PAGE, request.folder / "page.log"
    code = run(["report", str(request.folder), "--output", str(page)], log)
    failed = [task for _, each in _chosen(record, request.chosen) for task in each.tasks if task.status == "failed"]
    for task in {task.folder: task for task in failed}.values():
        print(f"error: {task.folder}: {task.reason}", file=sys.stderr)
    if code:
        print(f"error: no page: {first_error(log_tail(log)) or f'exit code {code}'}; see {log}", file=sys.stderr)
        return 1
    tell(str(page))
    return int(bool(failed))


def _about(seconds: float) -> str:
    """`40 s`, `5 min`."""
    return f"{max(10, round(seconds, -1)):.0f} s" if seconds < 100 else f"{round(seconds / 60)} min"
