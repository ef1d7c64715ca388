"""A number of each rank over two dimensions of the job, such as data parallelism and pipeline stages."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import pandas as pd

from .names import COORDINATES

_STANDS_OUT = 1.05  # times the median of all cells


class Cell(NamedTuple):
    """The mean of a cell's ranks; None where none of them has the number."""

    mean_ns: float | None
    ranks: tuple[int, ...]


class Grid(NamedTuple):
    """Rows and columns by their numbers in two dimensions; `cells` has one list per row."""

    of_rows: str
    of_columns: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    cells: list[list[Cell]]

    @property
    def largest(self) -> tuple[int, int] | None:
        """Row and column, by their numbers, of the cell with most; None where it is not 5% above the median."""
        known = [
            (cell.mean_ns, row, column)
            for row, cells in zip(self.rows, self.cells, strict=True)
            for column, cell in zip(self.columns, cells, strict=True)
            if cell.mean_ns is not None
        ]
        if len(known) < 2:
            return None
        most_ns, row, column = max(known)
        return (row, column) if most_ns > _STANDS_OUT * median(ns for ns, _, _ in known) else None

    def cell(self, row: int, column: int) -> Cell:
        """The cell with these numbers."""
        return self.cells[self.rows.index(row)][self.columns.index(column)]


def grid_over(places: pd.DataFrame, values: pd.Series[float], of_rows: str, of_columns: str) -> Grid:
    """The means of `values`, by rank, over two columns of the table `places`; ranks that lack a place are left out."""
    placed = places[places[[of_rows, of_columns]].notna().all(axis=1)]
    members: dict[tuple[int, int], list[int]] = {}
    for rank, row, column in zip(placed["rank"], placed[of_rows], placed[of_columns], strict=True):
        members.setdefault((int(row), int(column)), []).append(int(rank))
    rows, columns = (tuple(sorted({key[place] for key in members})) for place in (0, 1))
    known = values.dropna()

    def cell(ranks: list[int]) -> Cell:
        own = known.reindex(ranks).dropna()
        return Cell(float(own.mean()) if len(own) else None, tuple(ranks))

    return Grid(of_rows, of_columns, rows, columns, [[cell(members.get((r, c), [])) for c in columns] for r in rows])


def usual_dimensions(places: pd.DataFrame) -> tuple[str, str] | None:
    """The two dimensions of most use, each with several numbers, as rows and columns: data parallelism by stages first.

    None where ranks differ in fewer than two.
    """
    several = [name for name in COORDINATES if places[name].dropna().nunique() > 1]
    ordered = [name for name in ("dp", "pp", "ep", "cp", "tp") if name in several]
    return (ordered[0], ordered[1]) if len(ordered) > 1 else None
