"""The options of all commands that read traces, and the reading itself."""

from __future__ import annotations

import gc
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ..core.kinds import comm_pattern
from ..errors import AnalysisError
from .output import CommNames, KeepGoing, checked_patterns, complain, reading_progress

if TYPE_CHECKING:
    from ..results.analysis import Analysis
    from ..results.one_device import LoneDevice

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="A run directory, any folder of Kineto traces, or trace files.")
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Processes that read.", show_default="one per core"),
]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        help="Keep what was read of large traces there.",
        show_default="a hidden folder beside them",
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify", help="Decode every event once more by another parser, and compare; some ten times as slow."
    ),
]
Memory = Annotated[
    float | None,
    typer.Option(
        "--memory",
        metavar="GB",
        min=1e-6,
        help="Memory that what is read may take, in 1e9 bytes.",
        show_default="four fifths of what is free",
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Read every trace anew, and keep nothing.")]


@dataclass(frozen=True)
class ReadingOptions:
    """What --comm-kernel, --keep-going, --workers, --cache, --no-cache, --verify and --memory say."""

    comm_names: list[str]
    keep_going: bool
    workers: int | None
    cache: Path | bool
    verify: bool = False
    memory_gb: float | None = None


def reads_traces(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options, which it takes together as its argument `reading`."""

    def with_options(
        *,
        comm_kernel: CommNames = None,
        keep_going: KeepGoing = False,
        workers: Workers = None,
        cache: CacheFolder = None,
        no_cache: NoCache = False,
        verify: Verify = False,
        memory: Memory = None,
        **own: Any,
    ) -> None:
        if cache is not None and no_cache:
            raise typer.BadParameter("cannot be given together with --cache", param_hint="--no-cache")
        options = ReadingOptions(
            checked_patterns(comm_kernel), keep_going, workers, cache or not no_cache, verify, memory
        )
        command(**own, reading=options)

    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "reading"
    ]
    shared = [p for p in inspect.signature(with_options, eval_str=True).parameters.values() if p.name != "own"]
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    return with_options


class OpenRun:
    """A run whose traces are being read by others, within a `with` block. Raises AnalysisError."""

    def __init__(self, runs: list[Path], options: ReadingOptions, *, details: bool = False) -> None:
        """With `details`, operators of GPU runs and allocations are read too."""
        with _for_good():
            from ..reading.cache import Cache
            from ..reading.pool import Reading
            from ..recording.memory_limit import GB
            from ..recording.trace_files import run_name, trace_files

        files, skipped = trace_files(runs)
        self.name = run_name(runs)
        self._runs, self._keep_going, self._skipped = runs, options.keep_going, tuple(skipped)
        self._begun = time.monotonic()
        self._reading = Reading(
            files,
            comm_pattern(options.comm_names),
            workers=options.workers,
            details=details,
            keep_damaged=options.keep_going,
            cache=Cache.at(options.cache),
            verify=options.verify,
            limit_bytes=None if options.memory_gb is None else int(options.memory_gb * GB),
        )

    def __enter__(self) -> OpenRun:
        self._reading.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.__exit__(kind, error, trace)

    def lone_device(self) -> LoneDevice | None:
        """The device of the run, if its only file shows no other. Raises AnalysisError."""
        if len(self._reading.paths) != 1:
            return None
        with _for_good():
            from .. import render  # noqa: F401 - this takes its time while others read
            from ..results.one_device import lone_device
        with reading_progress(self._reading, self._begun) as report:
            found = self._reading.first(report)
        try:
            if isinstance(found, AnalysisError):
                raise found
            device = lone_device(self._reading.paths[0], found)
        except AnalysisError:
            if self._keep_going:  # a whole analysis leaves out what cannot be used
                return None
            raise
        return device and replace(device, notes=device.notes + self._skipped)

    def analysis(self, ceiling: Path | None = None) -> Analysis:
        """The analysis of the run, beside what `ceiling` says its links can do. Raises AnalysisError."""
        with _for_good():
            from .. import render  # noqa: F401 - this and pandas take their time while others read
            from ..ceilings.files import read_ceiling
            from ..metrics.calls.calls import communication
            from ..results.analysis import Analysis
            from ..run.run import run_of

        limit = read_ceiling(ceiling) if ceiling is not None else None
        with reading_progress(self._reading, self._begun) as report:
            run = run_of(
                self._runs, self._reading, keep_going=self._keep_going, progress=report, calls_of=communication
            )
        return Analysis(replace(run, notes=run.notes + self._skipped), limit)


def analysis_of(
    runs: list[Path], options: ReadingOptions, ceiling: Path | None = None, *, details: bool = False
) -> Analysis:
    """The analysis of a run: see `OpenRun`. Raises AnalysisError."""
    with OpenRun(runs, options, details=details) as run:
        return run.analysis(ceiling)


@contextmanager
def _for_good() -> Iterator[None]:
    """What is made meanwhile stays: Python looks for no garbage in it, neither now nor with every table made later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def finish(analysis: Analysis) -> None:
    """Say which files could not be used, and end with exit code 1 if there are any."""
    for failure in analysis.run.failed:
        complain(failure)
    if analysis.run.failed:
        raise typer.Exit(1)
