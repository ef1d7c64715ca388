"""The commands that play a run again, and tell what a step would take if something were different."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from ...recording.options import ReadOptions
from ..output import Writing, complain, writes_tables
from ..reading_options import Runs, analysis_of, finish, reads_traces
from ..tables import print_table

if TYPE_CHECKING:
    from ...replay.scenarios import Scenario
    from ...results.analysis import Analysis

Without = Annotated[
    list[str] | None,
    typer.Option("--without-straggler", metavar="WHO", help="These ranks (5, 0-3), a host, or all, as the median."),
]
LinkSpeeds = Annotated[
    list[str] | None,
    typer.Option(
        "--links",
        metavar="[GROUP=]FACTOR",
        help="So much faster links, of all process groups or of one; `between` are those over several hosts.",
    ),
]
NoJitter = Annotated[bool, typer.Option("--no-jitter", help="Compute as its mean, transfer as its median.")]
Overlap = Annotated[bool, typer.Option("--overlap", help="Compute never waits for communication: a bound.")]


@reads_traces
@writes_tables
def replay_command(runs: Runs, *, writing: Writing, reading: ReadOptions) -> None:
    """Play the run again: everything begins when all that it waits for is done.

    What waits for what is found in the order on each stream, launches, calls of the runtime, and collectives over all
    ranks. How far the steps come out as measured says how far `predict` can be trusted.

    \b
    Examples:
      {prog} replay traces/my-run
    """
    analysis = analysis_of(runs, reading, details=True)
    steps = analysis.replay_steps
    if len(steps):
        complain(f"played again, a step comes out {steps['error_frac'].abs().median():.1%} off (median)", kind="note")
    print_table("replay_steps", analysis, writing)


@reads_traces
@writes_tables
def attribution_command(runs: Runs, *, writing: Writing, reading: ReadOptions) -> None:
    """Tell which part of the run makes it slower than it were without jitter: compute, collectives, ranks, hosts.

    Slowdown: a step with that part as it is and all else without jitter, over one without any jitter. Gain: by how much
    a step would be shorter if that part alone had none. Neither adds up.

    \b
    Examples:
      {prog} attribution traces/my-run
    """
    print_table("attribution", analysis_of(runs, reading, details=True), writing)


class PathBy(str, Enum):
    """What a row of the critical path is."""

    rank = "rank"
    step = "step"
    piece = "piece"


@reads_traces
@writes_tables
def critical_path_command(
    runs: Runs,
    by: Annotated[PathBy, typer.Option(help="A row per rank; per step and rank; or per long piece.")] = PathBy.rank,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Follow the run back from its end: from each activity to what it waited for last, on whatever rank.

    What is not on this path made nothing longer. It runs through compute, copies, transfers, launches, and what a CPU
    did before them, but never through waiting: there it goes on with the rank that was waited for.

    \b
    Examples:
      {prog} critical-path traces/my-run
      {prog} critical-path --by piece --format csv traces/my-run
    """
    name = {PathBy.rank: "critical_path", PathBy.step: "critical_path_steps", PathBy.piece: "critical_path_pieces"}[by]
    print_table(name, analysis_of(runs, reading, details=True), writing)


@reads_traces
@writes_tables
def predict_command(
    runs: Runs,
    without_straggler: Without = None,
    links: LinkSpeeds = None,
    no_jitter: NoJitter = False,
    overlap: Overlap = False,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Tell what a step would take if something were different: a row for each option, without any for the usual ones.

    The run is played again as it is, and then changed. The first says how far the second can be trusted: where it is
    more than 10 % off (median over steps), nothing is predicted. Gains are of one change each, and do not add up.

    \b
    Examples:
      {prog} predict traces/my-run
      {prog} predict --without-straggler 5 traces/my-run
      {prog} predict --without-straggler node03 --links between=2 traces/my-run
    """
    analysis = analysis_of(runs, reading, details=True)
    for note in analysis.run.notes:
        complain(note, kind="note")
    chosen = [*_without(analysis, without_straggler or []), *_faster(analysis, links or [])]
    table = analysis.predict(*chosen, *_bounds(no_jitter=no_jitter, overlap=overlap))
    error = table["replay_error_frac"].max()
    complain(f"played again as it is, a step comes out {error:.1%} off (median over steps)", kind="note")
    writing.table("predictions", table)
    finish(analysis)


def _without(analysis: Analysis, names: list[str]) -> Iterator[Scenario]:
    from ...replay.scenarios import without_stragglers

    hosts = analysis.run.hosts
    for who in names:
        if who == "all":
            yield without_stragglers()
        elif who in hosts.values():
            yield without_stragglers([rank for rank, host in hosts.items() if host == who], who)
        else:
            yield without_stragglers(_ranks(analysis.run.ranks, who))


def _ranks(known: list[int], who: str) -> list[int]:
    """The ranks of `0-3,7`. Raises BadParameter."""
    parts = [re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip()) for part in who.split(",")]
    found = [rank for rank in known for p in parts if p and int(p[1]) <= rank <= int(p[2] or p[1])]
    if not found or None in parts:
        raise typer.BadParameter(f"{who!r} is no rank or host of this run", param_hint="--without-straggler")
    return found


def _faster(analysis: Analysis, links: list[str]) -> Iterator[Scenario]:
    from ...replay.links import Links, links_of
    from ...replay.scenarios import faster_links

    for text in links:
        group, _, factor = text.rpartition("=")
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", factor) or not float(factor):
            raise typer.BadParameter(f"{text!r} is not a factor, such as 2 or between=1.5", param_hint="--links")
        known = Links(analysis.collectives, analysis.fits, analysis.run.hosts)
        yield faster_links(float(factor), links_of(known, group), group)


def _bounds(*, no_jitter: bool, overlap: bool) -> Iterator[Scenario]:
    from ...replay import scenarios

    if no_jitter:
        yield scenarios.no_jitter()
    if overlap:
        yield scenarios.perfect_overlap()
