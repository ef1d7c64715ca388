"""A sweep's directory: sweep.json, a run directory per cell, one sweep at a time. Knows no torch.

traces/<sweep>/
  sweep.json              the options and every planned cell, replaced whole after each of them
  <cell>/                 a run directory as `train` writes it
  <cell>.log              what its processes said
  set-aside/<cell>.<n>/   what stood in the place of a cell that was not done; nothing is ever deleted
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...common.disk import remove_partial_files
from ...contract.rank import META_SUFFIX
from ...contract.record import SCHEMA_VERSION
from ...contract.run import RUN_FILE
from ...contract.sweep import SWEEP_FILE, SweepRecord
from ..base import run_directory as rundir
from ..errors import RunDirError
from .grid import Cell, SweepConfig

SET_ASIDE = "set-aside"
_LOCK_FILE = ".lock"
# Ranks of a killed sweep get this long to write their files and end: torchrun's 30 s, and some.
_ORPHANS_S = 45.0
_POLL_S = 0.2


@dataclass(frozen=True)
class SweepFile(SweepRecord):
    """The content of sweep.json, which a resumed sweep reads."""

    config: SweepConfig
    cells: list[Cell]


def read(folder: Path) -> SweepFile | None:
    """Read sweep.json; None if the folder is empty or missing. Raises RunDirError."""
    path = folder / SWEEP_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        _check_no_stranger(folder)
        return None
    except OSError as err:
        raise RunDirError(f"{path}: cannot be read: {err.strerror or err}") from err
    try:
        record = msgspec.json.decode(content, type=SweepFile)
    except msgspec.DecodeError as err:
        raise RunDirError(f"{path}: expected what a sweep writes: {err}; use another --run-name") from err
    if record.schema_version != SCHEMA_VERSION:
        raise RunDirError(
            f"{path}: expected schema_version {SCHEMA_VERSION}, found {record.schema_version}; "
            "go on with the version of this program that wrote it"
        )
    return record


def write_sweep(folder: Path, content: SweepFile) -> None:
    """Replace sweep.json, whole or not at all. Raises RunDirError."""
    rundir.write_json(folder / SWEEP_FILE, content)


@contextmanager
def locked(folder: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Lock the folder and yield the lock's descriptor, for child processes. Raises RunDirError.

    A process that inherits the descriptor holds the lock with us. So the lock of a sweep that was killed is free once
    the ranks that it started are gone; they get some time for that, and `say` a line about it.
    """
    rundir.make(folder)
    path = folder / _LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as err:
        raise RunDirError(f"{path}: cannot be written: {err.strerror or err}") from err
    try:
        _take(descriptor, folder, say)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        remove_partial_files(folder)  # of a sweep that was killed while it wrote
        yield descriptor
    finally:
        os.close(descriptor)


def set_aside(folder: Path, run: str) -> Path | None:
    """Move what is in the place of the cell `run` away, and return its new path; None if there is nothing."""
    place = folder / run
    if not os.path.lexists(place) or (place.is_dir() and not place.is_symlink() and not any(place.iterdir())):
        return None
    number = 1
    while os.path.lexists(target := folder / SET_ASIDE / f"{run}.{number}"):
        number += 1
    try:
        target.parent.mkdir(exist_ok=True)
        place.rename(target)
    except OSError as err:
        raise RunDirError(f"{place}: cannot be moved to {target}: {err.strerror or err}; move it yourself") from err
    return target


def missing(run_dir: Path) -> str | None:
    """What the run directory of a cell lacks; None if it is complete."""
    try:
        world_size = int(_json(run_dir / RUN_FILE)["world_size"])
        metas = side_files(run_dir)
    except (OSError, ValueError, KeyError, TypeError) as err:
        return f"{run_dir}: its side files cannot be read: {err}"
    if sorted(meta.get("rank", -1) for meta in metas) != list(range(world_size)):
        return f"{run_dir}: expected the side files of {world_size} ranks, found {len(metas)}"
    for meta in metas:
        if not meta.get("complete"):
            return f"{run_dir}: rank {meta['rank']} is not complete: {meta.get('reason')}"
        if not any(epoch.get("phase") == "timed" for epoch in meta.get("epochs", [])):
            return f"{run_dir}: rank {meta['rank']} has no timed epoch"
        gone = [name for name in meta.get("traces", []) if not (run_dir / name).is_file()]
        if gone:
            return f"{run_dir}: the trace {gone[0]} is not there"
    return None


def side_files(run_dir: Path) -> Sequence[dict[str, Any]]:
    """Read meta.json of every rank. Raises OSError, ValueError."""
    return [_json(path) for path in sorted(run_dir.glob(f"*{META_SUFFIX}"))]


def _json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content


def _check_no_stranger(folder: Path) -> None:
    strangers = (
        sorted(path.name for path in folder.glob("*") if not path.name.startswith(".")) if folder.exists() else []
    )
    if strangers:
        raise RunDirError(
            f"{folder}: expected a new or empty directory, or a sweep's with its {SWEEP_FILE}; found {strangers[0]}; "
            "use another --run-name"
        )


def _take(descriptor: int, folder: Path, say: Callable[[str], None]) -> None:
    begun, has_told = time.monotonic(), False
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        holder = os.pread(descriptor, 32, 0).decode(errors="replace")
        if not holder.isdigit() or _runs(int(holder)) or time.monotonic() > begun + _ORPHANS_S:
            raise RunDirError(
                f"{folder}: another sweep or lab works in it (process {holder or 'unknown'}); wait for it, or use "
                "another --run-name"
            )
        if not has_told:
            say(f"{folder}: waiting for processes of a command that was killed (process {holder}) to end")
            has_told = True
        time.sleep(_POLL_S)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
