"""The ways into a run that is looked at cycle by cycle: once, for the library, or again and again, for a watch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path

import pandas as pd

from ..catalog import described
from ..core.escaping import printable
from ..core.schema import Row
from ..core.tables.cycles import CYCLES
from ..errors import AnalysisError, NoTraces, UnreadableFile
from ..recording.options import ReadOptions
from ..results.analysis import Analysis
from ..results.opening import analyse_with
from .done import DoneCycles, open_cycles
from .files import RunFolder
from .follow import Analyse
from .ledger import numbered
from .rows import cycle_row, unusable_row


@dataclass(frozen=True, repr=False)
class CycleAnalysis:
    """The cycles of one run directory, each analysed for itself. Columns: docs/tables.md."""

    path: Path
    options: ReadOptions

    def __repr__(self) -> str:
        return f"<CycleAnalysis of {printable(str(self.path))}; see .cycles>"

    @cached_property
    @described
    def cycles(self) -> pd.DataFrame:
        """One row per profiling cycle. Raises NoTraces, UnreadableFile."""
        return CYCLES.frame(self._rows())

    def _rows(self) -> Iterator[Row]:
        folder, analysis_of = RunFolder(self.path), analysis_by(self.options)
        try:
            listing = folder.listing(lambda *_: False)
        except OSError as err:
            raise UnreadableFile(f"{self.path}: cannot be read: {err.strerror}") from err
        if listing is None or not listing.traces:
            raise NoTraces(f"{self.path}: holds no traces; expected a run directory")
        name, run_id = folder.name, folder.run_json()
        for cycle, traces in open_cycles(listing.traces, DoneCycles()).items():
            paths = folder.paths(listing.traces[worker][number] for worker, number in traces.items())
            try:
                row = cycle_row(analysis_of(paths, True))
            except AnalysisError as err:
                row = unusable_row(str(err))
            yield numbered(name, run_id, cycle, row)


def analyse_cycles(
    path: str | PathLike[str], *, comm_names: str | Iterable[str] = (), workers: int | None = None
) -> CycleAnalysis:
    """The cycles of the run directory at `path`, one by one: its `cycles` are what `commtrace watch --once` reports.

    Of damaged files what stands before the damage is used, and the row's `note` says so. The arguments are those of
    `analyse`.
    """
    return CycleAnalysis(Path(path), ReadOptions.given(comm_names=comm_names, workers=workers))


def analysis_by(options: ReadOptions) -> Analyse:
    """What analyses the files of a cycle. Each is read once, so nothing is kept."""

    def analyse_files(paths: Sequence[Path], keep_going: bool) -> Analysis:
        return analyse_with(list(paths), replace(options, keep_going=keep_going, cache=False))

    return analyse_files
