"""The JSON files of a sweep, as far as they hold timings: sweep.json, and run.json and *.meta.json of every cell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ..core.small_files import MOST_RANKS, NotJson, json_file
from ..errors import DamagedTimings, NoTimings, UnreadableFile

SWEEP_FILE, RUN_FILE, _SIDE_FILES = "sweep.json", "run.json", "*.meta.json"
_SCHEMA_VERSION = 1

_Count = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
_Ranks = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
_Duration = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Mode = Literal["single", "dp", "ddp", "fsdp", "pipeline"]


class Cell(msgspec.Struct):
    """A cell as sweep.json lists it."""

    run: str
    model: str
    parallel: _Mode
    workers: _Ranks
    batch_size_per_rank: _Count
    status: Literal["open", "done", "out_of_memory", "out_of_data", "failed", "skipped"]
    reason: str | None = None


class SweepFile(msgspec.Struct):
    """sweep.json."""

    schema_version: int
    cells: list[Cell]


class Config(msgspec.Struct):
    """The options of a run, as far as they matter here."""

    model: str
    parallel: _Mode
    batch_size: _Count | None = None
    image_size: _Count | None = None


class RunFile(msgspec.Struct):
    """run.json of a cell."""

    config: Config
    world_size: _Ranks


class Epoch(msgspec.Struct):
    """One epoch of one rank."""

    phase: Literal["warmup", "timed"]
    steps: _Count
    data_ns: _Duration
    step_ns: _Count


class Model(msgspec.Struct):
    """The size of the model."""

    parameters: _Duration | None = None
    bytes: _Duration | None = None


class DataParallel(msgspec.Struct):
    """What nn.DataParallel drives."""

    devices: Annotated[list[Any], msgspec.Meta(min_length=1)]


class Side(msgspec.Struct):
    """<host>_<rank>.meta.json of a cell. The ranks of a pipeline share one batch: none has a size of its own."""

    rank: _Duration
    batch_size_per_rank: _Count | None
    epochs: list[Epoch]
    dataset_samples: _Count
    full_epoch_steps: _Count
    model: Model | None = None
    dp: DataParallel | None = None


def sweep_file(path: Path) -> SweepFile:
    """The content of sweep.json. Raises UnreadableFile, DamagedTimings, NoTimings."""
    sweep = _converted(_json(path), SweepFile, path)
    if sweep.schema_version != _SCHEMA_VERSION:
        raise DamagedTimings(
            f"{path}: has schema_version {sweep.schema_version}, expected {_SCHEMA_VERSION}; update commtrace"
        )
    if not sweep.cells:
        raise NoTimings(f"{path}: lists no cell; expected the cells of the sweep")
    return sweep


def run_file(folder: Path) -> RunFile:
    """The content of a run's run.json. Raises UnreadableFile, DamagedTimings, NoTimings."""
    return _converted(_json(folder / RUN_FILE), RunFile, folder / RUN_FILE)


def side_files(folder: Path, world_size: int) -> list[Side]:
    """The side files of all ranks of a run, in order. Raises UnreadableFile, DamagedTimings, NoTimings."""
    sides: dict[int, Side] = {}
    for path in sorted(folder.glob(_SIDE_FILES)):
        content = _json(path)
        if isinstance(content, dict) and not content.get("epochs"):
            raise NoTimings(
                f"{path}: has no timed epoch; expected `epochs`, which `python -m profiling sweep` writes and a plain "
                "run does not: run a sweep, or give a CSV of timings"
            )
        side = _converted(content, Side, path)
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
        return json_file(path)
    except FileNotFoundError as err:
        raise NoTimings(f"{path}: is not there; expected a sweep (sweep.json), a run directory that a sweep wrote "
                        "(run.json, *.meta.json), or a CSV of timings") from err  # fmt: skip
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
    except NotJson as err:
        raise DamagedTimings(f"{path}: is damaged: {err}; expected JSON: copy it again, or run the cell again") from err


_File = TypeVar("_File", bound=msgspec.Struct)


def _converted(content: Any, kind: type[_File], path: Path) -> _File:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as err:
        raise DamagedTimings(f"{path}: is not as a sweep writes it: {err}; repair it, or run the cell again") from err
