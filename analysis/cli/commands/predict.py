"""The commands that play a run again, and tell what a step would take if something were different."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.small_files import small_file
from ...errors import BadScenario
from ...recording.options import ReadOptions
from ..bundles import with_bundle
from ..output import Writing, complain, writes_tables
from ..reading_options import Runs, analysis_of, finish, reads_traces
from ..tables import print_table

if TYPE_CHECKING:
    from ...results.analysis import Analysis

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
    typer.Option(
        "--without-straggler",
        metavar="WHO",
        help="Make these ranks (5 or 0-3), a host, or all ranks as fast as the median rank.",
    ),
]
LinkSpeeds = Annotated[
    list[str] | None,
    typer.Option(
        "--links",
        metavar="[GROUP=]FACTOR",
        help="Make links this many times faster: of all process groups, of one, or, with GROUP `between`, of those "
        "over several hosts.",
    ),
]
AsOthers = Annotated[
    list[str] | None,
    typer.Option(
        "--links-as-others",
        metavar="WHO",
        help="Make the links of these ranks (4-7), a host, or a process group as fast as those of others like them; "
        "`slow` are all that are slower.",
    ),
]
NoJitter = Annotated[bool, typer.Option("--no-jitter", help="Replace compute by its mean and transfer by its median.")]
Latencies = Annotated[
    list[str] | None,
    typer.Option("--latency", metavar="[GROUP=]FACTOR", help="Divide the fitted latency of collectives by this."),
]
Overlap = Annotated[
    OverlapKind | None,
    typer.Option("--overlap", help="Let compute never wait for communication; the gain is an upper bound."),
]
Fuse = Annotated[bool, typer.Option("--fuse", help="Merge collectives that could be issued as one.")]
BucketSizes = Annotated[
    list[float] | None,
    typer.Option("--bucket-mb", metavar="MIB", help="Put DDP's gradients into buckets of this size (bucket_cap_mb)."),
]
MoreRanks = Annotated[
    list[str] | None,
    typer.Option(
        "--ranks", metavar="[GROUP=]N", help="Total number of ranks; data-parallel groups, or GROUP, grow to fit."
    ),
]
LinksToNewHosts = Annotated[
    str | None,
    typer.Option(
        "--new-links",
        metavar="GB/s[,us]",
        help="With --ranks: bus bandwidth, and latency, between hosts where none was measured; or a file of `commtrace "
        "comms` or nccl-tests.",
    ),
]
WhichBatch = Annotated[
    BatchKind,
    typer.Option(
        "--batch", help="With --ranks: every rank keeps its batch size (kept), or all share the global batch (shared)."
    ),
]
Syncs = Annotated[
    list[str] | None,
    typer.Option(
        "--no-sync",
        metavar="OPERATOR|CALL|all",
        help="Let calls inside this operator (aten::item), calls of this name (cudaDeviceSynchronize), or all calls, "
        "not wait for the device.",
    ),
]
DataWaits = Annotated[bool, typer.Option("--no-data-wait", help="Let the data loader always have its next batch.")]
CudaGraphs = Annotated[
    bool, typer.Option("--cuda-graphs", help="Launch every kernel in time, as CUDA graphs do; the gain is a bound.")
]
Allocations = Annotated[bool, typer.Option("--no-allocation", help="Take away cudaMalloc, cudaFree and the like.")]
CopyKinds = Annotated[
    list[str] | None,
    typer.Option("--no-copies", metavar="KIND|all", help="Take away copies of one kind (HtoD, DtoH, ...), or all."),
]
PinnedCopies = Annotated[
    bool, typer.Option("--pinned-copies", help="Copy to the device from pinned memory: the CPU does not wait.")
]
Garbage = Annotated[
    bool, typer.Option("--no-gc", help="Take away Python's garbage collections, if they were recorded.")
]
Reshard = Annotated[
    bool,
    typer.Option("--no-reshard", help="Let FSDP gather parameters once in a step (reshard_after_forward=False)."),
]
SeparateGathers = Annotated[
    bool, typer.Option("--separate-gathers", help="Give FSDP's all_gathers a communicator of their own.")
]
ScenarioFile = Annotated[
    Path | None,
    typer.Option(
        "--scenario",
        metavar="FILE.toml",
        help="Read scenarios from this file, each of one or more changes; see docs/predict.md.",
    ),
]


def with_scenarios(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options, which it takes together as its argument `scenarios`."""

    def scenarios(
        *,
        without_straggler: Without = None,
        links: LinkSpeeds = None,
        latency: Latencies = None,
        links_as_others: AsOthers = None,
        no_jitter: NoJitter = False,
        overlap: Overlap = None,
        fuse: Fuse = False,
        bucket_mb: BucketSizes = None,
        ranks: MoreRanks = None,
        batch: WhichBatch = BatchKind.kept,
        new_links: LinksToNewHosts = None,
        no_sync: Syncs = None,
        no_data_wait: DataWaits = False,
        cuda_graphs: CudaGraphs = False,
        no_allocation: Allocations = False,
        no_copies: CopyKinds = None,
        pinned_copies: PinnedCopies = False,
        no_gc: Garbage = False,
        no_reshard: Reshard = False,
        separate_gathers: SeparateGathers = False,
        scenario: ScenarioFile = None,
    ) -> list[dict[str, Any]]:
        several: dict[str, Sequence[Any] | None] = {
            "without_straggler": without_straggler,
            "links": links,
            "latency": latency,
            "links_as_others": links_as_others,
            "bucket_mb": bucket_mb,
            "ranks": ranks,
            "no_sync": no_sync,
            "no_copies": no_copies,
        }
        found: list[dict[str, Any]] = [
            {name: value, "batch": batch.value, "new_links": new_links}
            for name, values in several.items()
            for value in values or []
        ]
        chosen = {"no_jitter": no_jitter, "overlap": overlap and overlap.value, "fuse": fuse}
        chosen |= {"no_data_wait": no_data_wait, "cuda_graphs": cuda_graphs, "no_allocation": no_allocation}
        chosen |= {"pinned_copies": pinned_copies, "no_gc": no_gc}
        chosen |= {"no_reshard": no_reshard, "separate_gathers": separate_gathers}
        found += [{name: value} for name, value in chosen.items() if value]
        return [*found, *(_in_file(scenario) if scenario else [])]

    return with_bundle(command, "scenarios", scenarios)


