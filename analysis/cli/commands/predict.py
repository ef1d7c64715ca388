"""Commands that replay a run: `replay`, `attribution`, `critical-path`, `releases`, and `predict`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ....common.option_groups import takes
from ...core.small_files import small_file
from ...errors import BadScenario
from ...recording.options import ReadOptions
from ...replay.changes import OPTIONS, Option
from ..output import Writing, print_message, writes_tables
from ..reading_options import Runs, analysis_of, finish, reads_traces
from ..tables import print_table

if TYPE_CHECKING:
    from ...results.analysis import Analysis

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def _scenarios(
    *,
    scenario: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Read scenarios from this file, each of one or more changes; see docs/predict.md.",
        ),
    ] = None,
    **given: Any,
) -> list[dict[str, Any]]:
    """One scenario for each value of an option, for each flag, and for each entry of the file."""
    values = {name: value.value if isinstance(value, Enum) else value for name, value in given.items()}
    scenarios: list[dict[str, Any]] = []
    for name, option in OPTIONS.items():
        beside = {each.name: values[each.name] for each in OPTIONS.values() if each.beside == name}
        if values[name] and not option.beside:
            scenarios += [{name: each, **beside} for each in (values[name] if option.is_several else [values[name]])]
    return [*scenarios, *(_in_file(scenario) if scenario else [])]


def _parameter(option: Option) -> inspect.Parameter:
    """How typer has this option."""
    takes_one: Any = bool if option.is_flag else option.type
    if option.choices:
        new_enum: Callable[..., Any] = Enum  # mypy wants names that are written out
        takes_one = new_enum(option.name, {each: each for each in option.choices}, type=str)
    default = False if option.is_flag else option.default and takes_one(option.default)
    shown = typer.Option(
        *([option.asked()] if option.is_flag else []), metavar=option.metavar or None, help=option.help
    )
    taken: Any = list[takes_one] if option.is_several else takes_one
    annotation: Any = Annotated[taken if default is not None else taken | None, shown]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_scenarios.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        *map(_parameter, OPTIONS.values()),
        inspect.signature(_scenarios, eval_str=True).parameters["scenario"],
    ]
)


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
@takes(scenarios=_scenarios)
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
      commtrace predict --world-size 64 --batch shared traces/my-run
    """
    writing.check("predictions")
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
