"""Cells of sweeps -> the tables across runs: timings, and what the traces of the same cells measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

import pandas as pd

from ..core.schema import Row, records
from ..errors import AnalysisError, NoTraces
from ..results.analysis import analyse
from . import scaling as scaling_module
from . import subtraction as subtraction_module
from .cells import Sweep, load_sweep

Progress = Callable[[Path, int, int], None]


@dataclass(frozen=True)
class SweepAnalysis:
    """The tables of one or more sweeps, each computed when first asked for. Columns: docs/tables.md.

    With `keep_going`, traces that cannot be read leave their cell without measured values, and are named in `failed`.
    `workers` and `cache`: see `analyse`.
    """

    sweep: Sweep
    comm_names: tuple[str, ...] = ()
    keep_going: bool = False
    progress: Progress | None = None
    workers: int | None = None
    cache: str | PathLike[str] | bool = False

    @property
    def timings(self) -> pd.DataFrame:
        """One row per cell: how long an epoch takes."""
        return self.sweep.timings

    @cached_property
    def scaling(self) -> pd.DataFrame:
        """One row per cell: speedups and efficiencies."""
        return scaling_module.scaling(self.timings)

    @cached_property
    def subtraction(self) -> pd.DataFrame:
        """One row per cell with more than one worker: communication by subtraction, and measured."""
        return subtraction_module.subtraction(self.timings, self.measured)

    def mistakes(self, names: Sequence[str]) -> pd.DataFrame:
        """One row per cell with more than one worker and known mistake; `by_hand.MISTAKES` has their names."""
        return subtraction_module.mistakes(self.timings, names)

    @property
    def measured(self) -> pd.DataFrame:
        """One row per cell whose traces were read, as a whole epoch."""
        return self._measured[0]

    @property
    def failed(self) -> tuple[str, ...]:
        """What could not be read and was left out, traces included once they were read."""
        return self.sweep.failed + (self._measured[1] if "_measured" in vars(self) else ())

    @cached_property
    def _measured(self) -> tuple[pd.DataFrame, tuple[str, ...]]:
        rows: list[Row] = []
        failed: list[str] = []
        cells = [row for row in records(self.timings) if row["workers"] > 1 and row["cell"] in self.sweep.folders]
        for number, cell in enumerate(cells):
            folder = self.sweep.folders[cell["cell"]]
            if self.progress:
                self.progress(folder, number, len(cells))
            try:
                rows.append(self._measured_cell(cell, folder))
            except NoTraces:
                rows.append({"cell": cell["cell"], "note": "no traces"})
            except AnalysisError as err:
                if not self.keep_going:
                    raise
                failed.append(str(err))
                rows.append({"cell": cell["cell"], "note": f"traces cannot be used: {err}"})
        return subtraction_module.measured_table(rows), tuple(failed)

    def _measured_cell(self, cell: Row, folder: Path) -> Row:
        analysis = analyse(folder, comm_names=self.comm_names, workers=self.workers, cache=self.cache)
        row = subtraction_module.measured_epoch(cell, analysis.breakdown_steps, analysis.collectives)
        missing = analysis.run.missing_ranks
        if missing:
            row["note"] = scaling_module.joined([row["note"], f"no trace of rank {', '.join(map(str, missing))}"])
        return row


def analyse_sweep(
    *paths: str | PathLike[str],
    comm_names: Iterable[str] = (),
    keep_going: bool = False,
    workers: int | None = None,
    cache: str | PathLike[str] | bool = False,
    progress: Progress | None = None,
) -> SweepAnalysis:
    """The tables of the cells at `paths`: sweep directories, run directories of a sweep, CSVs of timings.

    `keep_going`: see `SweepAnalysis`. `comm_names`, `workers` and `cache`: see `analyse`. `progress` is called with the
    folder of a cell whose traces are about to be read, its number, and how many there are. Raises AnalysisError.
    """
    sweep = load_sweep([Path(path) for path in paths], keep_going=keep_going)
    return SweepAnalysis(sweep, tuple(comm_names), keep_going, progress, workers, cache)