def _say_first_gains(analysis: Analysis) -> None:
    """What `remedies` puts first: the verdict and these tables are about one run, and agree."""
    sentence = analysis.first_gains
    if sentence is not None:
        complain(sentence, kind="note")


def _in_file(path: Path) -> list[dict[str, Any]]:
    """The scenarios of a TOML file. Raises BadParameter."""
    try:
        content = tomllib.loads(small_file(path).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise typer.BadParameter(f"{path}: {err}", param_hint="--scenario") from err
    found = content.pop("scenario", None)
    if content or not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise typer.BadParameter(
            f"{path}: must hold tables called [[scenario]], and nothing else", param_hint="--scenario"
        )
    return found


@reads_traces
@writes_tables
def replay_command(runs: Runs, *, writing: Writing, reading: ReadOptions) -> None:
    """Replay the run.

    In the replay, each activity starts as soon as everything it waits for is done. What waits for what follows from
    the order on each stream, launches, runtime calls, and collectives over all ranks. The closer the replayed steps
    come to the measured ones, the more you can trust `predict`.

    \b
    Examples:
      commtrace replay traces/my-run
    """
    writing.check("replay_steps")
    analysis = analysis_of(runs, reading, details=True)
    steps = analysis.replay_steps
    if len(steps):
        complain(f"the replay is {steps['error_frac'].abs().median():.1%} off the measured steps (median)", kind="note")
    print_table("replay_steps", analysis, writing)


@reads_traces
@writes_tables
def attribution_command(runs: Runs, *, writing: Writing, reading: ReadOptions) -> None:
    """Print how much jitter costs, by compute, collectives, ranks and hosts.

    Slowdown: step time with the jitter of this part only, divided by step time without any jitter. Gain: how much
    shorter a step would be if only this part had no jitter. Neither adds up over parts.

    \b
    Examples:
      commtrace attribution traces/my-run
    """
    writing.check("attribution")
    analysis = analysis_of(runs, reading, details=True)
    _say_first_gains(analysis)
    print_table("attribution", analysis, writing)


class PathBy(str, Enum):
    """What a row of the critical path is."""

    rank = "rank"
    step = "step"
    piece = "piece"


@reads_traces
@writes_tables
def critical_path_command(
    runs: Runs,
    by: Annotated[PathBy, typer.Option(help="One row per rank, per step and rank, or per long piece.")] = PathBy.rank,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print the critical path.

    The path is followed back from the end of the run: from each activity to the one it waited for last, on any rank.
    It runs through compute, copies, transfers, launches, and the CPU's work before them. It never runs through
    waiting: there it continues on the rank that was waited for. Work that is not on the path made nothing longer.

    \b
    Examples:
      commtrace critical-path traces/my-run
      commtrace critical-path --by piece --format csv traces/my-run
    """
    name = {PathBy.rank: "critical_path", PathBy.step: "critical_path_steps", PathBy.piece: "critical_path_pieces"}[by]
    writing.check(name)
    analysis = analysis_of(runs, reading, details=True)
    _say_first_gains(analysis)
    print_table(name, analysis, writing)


class ReleasesBy(str, Enum):
    """What a row of the releases is."""

    group = "group"
    call = "call"


@reads_traces
@writes_tables
def releases_command(
    runs: Runs,
    by: Annotated[
        ReleasesBy, typer.Option(help="One row per process group, collective and reason, or per call.")
    ] = ReleasesBy.group,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Print what exposed collectives waited for before they began.

    A collective begins when the last of these has come: its launch (host), the end of the collective before it on its
    stream (collective), and of the kernel that made its input (producer). The slack is how long its input was there
    before it began: so much earlier it could have begun if it had been launched in time, on a stream of its own.

    \b
    Examples:
      commtrace releases traces/my-run
      commtrace releases --by call --top 20 traces/my-run
    """
    name = {ReleasesBy.group: "releases", ReleasesBy.call: "releases_calls"}[by]
    writing.check(name)
    print_table(name, analysis_of(runs, reading, details=True), writing)


@reads_traces
@writes_tables
@with_scenarios
def predict_command(runs: Runs, *, scenarios: list[dict[str, Any]], writing: Writing, reading: ReadOptions) -> None:
    """Print step times under changes.

    There is one row for each option below; without options, the usual changes are tried. The run is first replayed
    unchanged. If that is more than 10 % off the measured steps (median), nothing is predicted. Each gain is that of
    one change alone: do not add gains up.

    \b
    Examples:
      commtrace predict traces/my-run
      commtrace predict --without-straggler 5 traces/my-run
      commtrace predict --without-straggler node03 --links between=2 traces/my-run
      commtrace predict --ranks 64 --batch shared traces/my-run
    """
    writing.check("predictions")
    analysis = analysis_of(runs, reading, details=True)
    for note in analysis.run.notes:
        complain(note, kind="note")
    try:
        table = analysis.predict(*scenarios) if scenarios else analysis.predictions
    except BadScenario as err:
        raise typer.BadParameter(str(err)) from err
    error = table["replay_error_frac"].max()
    complain(f"the unchanged replay is {error:.1%} off the measured steps (median)", kind="note")
    if not scenarios:
        _say_first_gains(analysis)
    writing.table("predictions", table)
    finish(analysis)
