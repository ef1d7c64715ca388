"""The command that writes a timeline."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.wording import counted
from ...recording.options import ReadOptions
from ..output import complain, write_out, write_parts
from ..reading_options import Runs, analysis_of, finish, reads_traces

if TYPE_CHECKING:
    from ...timeline.drawing import Timeline

_MOST = 1_000_000

TimelineFile = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write there.", show_default="RUN.pftrace, in this folder"),
]
SomeSteps = Annotated[str | None, typer.Option("--step", metavar="N|A-B", help="Only this step, or these.")]
SomeRanks = Annotated[str | None, typer.Option("--ranks", metavar="RANKS", help="Only these, as in 0-7,64-71.")]


@reads_traces
def timeline_command(
    runs: Runs,
    output: TimelineFile = None,
    step: SomeSteps = None,
    ranks: SomeRanks = None,
    *,
    reading: ReadOptions,
) -> None:
    """Write a file for https://ui.perfetto.dev, or its offline viewers.

    For each rank: steps, compute, communication with wait and transfer, copies, where it was late and why. Arrows lead
    from a late rank to those that waited for it.

    \b
    Examples:
      {prog} timeline traces/my-run
      {prog} timeline --step 3-4 --ranks 0-1 --output part.pftrace traces/my-run
    """
    steps, of_ranks = _numbers(step, "--step"), _numbers(ranks, "--ranks")
    analysis = analysis_of(runs, reading)
    found = analysis.drawn(steps=steps, ranks=of_ranks)
    for note in analysis.run.notes:
        complain(note, kind="note")
    target = output or Path(f"{analysis.run.name}.pftrace")
    write_parts(found.parts, target)
    if output is None:
        write_out(f"{target}: {_told(found)}\n", None)
    else:
        complain(f"{target}: {_told(found)}", kind="note")
    finish(analysis)


def _numbers(text: str | None, option: str) -> list[int] | None:
    """`0-2,5` as [0, 1, 2, 5], None for None. Raises BadParameter."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip())
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if not first <= last < first + _MOST:
            raise typer.BadParameter(f"{text!r} is not a number or a range, such as 3 or 0-7", param_hint=option)
        found.extend(range(first, last + 1))
    return found


def _told(timeline: Timeline) -> str:
    """What was written, in a sentence."""
    size = sum(map(len, timeline.parts)) / 1e6
    moved = (
        f"; {timeline.moved:,} overlap others on their line, and stand on lanes of their own" if timeline.moved else ""
    )
    return f"{counted(timeline.slices, 'slice')}, {size:,.1f} MB{moved}; open it in https://ui.perfetto.dev"
