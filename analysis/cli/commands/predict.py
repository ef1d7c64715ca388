"""The commands that play a run again, and tell what a step would take if something were different."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.small_files import small_file
from ...errors import BadScenario
from ...recording.options import ReadOptions
from ..bundles import with_bundle
from ..output import Writing, complain, writes_tables
from ..reading_options import Runs, analysis_of, finish, reads_traces
from ..tables import print_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class OverlapKind(str, Enum):
    """How much of communication compute hides."""

    perfect = "perfect"


class BatchKind(str, Enum):
    """What becomes of the batch if there are more ranks."""

    kept = "kept"
    shared = "shared"


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
Latencies = Annotated[
    list[str] | None,
    typer.Option("--latency", metavar="[GROUP=]FACTOR", help="The same for the fitted latency of collectives."),
]
Overlap = Annotated[
    OverlapKind | None, typer.Option("--overlap", help="Compute never waits for communication: a bound.")
]
Fuse = Annotated[bool, typer.Option("--fuse", help="Collectives of one kind that could be one are.")]
BucketSizes = Annotated[
    list[float] | None,
    typer.Option("--bucket-mb", metavar="MIB", help="DDP's gradients in buckets of this size (bucket_cap_mb)."),
]
MoreRanks = Annotated[
    list[str] | None,
    typer.Option("--ranks", metavar="[GROUP=]N", help="So many ranks in all; the data-parallel groups grow."),
]
WhichBatch = Annotated[
    BatchKind, typer.Option("--batch", help="With --ranks: as large a batch on each, or one that they share.")
]
ScenarioFile = Annotated[
    Path | None,
    typer.Option("--scenario", metavar="FILE.toml", help="Scenarios of several changes at once: docs/predict.md."),
]


def with_scenarios(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options, which it takes together as its argument `scenarios`."""

    def scenarios(
        *,
        without_straggler: Without = None,
        links: LinkSpeeds = None,
        latency: Latencies = None,
        no_jitter: NoJitter = False,
        overlap: Overlap = None,
        fuse: Fuse = False,
        bucket_mb: BucketSizes = None,
        ranks: MoreRanks = None,
        batch: WhichBatch = BatchKind.kept,
        scenario: ScenarioFile = None,
    ) -> list[dict[str, Any]]:
        several: dict[str, Sequence[Any] | None] = {
            "without_straggler": without_straggler,
            "links": links,
            "latency": latency,
            "bucket_mb": bucket_mb,
            "ranks": ranks,
        }
        found: list[dict[str, Any]] = [
            {name: value, "batch": batch.value} for name, values in several.items() for value in values or []
        ]
        chosen = {"no_jitter": no_jitter, "overlap": overlap and overlap.value, "fuse": fuse}
        found += [{name: value} for name, value in chosen.items() if value]
        return [*found, *(_in_file(scenario) if scenario else [])]

    return with_bundle(command, "scenarios", scenarios)


def _in_file(path: Path) -> list[dict[str, Any]]:
    """The scenarios of a TOML file. Raises BadParameter."""
    try:
        content = tomllib.loads(small_file(path).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise typer.BadParameter(f"{path}: {err}", param_hint="--scenario") from err
    found = content.pop("scenario", None)
    if content or not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise typer.BadParameter(f"{path}: holds no tables called [[scenario]], or others", param_hint="--scenario")
    return found


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
    writing.check("replay_steps")
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
    writing.check("attribution")
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
    writing.check(name)
    print_table(name, analysis_of(runs, reading, details=True), writing)


@reads_traces
@writes_tables
@with_scenarios
def predict_command(runs: Runs, *, scenarios: list[dict[str, Any]], writing: Writing, reading: ReadOptions) -> None:
    """Tell what a step would take if something were different: a row for each option, without any for the usual ones.

    The run is played again as it is, and then changed. The first says how far the second can be trusted: where it is
    more than 10 % off (median over steps), nothing is predicted. Gains are of one change each, and do not add up.

    \b
    Examples:
      {prog} predict traces/my-run
      {prog} predict --without-straggler 5 traces/my-run
      {prog} predict --without-straggler node03 --links between=2 traces/my-run
      {prog} predict --ranks 64 --batch shared traces/my-run
    """
    writing.check("predictions")
    analysis = analysis_of(runs, reading, details=True)
    for note in analysis.run.notes:
        complain(note, kind="note")
    try:
        table = analysis.predict(*scenarios)
    except BadScenario as err:
        raise typer.BadParameter(str(err)) from err
    error = table["replay_error_frac"].max()
    complain(f"played again as it is, a step comes out {error:.1%} off (median over steps)", kind="note")
    writing.table("predictions", table)
    finish(analysis)
