"""`commtrace pack`: write recordings."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ....common.wording import counted
from ...core.places.place import path_named
from ...core.process import finishing_writes
from ...errors import NoTraces, TraceError
from ...reading.packing import PackedTrace, copy_side_files, pack
from ...reading.pool import Reading
from ...reading.trace_files import trace_files
from ...recording.options import ReadOptions
from ..inputs import PathOrUrl
from ..output import asking, print_message, reading_progress, write_out
from ..reading_options import Runs, reads_traces

PackedInto = Annotated[
    PathOrUrl | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        parser=path_named,
        help="Write the recordings to this folder, together with the run's side files.",
        show_default="beside each trace",
    ),
]
KeptDetails = Annotated[
    bool, typer.Option("--details/--no-details", help="Keep operators, runtime calls and allocations, too.")
]


@reads_traces
def pack_command(runs: Runs, output: PackedInto = None, details: KeptDetails = True, *, reading: ReadOptions) -> None:
    """Write a recording of each trace.

    A recording gives the same tables as its trace, is about 100 times smaller than the JSON, and is read about 20 times
    faster. Every command takes a folder of recordings like a folder of traces. A recording beside its trace is read
    instead of it, until the trace changes. With --no-details it is a third as large, and causes of idle time, what a
    step would gain, tables of operators, replay and predictions still need the traces.

    \b
    Examples:
      commtrace pack traces/my-run
      commtrace pack --output packed/my-run traces/my-run
      commtrace summary packed/my-run
      commtrace pack --no-details -o packed/my-run traces/my-run
      commtrace pack s3://bucket/my-run -o s3://bucket/packed/my-run
    """
    begun = time.monotonic()
    with asking(runs):
        traces, notes, run_facts = trace_files(runs)
    for note in notes:
        print_message(note, kind="note")
    options = replace(reading, details=details, cache=False, run_facts=run_facts)
    done: list[PackedTrace] = []
    failed: list[TraceError] = []
    with (
        finishing_writes(),
        Reading(traces, options) as open_files,
        reading_progress(open_files, begun) as progress,
    ):
        for packed in pack(open_files, options, output, progress):
            if isinstance(packed, PackedTrace):
                done.append(packed)
            elif not reading.keep_going:
                raise packed
            else:
                failed.append(packed)
    if not done:
        raise NoTraces(f"{runs[0]}: no trace could be packed: " + "; ".join(map(str, failed)))
    if output is not None:
        copy_side_files([trace.path for trace in traces], output)
    for note in (note for packed in done for note in packed.repaired):
        print_message(note, kind="note")
    write_out(_summary(done, output, time.monotonic() - begun), None)
    for failure in (*failed, *(packed.damage for packed in done if packed.damage)):
        print_message(str(failure))
    if failed or any(packed.damage for packed in done):
        raise typer.Exit(1)


def _summary(done: list[PackedTrace], output: Path | None, seconds: float) -> str:
    read_bytes, on_disk = sum(each.read_bytes for each in done), sum(each.trace_bytes for each in done)
    recorded = sum(each.recording_bytes for each in done)
    where = "beside them" if output is None else f"in {output}"
    packed = f" ({_size(on_disk)} on disk)" if on_disk != read_bytes else ""
    before, after = f"{counted(len(done), 'trace')}, {_size(read_bytes)} of JSON{packed}", f"{_size(recorded)}"
    return f"{before} -> {after} of recordings {where}: 1/{read_bytes / max(recorded, 1):,.0f}, in {seconds:.1f} s\n"


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} kB"
