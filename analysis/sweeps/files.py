"""Timings in the JSON files of a sweep: sweep.json, and run.json and *.meta.json of every cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..core.contract.rank import TimedRank
from ..core.contract.reader import OtherVersion, read_json, typed
from ..core.contract.run import SweptRun
from ..core.contract.sweep import SweepRecord
from ..core.small_files import NotJson
from ..errors import DamagedTimings, NoTimings, UnreadableFile

SWEEP_FILE, RUN_FILE, _SIDE_FILES = "sweep.json", "run.json", "*.meta.json"


def sweep_file(path: Path) -> SweepRecord:
    """Read sweep.json. Raises UnreadableFile, DamagedTimings, NoTimings."""
    sweep = _converted(_json(path), SweepRecord, path)
    if not sweep.cells:
        raise NoTimings(f"{path}: lists no cell; expected the cells of the sweep")
    return sweep


def run_file(folder: Path) -> SweptRun:
    """Read a run's run.json. Raises UnreadableFile, DamagedTimings, NoTimings."""
    return _converted(_json(folder / RUN_FILE), SweptRun, folder / RUN_FILE)


def side_files(folder: Path, world_size: int) -> list[TimedRank]:
    """Read the side files of all ranks, in order. Raises UnreadableFile, DamagedTimings, NoTimings."""
    sides: dict[int, TimedRank] = {}
    for path in sorted(folder.glob(_SIDE_FILES)):
        content = _json(path)
        if isinstance(content, dict) and not content.get("epochs"):
            raise NoTimings(
                f"{path}: has no timed epoch; expected `epochs`, which `commtrace sweep` writes and a plain "
                "run does not: run a sweep, or give a CSV of timings"
            )
        side = _converted(content, TimedRank, path)
        if side.rank in sides:
            raise DamagedTimings(f"{path}: another side file beside it is of rank {side.rank} too; keep one run here")
        sides[side.rank] = side
    if len(sides) != world_size or max(sides) >= world_size:
        raise DamagedTimings(
            f"{folder}: {RUN_FILE} says {world_size} ranks, but side files (*.meta.json) are there of rank "
            f"{', '.join(map(str, sorted(sides)[:99])) or 'none'}; the slowest rank's epoch counts, so copy all of them"
        )
    return [sides[rank] for rank in range(world_size)]


def _json(path: Path) -> Any:
    try:
        return read_json(path)
    except FileNotFoundError as err:
        raise NoTimings(f"{path}: is not there; expected a sweep (sweep.json), a run directory that a sweep wrote "
                        "(run.json, *.meta.json), or a CSV of timings") from err  # fmt: skip
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
    except OtherVersion as err:
        raise DamagedTimings(f"{path}: {err}") from err
    except NotJson as err:
        raise DamagedTimings(f"{path}: is damaged: {err}; expected JSON: copy it again, or run the cell again") from err


_File = TypeVar("_File", bound=msgspec.Struct)


def _converted(content: Any, kind: type[_File], path: Path) -> _File:
    try:
        return typed(content, kind)
    except msgspec.ValidationError as err:
        raise DamagedTimings(f"{path}: is not as a sweep writes it: {err}; repair it, or run the cell again") from err
