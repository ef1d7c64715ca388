"""Tables across runs: timings of a sweep's cells, and what their traces measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from ...common.wording import counted
from ..catalog import described
from ..core.escaping import printable
from ..core.places.place import path_named
from ..core.schema import Row, records
from ..errors import AnalysisError, NoTraces
from ..recording.options import GivenOptions, ReadOptions, takes_reading
from ..results.opening import analyse_with
from . import scaling as scaling_module
from . import subtraction as subtraction_module
from .cells import Sweep, load_sweep

if TYPE_CHECKING:
    from typing_extensions import Unpack

CellProgress = Callable[[Path, int, int], None]
"""Called with the folder of a cell whose traces are about to be read, its number, and how many there are."""


@dataclass(frozen=True, repr=False)
class SweepAnalysis:
    """Tables of one or more sweeps, each computed on first use. Columns: docs/tables.md.

    With the option `keep_going`, traces that cannot be read leave their cell without measured values, and are named in
    `failed`.
    """

    sweep: Sweep
    options: ReadOptions = field(default_factory=ReadOptions)
    progress: CellProgress | None = None

    def __repr__(self) -> str:
        return f"<SweepAnalysis of {printable(self.sweep.name)}: {counted(len(self.timings), 'cell')}; see .summary()>"

    def _repr_html_(self) -> str:
        """The table of scaling as HTML, for notebooks."""
        return f"<pre>{escape(self.summary())}</pre>"

    @property
    def verdict(self) -> str:
        """A sentence on the gain of the most workers over one."""
        return scaling_module.scaling_verdict(self.scaling)

    def summary(self) -> str:
        """The table of scaling, as text."""
        from ..render import as_text

        return as_text("scaling", self.scaling)

    @property
    @described
    def timings(self) -> pd.DataFrame:
        """One row per cell: epoch time."""
        return self.sweep.timings

    @cached_property
    @described
    def scaling(self) -> pd.DataFrame:
        """One row per cell: speedups and efficiencies."""
        return scaling_module.scaling(self.timings)

    @cached_property
    @described
    def subtraction(self) -> pd.DataFrame:
        """One row per cell with more than one worker: communication by subtraction, and measured."""
        return subtraction_module.subtraction(self.timings, self.measured)

    @described
    def mistakes(self, names: Sequence[str]) -> pd.DataFrame:
        """One row per cell with more than one worker and per mistake, named as in `by_hand.KNOWN_MISTAKES`."""
        return subtraction_module.mistakes(self.timings, names)

    @property
    def measured(self) -> pd.DataFrame:
        """One row per cell with traces, scaled to a whole epoch."""
        return self._measured[0]

    @property
    def failed(self) -> tuple[str, ...]:
        """What could not be read and was left out; traces only after they were needed."""
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
                if not self.options.keep_going:
                    raise
                failed.append(str(err))
                rows.append({"cell": cell["cell"], "note": f"traces cannot be used: {err}"})
        return subtraction_module.measured_table(rows), tuple(failed)

    def _measured_cell(self, cell: Row, folder: Path) -> Row:
        analysis = analyse_with(folder, replace(self.options, keep_going=False))  # a damaged trace is not a whole epoch
        row = subtraction_module.measured_epoch(cell, analysis.breakdown_steps, analysis.collectives)
        missing = analysis.run.missing_ranks
        if missing:
            row["note"] = scaling_module.joined([row["note"], f"no trace of rank {', '.join(map(str, missing))}"])
        return row


@takes_reading
def analyse_sweep(
    *paths: str | PathLike[str],
    progress: CellProgress | None = None,
    **reading: Unpack[GivenOptions],
) -> SweepAnalysis:
    """Analyse the cells at `paths`: sweep directories, run directories of a sweep, CSVs of timings.

    `keep_going`: see `SweepAnalysis`, the others: see `analyse`. `progress` is called with the
    folder of a cell whose traces are about to be read, its number, and how many there are. Raises AnalysisError.
    """
    options = ReadOptions.given(**reading)
    return sweep_analysis_of([path_named(path) for path in paths], options, progress)


def sweep_analysis_of(
    paths: Sequence[Path], options: ReadOptions, progress: CellProgress | None = None
) -> SweepAnalysis:
    """Call `analyse_sweep` with the options in one object."""
    return SweepAnalysis(load_sweep(paths, keep_going=options.keep_going), options, progress)
