"""`commtrace table kernels`: device time by kernel, operator or annotation."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from ...catalog import CATALOG
from ...recording.options import ReadOptions
from ..output import Writing, print_message, writes_tables
from ..reading_options import Runs, analysis_of, finish, reads_traces
from ..tables import nothing_measured

if TYPE_CHECKING:
    import pandas as pd

    from ...results.analysis import Analysis


class KernelsBy(str, Enum):
    """What a row of device time stands for."""

    kernel = "kernel"
    operator = "operator"
    annotation = "annotation"

    @property
    def table(self) -> str:
        """The name of its table over all ranks."""
        return "annotation_times" if self is KernelsBy.annotation else f"{self.value}s"


@reads_traces
@writes_tables
def kernels_command(
    runs: Runs,
    by: Annotated[
        KernelsBy,
        typer.Option(help="One row per kernel, per operator that launched kernels, or per annotation of your own."),
    ] = KernelsBy.kernel,
    rank: Annotated[
        str | None,
        typer.Option(
            metavar="N|all", help="Show each device of this rank, or of all ranks, instead of the sum over all ranks."
        ),
    ] = None,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print device time: share, calls, and how much of communication waited, moved data, was hidden.

    Rows with the most time come first. With --rank, --top N takes the first N rows of each device.

    \b
    Examples:
      commtrace table kernels traces/my-run
      commtrace table kernels --by operator --top 20 traces/my-run
      commtrace table kernels --by annotation traces/my-run
      commtrace table kernels --rank 0 --output rank0.csv traces/my-run
    """
    if rank is not None and rank != "all" and not (rank.isascii() and rank.isdecimal()):
        raise typer.BadParameter(f"{rank!r} is neither a rank nor all", param_hint="--rank")
    name = by.table if rank is None else f"{by.table}_devices"
    writing.check(name)
    analysis = analysis_of(runs, reading, details=by is not KernelsBy.kernel)
    table = _device_time(analysis, name, rank)
    _show(name, table, analysis, writing)


def _device_time(analysis: Analysis, name: str, rank: str | None) -> pd.DataFrame:
    """Rows over all ranks, of each rank (all), or of one rank. Raises NothingMeasured without rows."""
    table: pd.DataFrame = getattr(analysis, name)
    if rank is not None and rank != "all":
        if int(rank) not in analysis.run.ranks:
            nothing_measured(
                analysis, f"has no trace of rank {rank}, only of {', '.join(map(str, analysis.run.ranks))}"
            )
        table = table[table["rank"] == int(rank)]
    if not len(table):
        nothing_measured(analysis, "the traces show no kernel; capture with ProfilerActivity.CUDA")
    return table


def _show(name: str, table: pd.DataFrame, analysis: Analysis, writing: Writing) -> None:
    for note in (*analysis.run.notes, *(analysis.graph_notes if CATALOG[name].by_launch else ())):
        print_message(note, kind="note")
    writing.table(name, table, ["rank", "device"] if "rank" in table else ())
    finish(analysis)
