"""`commtrace table contention`: what kernels take longer because their device communicates meanwhile."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import Runs, analysis_of, reads_traces
from ..tables import print_table


class ContentionBy(str, Enum):
    """What a row stands for."""

    category = "category"
    kernel = "kernel"


@reads_traces
@writes_tables
def contention_command(
    runs: Runs,
    by: Annotated[
        ContentionBy, typer.Option(help="Rows of a category of kernels, or of a kernel with the shapes of its inputs.")
    ] = ContentionBy.category,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Show what overlapping costs: how much longer kernels run while their device communicates.

    Communication takes multiprocessors and memory bandwidth from the kernels beside it, so that what it
    hides is not free. The same kernel on the same shapes is compared with and without communication, which
    needs shapes of operators: capture with record_shapes=True. With --by kernel, --top N takes the first N
    kernels of each rank.

    \b
    Examples:
      commtrace table contention traces/my-run
      commtrace table contention --by kernel --top 10 traces/my-run
    """
    name = "contention" if by is ContentionBy.category else "contention_kernels"
    writing.check(name)
    print_table(name, analysis_of(runs, reading, details=True), writing, ["rank"])
