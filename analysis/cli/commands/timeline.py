"""`commtrace timeline`: write a timeline for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from ....common.disk import content_of
from ....common.wording import counted
from ...errors import UnreadableFile
from ...recording.options import ReadOptions, numbers_in
from ..output import print_message, write_out, write_parts
from ..reading_options import Runs, analysis_of, finish, reads_traces

if TYPE_CHECKING:
    from ...results.analysis import Analysis
    from ...timeline.drawn import Timeline


TimelineFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to this file: a trace for Perfetto, or with --bundle a TAR.",
        show_default="RUN.pftrace in the current folder",
    ),
]
SomeSteps = Annotated[str | None, typer.Option("--step", metavar="N|A-B", help="Draw only this step, or these.")]
SomeRanks = Annotated[
    str | None,
    typer.Option("--draw-ranks", metavar="RANKS", help="Read all ranks, and draw only these, such as 0-7,64-71."),
]
WithTraces = Annotated[
    bool, typer.Option("--bundle", help="Write a TAR that also holds the traces and their clock offsets.")
]
InBrowser = Annotated[
    bool, typer.Option("--open", help="Open the file in the viewer, in a browser; served from 127.0.0.1:9001.")
]


_HELD_BYTES, _PART_BYTES = 256 << 20, 1 << 20


@reads_traces
def timeline_command(
    runs: Runs,
    output: TimelineFile = None,
    step: SomeSteps = None,
    draw_ranks: SomeRanks = None,
    bundle: WithTraces = False,
    open_: InBrowser = False,
    *,
    reading: ReadOptions,
) -> None:
    """Write a file for https://ui.perfetto.dev, or its offline viewers.

    It opens at the rank that others wait for, and shows for each rank: steps, where it was late and
    why, idle time by cause, compute, communication with wait and transfer, copies, and how many
    launches wait; and what its CPU did, where the verdict speaks of CPUs.
    Arrows lead from a late rank to the ranks that waited for it.

    \b
    Examples:
      commtrace timeline traces/my-run
      commtrace timeline --step 3-4 --draw-ranks 0-1 traces/my-run
      commtrace timeline --bundle --output all.tar traces/my-run
    """
    steps, of_ranks = _numbers(step, "--step"), _numbers(draw_ranks, "--draw-ranks")
    analysis = analysis_of(runs, reading, details=True)
    from ...timeline.drawing import run_timeline

    timeline = run_timeline(analysis, steps=steps, ranks=of_ranks)
    for note in (*analysis.run.notes, *timeline.notes):
        print_message(note, kind="note")
    target = output or Path(f"{analysis.run.name}{'.tar' if bundle else '.pftrace'}")
    write_parts(_bundled(analysis, timeline, of_ranks) if bundle else timeline.parts, target)
    if output is None:
        write_out(f"{target}: {_summary(timeline)}\n", None)
    else:
        print_message(f"{target}: {_summary(timeline)}", kind="note")
    if open_:
        _show(target)
    finish(analysis)


def _numbers(text: str | None, option: str) -> list[int] | None:
    """Parse `0-2,5` as [0, 1, 2, 5]; None for None. Raises BadParameter."""
    if text is None:
        return None
    try:
        return numbers_in(text)
    except ValueError as err:
        raise typer.BadParameter(str(err), param_hint=option) from err


def _summary(timeline: Timeline) -> str:
    """A sentence on what was written."""
    size = timeline.sums.size_bytes / 1e6
    lanes = f"; {timeline.moved:,} overlap others on their line, and stand on lanes of their own"
    slices = f"{counted(timeline.slices, 'slice')}, {size:,.1f} MB{lanes if timeline.moved else ''}"
    return f"{slices}; open it in https://ui.perfetto.dev"


def _bundled(analysis: Analysis, timeline: Timeline, ranks: list[int] | None) -> Iterator[bytes]:
    """Yield a TAR with the traces of these ranks, or all, unchanged, and their timeline. Raises UnreadableFile."""
    from ...timeline.bundle import MANIFEST, TIMELINE, bundle, tar

    run = analysis.run
    traces = run.traces if ranks is None else run.traces[run.traces["rank"].isin(ranks)]
    parts = bundle(traces, run.tables.ran, analysis.clocks, timeline.zero_ns)
    if parts.drift_ns:
        print_message(f"clocks drift: in a bundle, the traces are off by up to {parts.drift_ns:,} ns", kind="note")
    manifest = parts.manifest()
    paths = [(file.name, run.files[file.rank][file.cycle]) for file in parts.files]
    with SpooledTemporaryFile(_HELD_BYTES) as held:  # a TAR gives the size of a file before its content
        held.writelines(timeline.parts)
        held.seek(0)
        yield from tar([
            (MANIFEST, len(manifest), [manifest]),
            (TIMELINE, timeline.sums.size_bytes, iter(lambda: held.read(_PART_BYTES), b"")),
            *((name, size, _content(path, size)) for name, path in paths for size in [path.stat().st_size]),
        ])  # fmt: skip


def _content(path: Path, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file. Raises UnreadableFile."""
    try:
        yield from content_of(path, size)
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}; try again when nothing writes to it") from err


def _show(file: Path) -> None:
    """Open the file in the viewer."""
    from ..serving import serve_once, server_of

    server = server_of(file)
    print_message(f"waiting for {server.viewer_url} to read the file; end with ctrl-C", kind="note")
    serve_once(server)
