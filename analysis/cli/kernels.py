"""The commands on device time: by kernel and operator, and by GPU."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import NothingMeasured
from ..recording.options import ReadOptions
from .output import Format, Output, OutputFormat, ascii_only, complain, write
from .reading_options import Runs, analysis_of, finish, reads_traces

if TYPE_CHECKING:
    import pandas as pd

    from ..results.analysis import Analysis


class By(str, Enum):
    """What a row of the device time is."""

    kernel = "kernel"
    operator = "operator"


Top = Annotated[int | None, typer.Option("--top", metavar="N", min=1, help="Only the N longest rows of each device.")]


@reads_traces
def kernels_command(
    runs: Runs,
    by: Annotated[By, typer.Option(help="A row per kernel, or per operator that launched kernels.")] = By.kernel,
    rank: Annotated[
        str | None,
        typer.Option(metavar="N|all", help="Rows for each device of this rank, or of every rank, not of all together."),
    ] = None,
    top: Top = None,
    output_format: OutputFormat = Format.table,
    output: Output = None,
    *,
    reading: ReadOptions,
) -> None:
    """Device time by kernel or operator: share, calls, and how much of communication waited, moved data, was hidden."""
    if rank is not None and rank != "all" and not (rank.isascii() and rank.isdecimal()):
        raise typer.BadParameter(f"{rank!r} is neither a rank nor all", param_hint="--rank")
    analysis = analysis_of(runs, reading, details=by is By.operator)
    table = _device_time(analysis, by, rank)
    if top is not None:
        table = table.head(top) if rank is None else table.groupby(["rank", "device"]).head(top)
    _show(f"{by.value}s" if rank is None else f"{by.value}s_devices", table, analysis, output_format, output)


@reads_traces
def gpus_command(
    runs: Runs,
    output_format: OutputFormat = Format.table,
    output: Output = None,
    *,
    reading: ReadOptions,
) -> None:
    """Utilisation, SM efficiency and achieved occupancy of every GPU, as TensorBoard's profiler plugin defines them."""
    analysis = analysis_of(runs, reading)
    if not len(analysis.gpus):
        _nothing(analysis, "no GPU ran a kernel; capture with ProfilerActivity.CUDA, or use `kernels` for a CPU run")
    _show("gpus", analysis.gpus, analysis, output_format, output)


COMMANDS: dict[str, Callable[..., None]] = {"kernels": kernels_command, "gpus": gpus_command}
EXAMPLES = {
    "kernels": """\b
Examples:
  {prog} kernels traces/my-run
  {prog} kernels --by operator --top 20 traces/my-run
  {prog} kernels --rank 0 --format csv --output rank0.csv traces/my-run
""",
    "gpus": """\b
Examples:
  {prog} gpus traces/my-run
  {prog} gpus --format json traces/my-run | jq '.rows[].utilisation_frac'
""",
}


def _device_time(analysis: Analysis, by: By, rank: str | None) -> pd.DataFrame:
    """The rows of all ranks together, of each (all), or of one. Raises NothingMeasured where there are none."""
    table: pd.DataFrame = getattr(analysis, f"{by.value}s" if rank is None else f"{by.value}s_devices")
    if rank is not None and rank != "all":
        if int(rank) not in analysis.run.ranks:
            _nothing(analysis, f"has no trace of rank {rank}, only of {', '.join(map(str, analysis.run.ranks))}")
        table = table[table["rank"] == int(rank)]
    if not len(table):
        _nothing(analysis, "the traces show no kernel; capture with ProfilerActivity.CUDA")
    return table


def _nothing(analysis: Analysis, why: str) -> None:
    for failure in analysis.run.failed:
        complain(failure)
    raise NothingMeasured(f"{analysis.run.name}: {why}")


def _show(name: str, table: pd.DataFrame, analysis: Analysis, output_format: Format, output: Output) -> None:
    from ..render import FORMATS, as_text

    for note in analysis.run.notes:
        complain(note, kind="note")
    if output_format is Format.table:
        write(as_text(name, table, ascii_only=ascii_only()), output)
    else:
        write(FORMATS[output_format.value](name, table), output)
    finish(analysis)
