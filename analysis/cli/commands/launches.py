"""`commtrace launches` and `queue`: the cost of launching, and the queues of streams."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, writes_tables
from ..reading_options import Runs, analysis_of, reads_traces
from ..tables import print_table


class LaunchesBy(str, Enum):
    """What a row of the launches stands for."""

    kind = "kind"
    name = "name"


class QueueBy(str, Enum):
    """What a row of the queues stands for."""

    stream = "stream"
    time = "time"


@reads_traces
@writes_tables
def launches_command(
    runs: Runs,
    by: Annotated[LaunchesBy, typer.Option(help="Rows of a rank and kind, or of a rank and kernel.")] = LaunchesBy.kind,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Count launches: CPU time in their calls, the delay until a kernel starts, and kernels shorter than their call.

    Short kernels and long calls are the CPU's cost of launching, which CUDA graphs or a compiler take away. Long delays
    mean that the CPU is far ahead of the device, which is good, or that streams wait for each other. With --by name,
    --top N takes the first N kernels of each rank.

    \b
    Examples:
      commtrace table launches traces/my-run
      commtrace table launches --by name --top 10 traces/my-run
    """
    name = "launches" if by is LaunchesBy.kind else "launches_names"
    writing.check(name)
    print_table(name, analysis_of(runs, reading, details=True), writing, ["rank"])


@reads_traces
@writes_tables
def queue_command(
    runs: Runs,
    by: Annotated[QueueBy, typer.Option(help="Rows of a stream, or of a stream and time.")] = QueueBy.stream,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Show how many launches wait on each stream: mean, most, time with none, and time with a full queue.

    Where none waits for most of the time, the CPU does not keep ahead of the device. A stream has room for 1,024.

    \b
    Examples:
      commtrace table queue traces/my-run
      commtrace table queue --by time --where rank=0 --format csv traces/my-run
    """
    name = "queue" if by is QueueBy.stream else "queue_times"
    writing.check(name)
    print_table(name, analysis_of(runs, reading), writing)
