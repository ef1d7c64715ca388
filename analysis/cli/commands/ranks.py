"""`commtrace ranks`: who waits and for whom, a row per rank, or over two dimensions of the job."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from ....common.wording import ranks_in_words
from ...catalog import CATALOG
from ...errors import NothingMeasured
from ...metrics.roles.names import COORDINATES
from ...recording.options import ReadOptions
from ..output import WHOLE_TABLE, Writing, writes_tables
from ..reading_options import Runs, analysis_of, finish, reads_traces
from ..tables import print_table

if TYPE_CHECKING:
    from ...metrics.roles.grid import Grid

_RANKS = "ranks"


class RankNumber(str, Enum):
    """What a cell shows: a column of `ranks` or `breakdown`, without its unit."""

    caused_wait = "caused_wait"
    wait = "wait"
    transfer = "transfer"
    compute = "compute"
    exposed_comm = "exposed_comm"
    idle = "idle"

    @property
    def in_words(self) -> str:
        """What the number is of."""
        return {
            "caused_wait": "waiting of others that it caused",
            "wait": "waiting",
            "transfer": "transfers",
            "compute": "compute",
            "exposed_comm": "exposed communication",
            "idle": "idle time",
        }[self.value]


@reads_traces
@writes_tables
def ranks_command(
    runs: Runs,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS,COLUMNS",
            help="A grid over two dimensions of the job, such as dp,pp: a cell is the mean of its ranks.",
        ),
    ] = None,
    of: Annotated[
        RankNumber | None, typer.Option(help="With --by: what a cell shows.", show_default=RankNumber.caused_wait.value)
    ] = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Show who waits, for whom, and why.

    With --by, ranks stand where they are in the job: tp, cp, pp, dp or ep, as `commtrace table places` has
    them. A strong row or column points to a replica or a stage, a single strong cell to a few ranks.

    \b
    Examples:
      commtrace ranks traces/my-run
      commtrace ranks --by dp,pp traces/my-run
      commtrace ranks --by dp,tp --of compute traces/my-run
    """
    writing.check(_RANKS)
    if by is None:
        if of is not None:
            raise typer.BadParameter(f"says what a grid shows: add --by {_EXAMPLE}", param_hint="--of")
        print_table(_RANKS, analysis_of(runs, reading), writing)
        return
    names = by.split(",")
    if len(set(names)) != 2 or not set(names) <= set(COORDINATES):
        raise typer.BadParameter(f"needs two of {', '.join(COORDINATES)}, such as {_EXAMPLE}", param_hint="--by")
    if not writing.for_people:
        message = f"is for people; `{CATALOG['places'].command}` and `{CATALOG[_RANKS].command}` have its numbers"
        raise typer.BadParameter(message, param_hint="--by")
    if writing.choice != WHOLE_TABLE:
        raise typer.BadParameter(
            "draws all ranks; --where, --sort, --top, --columns and --pivot are for tables", param_hint="--by"
        )
    of = of or RankNumber.caused_wait
    analysis = analysis_of(runs, reading)
    grid = analysis.rank_grid(f"{of.value}_ns", names[0], names[1])
    if not grid.rows:
        raise NothingMeasured(
            f"{analysis.run.name}: no rank has a place in both {names[0]} and {names[1]}; see commtrace table groups"
        )
    writing.text(_drawn(grid, of, writing.screen.width))
    finish(analysis)


_EXAMPLE = f"{COORDINATES[3]},{COORDINATES[2]}"


def _drawn(grid: Grid, of: RankNumber, width: int | None) -> str:
    """The grid as text: mean ms of the ranks of a cell, a star at the largest; in parts where it is too wide."""
    largest = grid.largest
    cells = [
        ["-" if c.mean_ns is None else f"{c.mean_ns / 1e6:,.1f}{'*' if (row, column) == largest else ' '}"
         for column, c in zip(grid.columns, own, strict=True)]
        for row, own in zip(grid.rows, grid.cells, strict=True)
    ]  # fmt: skip
    heads = [f"{grid.of_columns} {number} " for number in grid.columns]
    names = [f"{grid.of_rows} {number}" for number in grid.rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    left = max(map(len, names))
    several = max(len(cell.ranks) for own in grid.cells for cell in own)
    each = f", the mean of {several} ranks" if several > 1 else ""
    lines = [f"{of.in_words}, ms{each}".capitalize()]
    at_once = len(widths) if width is None else max((width - left) // (max(widths) + 2), 1)
    for first in range(0, len(widths), at_once):
        part = slice(first, first + at_once)
        lines.append("")
        for name, own in zip(["", *names], [heads, *cells], strict=True):
            texts = [f"{text:>{w}}" for text, w in zip(own[part], widths[part], strict=True)]
            lines.append("  ".join([f"{name:<{left}}", *texts]))
    if largest is not None:
        row, column = largest
        who = ranks_in_words(grid.cell(row, column).ranks)
        lines += ["", f"* most: {grid.of_rows} {row}, {grid.of_columns} {column}, {who}"]
    return "\n".join(line.rstrip() for line in lines) + "\n"
