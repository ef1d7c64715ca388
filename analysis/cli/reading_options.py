"""Options of all commands that read traces, and the reading itself."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...common.option_groups import takes
from ..core.given_peaks import NO_PEAKS, GivenPeaks, given_peaks, parsed_figures
from ..core.places.place import path_named
from ..core.process import gc_frozen
from ..hang.files import looks_like_dumps
from ..recording.options import READING_OPTIONS, ReadOptions, clashes
from ..timed_dumps.offer import name_of_dumps, no_such_table
from .inputs import PathOrUrl
from .output import asking, print_message, reading_progress, show_phases

if TYPE_CHECKING:
    from ..results.analysis import Analysis
    from ..results.opening import OpenRun
    from ..timed_dumps.analysis import TimedDumps

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
Runs = Annotated[
    list[PathOrUrl],
    typer.Argument(
        metavar="RUN...",
        parser=path_named,
        help="A run directory, a folder of Kineto traces, trace files, or a URL of one of these.",
    ),
]
CeilingFile = Annotated[
    PathOrUrl | None,
    typer.Option(
        "--ceiling",
        metavar="FILE",
        parser=path_named,
        help="Compare with the bandwidth that `commtrace comms` (comms.json or its folder) or nccl-tests (text, or "
        "JSON by -J) measured.",
    ),
]
Peaks = Annotated[
    list[str] | None,
    typer.Option(
        "--peak",
        metavar="NAME=VALUE|FILE",
        help="Peak of the devices, in place of the data sheet's: bf16=989 in TFLOP/s, memory=3.35 in TB/s, or what "
        "`commtrace gemm` measured (gemm.json or its folder); repeatable.",
        show_default="data sheets",
    ),
]


def _option(name: str) -> Any:
    """How typer has an option of reading."""
    option = READING_OPTIONS[name]
    is_repeatable = option.type == list[str]
    return typer.Option(
        option.flag,
        metavar=option.metavar or None,
        rich_help_panel="Reading",
        help=option.help.removesuffix(".") + "; repeatable." if is_repeatable else option.help,
        show_default=option.usual or True,
    )


KeepGoing = Annotated[bool, _option("keep_going")]
_NoCache = Annotated[
    bool, typer.Option("--no-cache", rich_help_panel="Reading", help="Read every trace anew and cache nothing.")
]


def reading(*names: str) -> Callable[..., ReadOptions]:
    """What makes ReadOptions from these options of a command line: a group of options for `takes`."""

    def given(*, no_cache: bool = False, **values: Any) -> ReadOptions:
        kept = {name: _kept(name, value) for name, value in values.items() if value is not None and value is not False}
        for name, other in clashes(kept):
            raise typer.BadParameter(
                f"cannot be given together with {READING_OPTIONS[other].flag}", param_hint=READING_OPTIONS[name].flag
            )
        if no_cache and "cache" in kept:
            raise typer.BadParameter("cannot be given together with --cache", param_hint="--no-cache")
        if "cache" in names:
            kept.setdefault("cache", not no_cache)
        return ReadOptions(**kept)

    parameters = {name: _parameter(name) for name in names}
    if "cache" in names:
        parameters["no_cache"] = inspect.Parameter("no_cache", _KEYWORD, default=False, annotation=_NoCache)
    given.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    return given


def _parameter(name: str) -> inspect.Parameter:
    is_flag = not READING_OPTIONS[name].metavar
    taken: Any = bool if is_flag else READING_OPTIONS[name].type | None
    annotation: Any = Annotated[taken, _option(name)]
    return inspect.Parameter(name, _KEYWORD, default=False if is_flag else None, annotation=annotation)


def _kept(name: str, value: Any) -> Any:
    try:
        return READING_OPTIONS[name].kept(value)
    except ValueError as err:
        raise typer.BadParameter(str(err), param_hint=READING_OPTIONS[name].flag) from err


reads_traces = takes(reading=reading(*READING_OPTIONS))
"""Add these options to a command, which gets them as one argument `reading`."""


def analysis_of(
    runs: list[Path],
    options: ReadOptions,
    ceiling: Path | None = None,
    peaks: list[str] | None = None,
    *,
    details: bool = False,
) -> Analysis:
    """The analysis of a run; with `details` also of operators and allocations. Raises AnalysisError, BadParameter."""
    given = _peaks(peaks or ())
    with opened(runs, replace(options, details=details)) as run:
        return analysed(run, ceiling, given)


def _peaks(texts: Sequence[str]) -> GivenPeaks:
    """The peaks of files, and of single figures in place of those. Raises AnalysisError, BadParameter."""
    from ..ceilings.peak_files import read_peaks

    files = [text for text in texts if "=" not in text or Path(text).exists()]
    try:
        given = given_peaks(parsed_figures(text for text in texts if text not in files))
    except ValueError as err:
        raise typer.BadParameter(str(err), param_hint="--peak") from err
    return {name: peak for file in files for name, peak in read_peaks(path_named(file)).items()} | dict(given)


def analysis_to_show(
    runs: list[Path], options: ReadOptions, ceiling: Path | None = None, peaks: list[str] | None = None
) -> Analysis:
    """The analysis of a run for its page or first screen: with operators and allocations, unless recordings lack them.

    Raises AnalysisError, BadParameter.
    """
    return analysis_of(runs, replace(options, details_if_recorded=True), ceiling, peaks)


def timed_dumps_of(runs: list[Path], options: ReadOptions) -> TimedDumps | None:
    """Dumps of the flight recorder that hold durations; None for other files. Raises AnalysisError."""
    if not looks_like_dumps(runs):
        return None
    from ..timed_dumps.analysis import timed_dumps

    return timed_dumps(runs, keep_going=options.keep_going, workers=options.workers, memory_gb=options.memory_gb)


def opened(runs: list[Path], options: ReadOptions) -> OpenRun:
    """Start to read a run, in a `with` block. Raises AnalysisError."""
    if looks_like_dumps(runs):
        raise no_such_table(name_of_dumps(runs))
    with gc_frozen():
        from ..results.opening import OpenRun

        begun = time.monotonic()
        with asking(runs):
            return OpenRun(runs, options, lambda reading: reading_progress(reading, begun))


def analysed(run: OpenRun, ceiling: Path | None = None, peaks: GivenPeaks = NO_PEAKS) -> Analysis:
    """The analysis of an open run, with the bandwidth in the file `ceiling` and these peaks. Raises AnalysisError."""
    with gc_frozen():
        from .. import render  # noqa: F401 - this and pandas take their time while others read
        from ..results import analysis  # noqa: F401
    found = run.analysis(ceiling, peaks)
    show_phases(time.monotonic())
    return found


def finish(analysis: Analysis) -> None:
    """Print which files could not be used, and exit with 1 if there are any."""
    finish_failed(analysis.run.failed)


def finish_failed(failed: Sequence[str]) -> None:
    """Print these failures, and exit with 1 if there are any."""
    for failure in failed:
        print_message(failure)
    if failed:
        raise typer.Exit(1)
