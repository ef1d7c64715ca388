"""Read sweep directories, single runs and CSVs of timings: one row per cell with its epoch time.

traces/<sweep>/sweep.json says which cells there are and how each ended; the side files of a cell's run directory hold
the epochs of every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pandas as pd

from ...contract.modes import MODES
from ...contract.rank import EpochTime, RankFile
from ...contract.run import RUN_FILE
from ...contract.sweep import SWEEP_FILE, SweepCell
from ..core.escaping import encodable
from ..core.schema import Row
from ..core.tables.sweeps import TIMINGS
from ..errors import AnalysisError, DamagedTimings, DuplicateCell, NoTimings, UnreadableFile
from .files import run_file, side_files, sweep_file
from .timings_csv import csv_rows

_KEY = ("model", "parallel", "workers", "batch_size_per_worker")
_YEARS = 100
_LONGEST_NS = _YEARS * 366 * 86_400 * 10**9
_CHANNELS = 3  # of an image, one byte each


@dataclass(frozen=True)
class RankEpoch:
    """The timed epoch of one rank: `steps` of the `full_steps` of an epoch, with data loading apart."""

    rank: int
    step_ns: int
    data_ns: int
    steps: int
    full_steps: int
    step_spread_frac: float | None = None

    def whole(self, measured_ns: int) -> int:
        """Scale a time over `steps` to a whole epoch, in ns."""
        return (measured_ns * self.full_steps + self.steps // 2) // self.steps


@dataclass(frozen=True)
class Sweep:
    """Cells of one or more sweeps: TIMINGS, and the run directory of each cell that has one.

    `failed` says what could not be used and was left out.
    """

    name: str
    timings: pd.DataFrame
    folders: Mapping[int, Path]
    failed: tuple[str, ...] = ()


def load_sweep(paths: Sequence[Path], *, keep_going: bool = False) -> Sweep:
    """Load all cells at `paths`: sweep directories, run directories with a timed epoch, CSVs of timings.

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
    rows.sort(key=lambda r: (r["model"], list(MODES).index(r["parallel"]), r["batch_size_per_worker"], r["workers"]))
    _check_distinct(rows)
    cells = [{**row, "cell": number} for number, row in enumerate(rows)]
    folders = {row["cell"]: row["folder"] for row in cells if row.get("folder") is not None}
    return Sweep(_name(paths[0]), TIMINGS.frame(cells), folders, tuple(failed))


def whole_epoch(ranks: Sequence[RankEpoch]) -> Row:
    """Columns of TIMINGS from the ranks' timed epochs: the slowest rank's, scaled to a whole epoch."""
    slowest = max(ranks, key=lambda r: (r.whole(r.step_ns), -r.rank))
    return {
        "epoch_ns": slowest.whole(slowest.step_ns),
        "timed_steps": slowest.steps,
        "epoch_steps": slowest.full_steps,
        "data_ns": max(r.whole(r.data_ns) for r in ranks),
        "step_spread_frac": slowest.step_spread_frac,
    }


def _rows(path: Path, failed: list[str] | None) -> list[Row]:
    """Cells at one path; failures of single cells are added to `failed`, or raised if it is None."""
    if path.name == SWEEP_FILE:
        return _sweep_rows(path.parent, failed)
    try:
        there, is_folder, is_sweep = path.exists(), path.is_dir(), (path / SWEEP_FILE).exists()
    except OSError as err:  # a folder on the way may not be entered, or the name is too long
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
    if not there:
        raise NoTimings(f"{path}: no such file or directory; expected a sweep, a run directory or a CSV of timings")
    if is_sweep:
        return _sweep_rows(path, failed)
    return [_run_row(path)] if is_folder else [{**row, "source": str(path)} for row in csv_rows(path)]


def _sweep_rows(folder: Path, failed: list[str] | None) -> list[Row]:
    sweep = sweep_file(folder / SWEEP_FILE)
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


def _planned(folder: Path, cell: SweepCell) -> Row:
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


