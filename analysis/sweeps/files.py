"""Timings in the JSON files of a sweep: sweep.json, and run.json and *.meta.json of every cell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ...contract.rank import BESIDE_TIMED, META_SUFFIX, TIMED, RankFile
from ...contract.reading import OtherVersion, typed
from ...contract.run import RUN_FILE, SweptRun
from ...contract.sweep import SweepRecord
from ..core.small_files import NotJson, read_json
from ..errors import DamagedTimings, NoTimings, UnreadableFile


def sweep_file(path: Path) -> SweepRecord:
    """Read sweep.json. Raises UnreadableFile, DamagedTimings, NoTimings."""
    content = _json(path)
    with _explained(path):
        sweep = typed(content, SweepRecord)
    if not sweep.cells:
        raise NoTimings(f"{path}: lists no cell; expected the cells of the sweep")
    return sweep


def run_file(folder: Path) -> SweptRun:
    """Read a run's run.json. Raises UnreadableFile, DamagedTimings, NoTimings."""
    path = folder / RUN_FILE
    content = _json(path)
    with _explained(path):
        return typed(content, SweptRun)


def side_files(folder: Path, world_size: int) -> list[RankFile]:
    """Read the side files of all ranks, in order; each has what timings need, `TIMED`.

    Raises UnreadableFile, DamagedTimings, NoTimings.
    """
    sides: dict[int, RankFile] = {}
    for path in sorted(folder.glob(f"*{META_SUFFIX}")):
        content = _json(path)
        if isinstance(content, dict) and not content.get("epochs"):
            raise NoTimings(
                f"{path}: has no timed epoch; expected `epochs`, which `commtrace sweep` writes and a plain "
                "run does not: run a sweep, or give a CSV of timings"
            )
        with _explained(path):
            side = typed(content, RankFile, TIMED, BESIDE_TIMED)
        assert side.rank is not None
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


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raises DamagedTimings for content that is not as it was written."""
    try:
        yield
    except msgspec.ValidationError as err:
        raise DamagedTimings(f"{path}: is not as a sweep writes it: {err}; repair it, or run the cell again") from err
