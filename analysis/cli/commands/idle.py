"""`commtrace idle`, `gaps` and `syncs`: idle time in sum and gap by gap, and the calls that caused it."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import Runs, analysis_of, reads_traces
from ..tables import nothing_measured, print_table
from .breakdown import BreakdownBy

_SHOWN_GAPS = 10


class SyncsBy(str, Enum):
    """What a row of the calls stands for."""

    rank = "rank"
    step = "step"


@reads_traces
@writes_tables
def idle_command(
    runs: Runs,
    by: Annotated[BreakdownBy, typer.Option(help="A row per device, or per device and step.")] = BreakdownBy.device,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Divide the idle time of every device by what the host did before it launched the next activity.

    Idle time is starved (nothing was launched yet), launching (the launch was under way) or queued (the device had the
    work and did not begin). What is starved divides by what the launching thread did: it was blocked (sync), allocated
    (alloc), loaded data (data), ran an operator (operator) or ran Python outside of all operators (outside).

    \b
    Examples:
      commtrace idle traces/my-run
      commtrace idle --by step --format csv traces/my-run
    """
    name = "idle" if by is BreakdownBy.device else "idle_steps"
    writing.check(name)
    print_table(name, analysis_of(runs, reading, details=True), writing)


@reads_traces
@writes_tables
def gaps_command(
    runs: Runs,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """List the gaps in what each device ran, the longest first, with what the host did in them.

    --top N takes the first N gaps of each device: 10 in tables for people, all in CSV and JSON. The parts of a gap are
    those of `idle`; `cause` is the largest of them, and operator and annotation are those around its begin.

    \b
    Examples:
      commtrace table gaps traces/my-run
      commtrace table gaps --top 3 --where cause=sync traces/my-run
      commtrace table gaps --where step=4 --format csv traces/my-run
    """
    writing.check("gaps")
    if writing.for_people and writing.choice.top is None:
        writing = replace(writing, choice=replace(writing.choice, top=_SHOWN_GAPS))
    print_table("gaps", analysis_of(runs, reading, details=True), writing, ["rank", "device"])


@reads_traces
@writes_tables
def syncs_command(
    runs: Runs,
    by: Annotated[SyncsBy, typer.Option(help="Rows of a rank, or of a rank and step.")] = SyncsBy.rank,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """List the calls of the CUDA or HIP runtime that block or allocate, by name and operator.

    A blocking call (sync: cudaStreamSynchronize, cudaMemcpy ...) lets the device run dry; cudaMalloc and cudaFree
    (alloc) do so too, and in a step they mean that the caching allocator ran out of memory. `lost` is how long devices
    had nothing to do while a call lasted, on the thread that was to launch the next activity.

    \b
    Examples:
      commtrace table syncs traces/my-run
      commtrace table syncs --by step --format csv traces/my-run
    """
    name = "syncs" if by is SyncsBy.rank else "syncs_steps"
    writing.check(name)
    analysis = analysis_of(runs, reading, details=True)
    if not analysis.run.details:
        nothing_measured(
            analysis, "was read without calls of the runtime; recordings have them unless packed --no-details"
        )
    print_table(name, analysis, writing)
