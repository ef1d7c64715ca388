"""Commands that replay a run: `replay`, `attribution`, `critical-path`, `releases`, and `predict`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ....common.option_groups import takes
from ...core.small_files import small_file
from ...errors import BadScenario
from ...recording.options import ReadOptions
from ..output import Writing, print_message, writes_tables
from ..reading_options import Runs, analysis_of, finish, reads_traces
from ..tables import print_table

if TYPE_CHECKING:
    from ...results.analysis import Analysis

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class OverlapKind(str, Enum):
    """How much of communication is hidden."""

    perfect = "perfect"


class BatchKind(str, Enum):
    """What happens to the batch size with more ranks."""

    kept = "kept"
    shared = "shared"


@dataclass(frozen=True)
class ScenarioOptions:
    """Changes to predict; each option of a change makes a scenario of its own."""

    without_straggler: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHO", help="Make these ranks (5 or 0-3), a host, or all ranks as fast as the median rank."
        ),
    ] = None
    links: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[GROUP=]FACTOR",
            help="Make links this many times faster: of all process groups, of one, or, with GROUP `between`, of those "
            "over several hosts.",
        ),
    ] = None
    latency: Annotated[
        list[str] | None,
        typer.Option(metavar="[GROUP=]FACTOR", help="Divide the fitted latency of collectives by this."),
    ] = None
    links_as_others: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHO",
            help="Make the links of these ranks (4-7), a host, or a process group as fast as those of others like "
            "them; `slow` are all that are slower.",
        ),
    ] = None
    no_jitter: Annotated[
        bool, typer.Option("--no-jitter", help="Replace compute by its mean and transfer by its median.")
    ] = False
    overlap: Annotated[
        OverlapKind | None,
        typer.Option(help="Let compute never wait for communication; the gain is an upper bound."),
    ] = None
    fuse: Annotated[bool, typer.Option("--fuse", help="Merge collectives that could be issued as one.")] = False
    bucket_mb: Annotated[
        list[float] | None,
        typer.Option(metavar="MIB", help="Put DDP's gradients into buckets of this size (bucket_cap_mb)."),
    ] = None
    world_size: Annotated[
        list[str] | None,
        typer.Option(metavar="[GROUP=]N", help="Total number of ranks; data-parallel groups, or GROUP, grow to fit."),
    ] = None
    batch: Annotated[
        BatchKind,
        typer.Option(
            help="With --world-size: every rank keeps its batch size (kept), or all share the global batch (shared)."
        ),
    ] = BatchKind.kept
    new_links: Annotated[
        str | None,
        typer.Option(
            metavar="GB/s[,us]",
            help="With --world-size: bus bandwidth, and latency, between hosts where none was measured; or a file of "
            "`commtrace comms` or nccl-tests.",
        ),
    ] = None
    no_sync: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPERATOR|CALL|all",
            help="Let calls inside this operator (aten::item), calls of this name (cudaDeviceSynchronize), or all "
            "calls, not wait for the device.",
        ),
    ] = None
    no_data_wait: Annotated[
        bool, typer.Option("--no-data-wait", help="Let the data loader always have its next batch.")
    ] = False
    cuda_graphs: Annotated[
        bool,
        typer.Option("--cuda-graphs", help="Launch every kernel in time, as CUDA graphs do; the gain is a bound."),
    ] = False
    no_pauses: Annotated[
        bool,
        typer.Option(
            "--no-pauses", help="Take away what CPUs do without any call for 1 ms or more; the gain is a bound."
        ),
    ] = False
    no_allocation: Annotated[
        bool, typer.Option("--no-allocation", help="Take away cudaMalloc, cudaFree and the like.")
    ] = False
    no_copies: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND|all", help="Take away copies of one kind (HtoD, DtoH, ...), or all."),
    ] = None
    pinned_copies: Annotated[
        bool, typer.Option("--pinned-copies", help="Copy to the device from pinned memory: the CPU does not wait.")
    ] = False
    no_gc: Annotated[
        bool, typer.Option("--no-gc", help="Take away Python's garbage collections, if they were recorded.")
    ] = False
    no_long_calls: Annotated[
        bool,
        typer.Option(
            "--no-long-calls", help="Let calls and operators that take 100 times as long as usual take their median."
        ),
    ] = False
    no_compilation: Annotated[
        bool, typer.Option("--no-compilation", help="Take away what compiles, if it was recorded.")
    ] = False
    no_reshard: Annotated[
        bool,
        typer.Option("--no-reshard", help="Let FSDP gather parameters once in a step (reshard_after_forward=False)."),
    ] = False
    separate_gathers: Annotated[
        bool, typer.Option("--separate-gathers", help="Give FSDP's all_gathers a communicator of their own.")
    ] = False
    scenario: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Read scenarios from this file, each of one or more changes; see docs/predict.md.",
        ),
    ] = None

    def scenarios(self) -> list[dict[str, Any]]:
        """One scenario for each value of an option, for each flag, and for each entry of the file."""
        changes = {name: value for name, value in vars(self).items() if name not in ("batch", "new_links", "scenario")}
        growth = {"batch": self.batch.value, "new_links": self.new_links}
        several = [{name: each, **growth} for name, values in changes.items() if _is_list(values) for each in values]
        single = [
            {name: value.value if isinstance(value, Enum) else value}
            for name, value in changes.items()
            if value and not _is_list(value)
        ]
        return [*several, *single, *(_in_file(self.scenario) if self.scenario else [])]


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _say_first_gains(analysis: Analysis) -> None:
    """Print the first remedies, so that the table is seen beside the verdict."""
    if analysis.prices is None:
        return
    from ...replay.remedies import first_gains

    sentence = first_gains(analysis.remedies, analysis.typical_step.parts["window_ns"])
    if sentence is not None:
        print_message(sentence, kind="note")


def _in_file(path: Path) -> list[dict[str, Any]]:
    """Read the scenarios of a TOML file. Raises BadParameter."""
    try:
        content = tomllib.loads(small_file(path).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise typer.BadParameter(f"{path}: {err}", param_hint="--scenario") from err
    scenarios = content.pop("scenario", None)
    if content or not isinstance(scenarios, list) or not all(isinstance(each, dict) for each in scenarios):
        raise typer.BadParameter(
            f"{path}: must hold tables called [[scenario]], and nothing else", param_hint="--scenario"
        )
    return scenarios


@reads_traces
@writes_tables
def replay_command(runs: Runs, *, writing: Writing, reading: ReadOptions) -> None:
    """Replay the run.

    In the replay, each activity starts as soon as everything it waits for is done. What waits for what follows from
    the order on each stream, launches, runtime calls, and collectives over all ranks. The closer the replayed steps
    come to the measured ones, the more you can trust `predict`.

    \b
    Examples:
      commtrace table replay traces/my-run
    """
    writing.check("replay_steps")
    analysis = analysis_of(runs, reading, details=True)
    steps = analysis.replay_steps
    if len(steps):
        print_message(
            f"the replay is {steps['error_frac'].abs().median():.1%} off the measured steps (median)", kind="note"
        )
    print_table("replay_steps", analysis, writing)


@reads_traces
@writes_tables
def attribution_command(runs: Runs, *, writing: Writing, reading: ReadOptions) -> None:
    """Print how much jitter costs, by compute, collectives, ranks and hosts.

    Slowdown: step time with the jitter of this part only, divided by step time without any jitter. Gain: how much
    shorter a step would be if only this part had no jitter. Neither adds up over parts.

    \b
    Examples:
      commtrace table attribution traces/my-run
    """
    writing.check("attribution")
    analysis = analysis_of(runs, reading, details=True)
    _say_first_gains(analysis)
    print_table("attribution", analysis, writing)


class PathBy(str, Enum):
    """What a row of the critical path stands for."""

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
      commtrace table critical-path traces/my-run
      commtrace table critical-path --by piece --format csv traces/my-run
    """
    name = {PathBy.rank: "critical_path", PathBy.step: "critical_path_steps", PathBy.piece: "critical_path_pieces"}[by]
    writing.check(name)
    analysis = analysis_of(runs, reading, details=True)
    _say_first_gains(analysis)
    print_table(name, analysis, writing)