def _cell_row(folder: Path, cell: SweepCell) -> Row:
    planned = _planned(folder, cell)
    if cell.run in ("", ".", "..") or any(c in cell.run for c in "/\\\0"):
        raise DamagedTimings(
            f"{folder / SWEEP_FILE}: run {cell.run!r} is not the name of a folder beside it; repair it"
        )
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
    """The cell of one run directory. Raises UnreadableFile, DamagedTimings, NoTimings."""
    run = run_file(folder)
    sides = side_files(folder, run.world_size)
    first = sides[0]
    for name in ("dataset_samples", "batch_size_per_rank"):
        values = {getattr(side, name) for side in sides}
        if len(values) > 1:
            listed = " and ".join(map(str, sorted(values, key=str)))
            raise DamagedTimings(f"{folder}: the ranks differ in {name}: {listed}; run it again")
    config, model = run.config, first.model
    epoch = whole_epoch([_rank_epoch(folder, side) for side in sides])
    if max(epoch["epoch_ns"], epoch["data_ns"]) > _LONGEST_NS:
        raise DamagedTimings(f"{folder}: its epoch would take more than {_YEARS} years; run it again")
    workers = run.world_size
    if MODES[config.parallel].drives_workers:
        if first.dp is None:
            drove = f"which devices {config.parallel} drove"
            raise DamagedTimings(f"{folder}: its side file does not say {drove}; run it again")
        workers = len(first.dp.devices)
    batch_size = config.batch_size or first.batch_size_per_rank
    if batch_size is None:
        raise DamagedTimings(f"{folder / RUN_FILE}: config has no batch_size, nor has a side file; run it again")
    return {
        "run": _name(folder),
        "source": str(folder),
        "folder": folder,
        "model": config.model,
        "parallel": config.parallel,
        "workers": workers,
        "batch_size_per_worker": batch_size,
        "status": "done",
        **epoch,
        "shared_cores": _shared_cores(sides),
        "dataset_samples": first.dataset_samples,
        "sample_bytes": _CHANNELS * config.image_size**2 if config.image_size else None,
        "parameters_elems": (model and model.parameters) or None,
        "parameters_bytes": (model and model.bytes) or None,
    }


def _rank_epoch(folder: Path, side: RankFile) -> RankEpoch:
    assert side.rank is not None
    assert side.epochs is not None
    assert side.full_epoch_steps is not None
    timed = [epoch for epoch in side.epochs if epoch.phase == "timed"]
    if len(timed) != 1:
        raise DamagedTimings(
            f"{folder}: expected one timed epoch of rank {side.rank}, found {len(timed)}; run a sweep, or compare "
            "trainings of several epochs with `table training`"
        )
    if timed[0].steps > side.full_epoch_steps:
        raise DamagedTimings(
            f"{folder}: rank {side.rank} timed {timed[0].steps} steps, but a whole epoch has {side.full_epoch_steps}; "
            "run it again"
        )
    spread = _spread_frac(timed[0])
    return RankEpoch(side.rank, timed[0].step_ns, timed[0].data_ns, timed[0].steps, side.full_epoch_steps, spread)


def _spread_frac(epoch: EpochTime) -> float | None:
    low, middle, high = epoch.step_p10_ns, epoch.step_median_ns, epoch.step_p90_ns
    if low is None or not middle or high is None:
        return None
    return (high - low) / middle


def _shared_cores(sides: Sequence[RankFile]) -> int | None:
    """Cores of the machine if all ranks compute on its CPU; else None."""
    machines = {(side.machine.boot_id or side.host, side.machine.usable_cores) for side in sides}
    if len(machines) > 1 or any(side.device.type != "cpu" for side in sides):
        return None
    return machines.pop()[1]


def _check_distinct(rows: list[Row]) -> None:
    for first, second in pairwise(rows):
        if all(first[column] == second[column] for column in _KEY):
            raise DuplicateCell(
                f"{first['source']} and {second['source']} both time {first['model']} {first['parallel']} with "
                f"{first['workers']} workers at batch size {first['batch_size_per_worker']}; give each cell once"
            )


def _name(path: Path) -> str:
    return encodable(path.resolve().name)
