"""Sweep directories, single runs and CSVs of timings -> one row per cell: how long a whole epoch takes.

traces/<sweep>/sweep.json says which cells there are and how each ended; the side files of a cell's run directory hold
the epochs of every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import pandas as pd

from .errors import AnalysisError, DamagedTimings, DuplicateCell, NoTimings, UnreadableFile
from .schema import TIMINGS, Row
from .timings_csv import MODES, csv_rows

_SWEEP_FILE, _RUN_FILE, _SIDE_FILES = "sweep.json", "run.json", "*.meta.json"
_SCHEMA_VERSION = 1
_KEY = ("model", "parallel", "workers", "batch_size_per_worker")
_CHANNELS = 3  # of an image, one byte each

_Count = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
_Duration = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Mode = Literal["single", "dp", "ddp", "fsdp", "pipeline"]


class _Cell(msgspec.Struct):
    run: str
    model: str
    parallel: _Mode
    workers: _Count
    batch_size_per_rank: _Count
    status: Literal["open", "done", "out_of_memory", "out_of_data", "failed", "skipped"]
    reason: str | None = None


class _SweepFile(msgspec.Struct):
    schema_version: int
    cells: list[_Cell]


class _Config(msgspec.Struct):
    model: str
    parallel: _Mode
    workers: _Count | None = None
    image_size: _Count | None = None


class _RunFile(msgspec.Struct):
    config: _Config
    world_size: _Count


class _Epoch(msgspec.Struct):
    phase: Literal["warmup", "timed"]
    steps: _Count
    data_ns: _Duration
    step_ns: _Count


class _Model(msgspec.Struct):
    parameters: _Duration | None = None
    bytes: _Duration | None = None


class _Side(msgspec.Struct):
    rank: _Duration
    batch_size_per_rank: _Count
    epochs: list[_Epoch]
    dataset_samples: _Count
    full_epoch_steps: _Count
    model: _Model | None = None


@dataclass(frozen=True)
class RankEpoch:
    """The timed epoch of one rank: `steps` of the `full_steps` of a whole epoch, waiting for data apart."""

    rank: int
    step_ns: int
    data_ns: int
    steps: int
    full_steps: int

    def whole(self, measured_ns: int) -> int:
        """What was measured over `steps`, scaled to a whole epoch, in ns."""
        return (measured_ns * self.full_steps + self.steps // 2) // self.steps


@dataclass(frozen=True)
class Sweep:
    """The cells of one or more sweeps: TIMINGS, and the run directory of every cell that has one.

    `failed` says what could not be used and was left out.
    """

    name: str
    timings: pd.DataFrame
    folders: Mapping[int, Path]
    failed: tuple[str, ...] = ()


def load_sweep(paths: Sequence[Path], *, keep_going: bool = False) -> Sweep:
    """All cells at `paths`: sweep directories, run directories with a timed epoch, CSVs of timings.

    Rows are in order of model, mode, batch size and workers. With `keep_going`, a cell that cannot be read has the
    status `unreadable`, and whatever else cannot be read is named in `failed`. Raises UnreadableFile, DamagedTimings,
    NoTimings, DuplicateCell.
    """
    rows: list[Row] = []
    failed: list[str] = []
    for path in paths:
        try:
            rows += _rows(path, failed if keep_going else None)
        except AnalysisError as err:
            if not keep_going:
                raise
            failed.append(str(err))
    if not rows:
        raise NoTimings(f"{paths[0]}: no timing could be used: " + "; ".join(failed))
    rows.sort(key=lambda r: (r["model"], MODES.index(r["parallel"]), r["batch_size_per_worker"], r["workers"]))
    _check_distinct(rows)
    cells = [{**row, "cell": number} for number, row in enumerate(rows)]
    folders = {row["cell"]: row["folder"] for row in cells if row.get("folder") is not None}
    return Sweep(_name(paths[0]), TIMINGS.frame(cells), folders, tuple(failed))


def whole_epoch(ranks: Sequence[RankEpoch]) -> Row:
    """Columns of TIMINGS that follow from the ranks' timed epochs: the slowest rank's, scaled to a whole epoch."""
    slowest = max(ranks, key=lambda r: (r.whole(r.step_ns), -r.rank))
    return {
        "epoch_ns": slowest.whole(slowest.step_ns),
        "timed_steps": slowest.steps,
        "epoch_steps": slowest.full_steps,
        "data_ns": max(r.whole(r.data_ns) for r in ranks),
    }


def _rows(path: Path, failed: list[str] | None) -> list[Row]:
    """The cells at one path; failures of single cells go to `failed`, or are raised if that is None."""
    if path.name == _SWEEP_FILE:
        return _sweep_rows(path.parent, failed)
    if not path.exists():
        raise NoTimings(f"{path}: no such file or directory; expected a sweep, a run directory or a CSV of timings")
    if not path.is_dir():
        return [{**row, "source": str(path)} for row in csv_rows(path)]
    if (path / _SWEEP_FILE).exists():
        return _sweep_rows(path, failed)
    return [_run_row(path)]


def _sweep_rows(folder: Path, failed: list[str] | None) -> list[Row]:
    path = folder / _SWEEP_FILE
    sweep = _converted(_json(path), _SweepFile, path)
    if sweep.schema_version != _SCHEMA_VERSION:
        raise DamagedTimings(
            f"{path}: has schema_version {sweep.schema_version}, expected {_SCHEMA_VERSION}; update commtrace"
        )
    if not sweep.cells:
        raise NoTimings(f"{path}: lists no cell; expected the cells of the sweep")
    rows = []
    for cell in sweep.cells:
        try:
            rows.append(_cell_row(folder, cell))
        except AnalysisError as err:
            if failed is None:
                raise
            failed.append(str(err))
            rows.append(_planned(folder, cell) | {"status": "unreadable", "reason": str(err)})
    return rows


def _planned(folder: Path, cell: _Cell) -> Row:
    return {
        "run": cell.run,
        "source": str(folder),
        "model": cell.model,
        "parallel": cell.parallel,
        "workers": cell.workers,
        "batch_size_per_worker": cell.batch_size_per_rank,
        "status": cell.status,
        "reason": cell.reason,
    }


def _cell_row(folder: Path, cell: _Cell) -> Row:
    planned = _planned(folder, cell)
    if cell.run in ("", ".", "..") or any(c in cell.run for c in "/\\\0"):
        raise DamagedTimings(f"{folder / _SWEEP_FILE}: run {cell.run!r} is no name of a folder beside it; repair it")
    if cell.status != "done":
        return planned
    run = _run_row(folder / cell.run)
    for column in _KEY:
        if run[column] != planned[column]:
            raise DamagedTimings(
                f"{folder / cell.run}: sweep.json says {column} {planned[column]}, its run {run[column]}; "
                "they are not of the same sweep: run the cell again"
            )
    return run | planned


def _run_row(folder: Path) -> Row:
    """The cell that one run directory is. Raises UnreadableFile, DamagedTimings, NoTimings."""
    run = _converted(_json(folder / _RUN_FILE), _RunFile, folder / _RUN_FILE)
    sides = _sides(folder, run.world_size)
    first = sides[0]
    for name in ("dataset_samples", "batch_size_per_rank"):
        values = sorted({getattr(side, name) for side in sides})
        if len(values) > 1:
            raise DamagedTimings(f"{folder}: the ranks differ in {name}: {values[0]} and {values[-1]}; run it again")
    config, model = run.config, first.model or _Model()
    workers = run.world_size
    if config.parallel == "dp":  # one process, so one rank, that drives several devices
        if config.workers is None:
            raise DamagedTimings(f"{folder / _RUN_FILE}: dp, but config has no workers; expected the number of devices")
        workers = config.workers
    return {
        "run": folder.resolve().name.encode("utf-8", "backslashreplace").decode("utf-8"),
        "source": str(folder),
        "folder": folder,
        "model": config.model,
        "parallel": config.parallel,
        "workers": workers,
        "batch_size_per_worker": first.batch_size_per_rank,
        "status": "done",
        **whole_epoch([_rank_epoch(folder, side) for side in sides]),
        "dataset_samples": first.dataset_samples,
        "sample_bytes": _CHANNELS * config.image_size**2 if config.image_size else None,
        "parameters_elems": model.parameters or None,
        "parameters_bytes": model.bytes or None,
    }


def _sides(folder: Path, world_size: int) -> list[_Side]:
    """The side files of all ranks, in order."""
    sides: dict[int, _Side] = {}
    for path in sorted(folder.glob(_SIDE_FILES)):
        content = _json(path)
        if isinstance(content, dict) and not content.get("epochs"):
            raise NoTimings(
                f"{path}: has no timed epoch; expected `epochs`, which `python -m profiling sweep` writes and a plain "
                "run does not: run a sweep, or give a CSV of timings"
            )
        side = _converted(content, _Side, path)
        if side.rank in sides:
            raise DamagedTimings(f"{path}: another side file beside it is of rank {side.rank} too; keep one run here")
        sides[side.rank] = side
    if sorted(sides) != list(range(world_size)):
        raise DamagedTimings(
            f"{folder}: {_RUN_FILE} says {world_size} ranks, but side files (*.meta.json) are there of rank "
            f"{', '.join(map(str, sorted(sides))) or 'none'}; the slowest rank's epoch counts, so copy all of them"
        )
    return [sides[rank] for rank in range(world_size)]


def _rank_epoch(folder: Path, side: _Side) -> RankEpoch:
    timed = [epoch for epoch in side.epochs if epoch.phase == "timed"]
    if len(timed) != 1:
        raise DamagedTimings(
            f"{folder}: expected one timed epoch of rank {side.rank}, found {len(timed)}; run it again"
        )
    if timed[0].steps > side.full_epoch_steps:
        raise DamagedTimings(
            f"{folder}: rank {side.rank} timed {timed[0].steps} steps, but a whole epoch has {side.full_epoch_steps}; "
            "run it again"
        )
    return RankEpoch(side.rank, timed[0].step_ns, timed[0].data_ns, timed[0].steps, side.full_epoch_steps)


def _json(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except FileNotFoundError as err:
        raise NoTimings(f"{path}: is not there; expected a sweep (sweep.json), a run directory that a sweep wrote "
                        "(run.json, *.meta.json), or a CSV of timings") from err  # fmt: skip
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
    except (msgspec.DecodeError, RecursionError) as err:
        raise DamagedTimings(f"{path}: is damaged: {err}; expected JSON: copy it again, or run the cell again") from err


_File = TypeVar("_File", bound=msgspec.Struct)


def _converted(content: Any, kind: type[_File], path: Path) -> _File:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as err:
        raise DamagedTimings(f"{path}: is not as a sweep writes it: {err}; repair it, or run the cell again") from err


def _check_distinct(rows: list[Row]) -> None:
    for one, two in pairwise(rows):
        if all(one[column] == two[column] for column in _KEY):
            raise DuplicateCell(
                f"{one['source']} and {two['source']} both time {one['model']} {one['parallel']} with "
                f"{one['workers']} workers at batch size {one['batch_size_per_worker']}; give each cell once"
            )


def _name(path: Path) -> str:
    return path.resolve().name.encode("utf-8", "backslashreplace").decode("utf-8")
