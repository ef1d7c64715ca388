"""Options of all commands that read traces, and the reading itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...common.option_groups import takes
from ..core.given_peaks import NO_PEAKS, GivenPeaks, given_peaks, parsed_figures
from ..core.places.place import path_named
from ..core.process import gc_frozen
from ..core.step_names import check_groups
from ..hang.files import looks_like_dumps
from ..recording.options import ReadOptions, numbers_in
from ..timed_dumps.offer import name_of_dumps, no_such_table
from .inputs import PathOrUrl
from .output import CommNames, KeepGoing, asking, checked_patterns, finite, print_message, reading_progress, show_phases

if TYPE_CHECKING:
    from ..results.analysis import Analysis
    from ..results.opening import OpenRun
    from ..timed_dumps.analysis import TimedDumps

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
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        rich_help_panel="Reading",
        min=1,
        help="Number of processes that read traces.",
        show_default="one per core",
    ),
]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        rich_help_panel="Reading",
        metavar="DIR",
        help="Cache large traces in this folder.",
        show_default="a hidden folder beside them",
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        rich_help_panel="Reading",
        help="Decode every event a second time with another parser and compare; about ten times slower.",
    ),
]
Memory = Annotated[
    float | None,
    typer.Option(
        "--memory",
        rich_help_panel="Reading",
        metavar="GB",
        min=1e-6,
        callback=finite,
        help="Memory that the traces may take, in GB (1e9 bytes).",
        show_default="four fifths of what is free",
    ),
]
OnDask = Annotated[
    str | None,
    typer.Option(
        "--dask",
        rich_help_panel="Reading",
        metavar="WHERE",
        help="Read rank by rank with the Dask workers of a scheduler: its tls:// or tcp://HOST:PORT, or its scheduler "
        "file. 'local': with processes of this machine, without Dask.",
    ),
]
OnExecutor = Annotated[
    str | None,
    typer.Option(
        "--executor",
        rich_help_panel="Reading",
        metavar="MODULE:NAME",
        help="Read rank by rank with the executor of concurrent.futures that calling this makes, such as "
        "mpi4py.futures:MPIPoolExecutor.",
    ),
]
OfRanks = Annotated[
    str | None,
    typer.Option(
        "--ranks",
        metavar="RANKS",
        rich_help_panel="Reading",
        help="Read only these ranks, such as 0-7,64-71, as if there were no others.",
    ),
]
OfHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--hosts", rich_help_panel="Reading", metavar="HOST", help="Read only the ranks of this host; repeatable."
    ),
]
OfGroups = Annotated[
    list[str] | None,
    typer.Option(
        "--groups",
        rich_help_panel="Reading",
        metavar="GROUP",
        help="Read only the ranks of this process group; repeatable.",
    ),
]
OfSteps = Annotated[
    str | None,
    typer.Option(
        "--only-steps",
        metavar="STEPS",
        rich_help_panel="Reading",
        help="Read only these steps, such as 11 or 3-5, as if there were no others.",
    ),
]
LastSteps = Annotated[
    int | None,
    typer.Option(
        "--last",
        metavar="N",
        rich_help_panel="Reading",
        min=1,
        help="Read only the last N steps that all ranks have.",
        show_default="all",
    ),
]
AllRecorded = Annotated[
    bool,
    typer.Option(
        "--whole",
        rich_help_panel="Reading",
        help="Sum up all that was recorded, instead of the steps that count on the first screen. "
        "Changes are played in all steps, also of a large run.",
    ),
]
StepMarker = Annotated[
    str | None,
    typer.Option(
        "--steps",
        metavar="REGEX",
        rich_help_panel="Reading",
        help="Annotations of these names mark steps. Groups named kind, requests, tokens and number say what a step "
        "is: 'eval_(?P<number>[0-9]+)'.",
        show_default="those of torch.profiler, or of known engines",
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", rich_help_panel="Reading", help="Read every trace anew and cache nothing.")
]


def reads_traces(command: Callable[..., None]) -> Callable[..., None]:
    """Add these options to a command, which gets them as one argument `reading`."""

    def reading(
        *,
        ranks: OfRanks = None,
        hosts: OfHosts = None,
        groups: OfGroups = None,
        only_steps: OfSteps = None,
        last: LastSteps = None,
        whole: AllRecorded = False,
        steps: StepMarker = None,
        comm_kernel: CommNames = None,
        keep_going: KeepGoing = False,
        workers: Workers = None,
        cache: CacheFolder = None,
        no_cache: NoCache = False,
        verify: Verify = False,
        memory: Memory = None,
        dask: OnDask = None,
        executor: OnExecutor = None,
    ) -> ReadOptions:
        if cache is not None and no_cache:
            raise typer.BadParameter("cannot be given together with --cache", param_hint="--no-cache")
        if dask is not None and executor is not None:
            raise typer.BadParameter("cannot be given together with --dask", param_hint="--executor")
        if only_steps is not None and last:
            raise typer.BadParameter("cannot be given together with --only-steps", param_hint="--last")
        return ReadOptions(
            comm_names=tuple(checked_patterns(comm_kernel)),
            keep_going=keep_going,
            workers=workers,
            cache=str(cache) if cache else not no_cache,
            verify=verify,
            memory_gb=memory,
            dask=dask,
            executor=executor,
            ranks=_numbers(ranks, "--ranks"),
            hosts=tuple(hosts or ()),
            groups=tuple(groups or ()),
            steps=_numbers(only_steps, "--only-steps"),
            last=last or 0,
            whole=whole,
            step_marker=None if steps is None else _marker(steps),
        )

    return takes(reading=reading)(command)


def _marker(pattern: str) -> str:
    [marker] = checked_patterns([pattern], "--steps")
    try:
        check_groups(marker)
    except ValueError as err:
        raise typer.BadParameter(str(err), param_hint="--steps") from err
    return marker


def _numbers(text: str | None, option: str) -> tuple[int, ...]:
    try:
        return () if text is None else tuple(numbers_in(text))
    except ValueError as err:
        raise typer.BadParameter(str(err), param_hint=option) from err


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