class ReleasesBy(str, Enum):
    """What a row of the releases stands for."""

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
      commtrace table releases traces/my-run
      commtrace table releases --by call --top 20 traces/my-run
    """
    name = {ReleasesBy.group: "releases", ReleasesBy.call: "releases_calls"}[by]
    writing.check(name)
    print_table(name, analysis_of(runs, reading, details=True), writing)


@reads_traces
@writes_tables
@takes(changes=ScenarioOptions)
def predict_command(runs: Runs, *, changes: ScenarioOptions, writing: Writing, reading: ReadOptions) -> None:
    """Print step times under changes.

    There is one row for each option below; without options, the usual changes are tried. The run is first replayed
    unchanged. If that is more than 10 % off the measured steps (median), nothing is predicted. Each gain is that of
    one change alone: do not add gains up.

    \b
    Examples:
      commtrace predict traces/my-run
      commtrace predict --without-straggler 5 traces/my-run
      commtrace predict --without-straggler node03 --links between=2 traces/my-run
      commtrace predict --world-size 64 --batch shared traces/my-run
    """
    writing.check("predictions")
    scenarios = changes.scenarios()
    analysis = analysis_of(runs, reading, details=True)
    for note in analysis.run.notes:
        print_message(note, kind="note")
    try:
        table = analysis.predict(*scenarios) if scenarios else analysis.predictions
    except BadScenario as err:
        raise typer.BadParameter(str(err)) from err
    error = table["replay_error_frac"].max()
    print_message(f"the unchanged replay is {error:.1%} off the measured steps (median)", kind="note")
    if analysis.part_note is not None:
        print_message(f"a step gains so much {analysis.part_note}", kind="note")
    if not scenarios:
        _say_first_gains(analysis)
    writing.table("predictions", table)
    finish(analysis)
