"""From paths to results: the one entrance for library and command line.

Reading begins when a run is opened, in other processes if there is much to read, so that the caller can import pandas
in the meantime.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..core.given_peaks import NO_PEAKS, GivenPeaks, given_peaks
from ..core.places.place import path_named
from ..core.process import return_freed_memory
from ..reading.executor import Executor, Processes, cores
from ..reading.pool import Reading, check_calls, executor_of_ranks
from ..reading.trace_files import run_name, trace_files
from ..reading.trace_input import TraceInput
from ..recording.options import GivenOptions, Progress, ReadOptions, takes_reading
from ..run.chosen import worth_reading
from ..run.rank_files import cycles_in

if TYPE_CHECKING:
    from concurrent import futures

    from distributed import Client
    from typing_extensions import Unpack

    from ..run.run import Run
    from .analysis import Analysis
    from .run_reading import ReadPart, ReadRun

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
_THIS_MACHINE = "local"
_LOG = logging.getLogger("commtrace.reading")
Report = Callable[[Reading], AbstractContextManager[Progress | None]]
"""Shows the progress of a reading: the function it gives is called with the bytes read so far."""


def _silent(reading: Reading) -> AbstractContextManager[Progress | None]:  # noqa: ARG001 - as Report has it
    return nullcontext()


class OpenRun:
    """A run whose traces are being read; for use in a `with` block. Raises AnalysisError."""

    def __init__(
        self, path: Paths, options: ReadOptions, report: Report = _silent, executor: Executor | None = None
    ) -> None:
        """Start to read a run directory, a folder of traces, a trace file, or several of these.

        Each file is read as a whole by the `executor`; without one, by this process or others of this machine, in
        whatever way suits how much there is to read.
        """
        self._paths = [path_named(one) for one in ([path] if isinstance(path, (str, PathLike)) else path)]
        found = trace_files(self._paths)
        options = replace(options, run_facts=found.run_facts)
        traces, left_out = worth_reading(found.traces, options)
        options = replace(
            options,
            cycles=cycles_in([one.path.name for one in traces]),
            details=options.details or options.details_if_recorded,
            details_if_recorded=options.details_if_recorded and not options.details,
        )
        self.name = run_name(self._paths)
        _LOG.info("%r: %d files to read, %d not read", self.name, len(traces), len(found.traces) - len(traces))
        self._options, self._report, self._skipped = options, report, (*found.notes, *left_out)
        self._traces, self._executor = traces, executor
        self._reading = _reading_of(traces, options, executor)

    def __enter__(self) -> OpenRun:
        self._reading.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.__exit__(kind, error, trace)

    def run(self) -> Run:
        """The run that was read. Raises AnalysisError."""
        return self._run().run

    def _run(self) -> ReadRun:
        found = self._read(self._reading)
        if self._options.last is not None:
            found = self._last_steps_of(found, self._options.last)
        return found._replace(run=replace(found.run, notes=found.run.notes + self._skipped))

    def _last_steps_of(self, found: ReadRun, count: int) -> ReadRun:
        """The run with the last `count` steps that all ranks have. Each file was cut to its own last ones."""
        from ..run.chosen_steps import common_last_steps, note_on_left_out

        run = found.run
        steps = common_last_steps(run.recorded_steps, count)
        if all(own[-count:] == steps for own in run.recorded_steps.values()):
            notes = note_on_left_out(run.recorded_steps.values(), steps)
            return found._replace(run=replace(run, only_steps=steps, notes=(*run.notes, *notes)))
        # A rank lacks some of these steps, so another one was cut at the wrong place: few runs are read twice.
        with _reading_of(self._traces, replace(self._options, steps=steps, last=None), self._executor) as reading:
            return self._read(reading)

    def _read(self, reading: Reading) -> ReadRun:
        from .run_reading import read_run

        with self._report(reading) as progress:
            return read_run(self._paths, reading, progress)

    def analysis(self, ceiling: Path | None = None, peaks: GivenPeaks = NO_PEAKS) -> Analysis:
        """The tables of the run, compared with the bandwidth in `ceiling` and `peaks`. Raises AnalysisError."""
        from ..ceilings.files import read_ceiling
        from .analysis import Analysis
        from .part import Again

        limit = read_ceiling(ceiling) if ceiling is not None else None
        run, early = self._run()

        def read_again(steps: tuple[int, ...], cut: dict[Path, ReadPart]) -> Analysis:
            options = replace(self._options, steps=steps, last=None)
            part = self._read_again(run, options, cut)
            tables = part.run.tables
            if part.run.spread is not None:  # what is played is looked at as a whole
                tables = part.run.spread.taken()
                return_freed_memory()
            whole = replace(part.run, tables=tables)
            return Analysis(whole, limit, part.early, peaks=peaks, whole=options.whole)

        again = Again(read_again, self._options.sizes.most_played) if run.details else None
        return Analysis(run, limit, early, peaks=peaks, whole=self._options.whole, again=again)

    def _read_again(self, run: Run, options: ReadOptions, cut: dict[Path, ReadPart]) -> ReadRun:
        """Read some steps of a run, to which files were `cut` in a visit: these are taken, and all others read."""
        at_hand = [cut.pop(one.path, None) for one in self._traces]
        executor = self._executor if run.spread is None else run.spread.executor
        if None not in at_hand:
            executor = Processes(0)
        with _reading_of(self._traces, options, executor, at_hand) as reading:
            return self._read(reading)


def _reading_of(
    traces: Sequence[TraceInput],
    options: ReadOptions,
    executor: Executor | None,
    at_hand: Sequence[ReadPart | None] | None = None,
) -> Reading:
    """Read files, but for what is `at_hand` of some."""
    check_calls(traces, options)
    executor = executor or _executor_of(traces, options)
    if executor is None:
        return Reading(traces, options)
    from .run_reading import read_for_run

    _LOG.info("reading %d files rank by rank, %d at a time", len(traces), executor.at_once)
    reads = [partial(read_for_run, at_hand=one) for one in at_hand or [None] * len(traces)]
    return Reading(traces, options, executor, reads)


def _executor_of(traces: Sequence[TraceInput], options: ReadOptions) -> Executor | None:
    """The executor to make tables of these files rank by rank; None where this process makes them."""
    # A cluster of Dask on this machine would listen on ports, and everybody here who reaches them could run code.
    is_local = options.dask == _THIS_MACHINE
    if options.dask is not None and not is_local:
        from ..reading.dask_executor import DaskExecutor, dask_client

        return DaskExecutor(dask_client(options.dask))
    if options.executor is not None:
        from ..reading.any_executor import executor_named

        return executor_named(options.executor)
    if is_local:
        workers = cores() if options.workers is None else options.workers
        return Processes(workers if workers > 1 else 0)
    return executor_of_ranks(traces, options)


@takes_reading
def analyse(
    path: Paths,
    *,
    ceiling: str | PathLike[str] | None = None,
    peaks: Mapping[str, float] | str | PathLike[str] | None = None,
    details: bool = True,
    executor: futures.Executor | Client | None = None,
    **reading: Unpack[GivenOptions],
) -> Analysis:
    """Analyse the run at `path`: a run directory, a folder of Kineto traces, or one trace file.

    - `ceiling`: what links can do: a file or run directory of `commtrace comms`, or output of nccl-tests
    - `peaks`: of the devices, by dtype in TFLOP/s and of `memory` in TB/s, or a file of `commtrace gemm`
    - `details`: without, faster, but operators of GPU runs, allocations, causes of idle time and gains are missing
    - `executor`: of concurrent.futures, or a client of Dask, whose workers (same paths, same commtrace) read the ranks
    - `**reading`: see `GivenOptions`

    Ranks must be in all of `ranks`, `hosts` and `groups` that are given. Raises AnalysisError, and ValueError for
    options that make no sense.
    """
    return analyse_with(path, ReadOptions.given(details=details, **reading), ceiling, executor, _peaks(peaks))


def _peaks(given: Mapping[str, float] | str | PathLike[str] | None) -> GivenPeaks:
    """Peaks by name or from a file. Raises AnalysisError, ValueError."""
    if isinstance(given, (str, PathLike)):
        from ..ceilings.peak_files import read_peaks

        return read_peaks(path_named(given))
    return given_peaks(given or {})


def analyse_with(
    path: Paths,
    options: ReadOptions,
    ceiling: str | PathLike[str] | None = None,
    executor: futures.Executor | Client | None = None,
    peaks: GivenPeaks = NO_PEAKS,
) -> Analysis:
    """Call `analyse` with all options in one object."""
    chosen = None
    if executor is not None:
        from ..reading.any_executor import executor_of

        chosen = executor_of(executor)
    with OpenRun(path, options, executor=chosen) as run:
        return run.analysis(None if ceiling is None else path_named(ceiling), peaks)


@takes_reading
def load_run(
    paths: Sequence[Path], *, details: bool = False, progress: Progress | None = None, **reading: Unpack[GivenOptions]
) -> Run:
    """Load the run at `paths`: one run directory, a folder of Kineto traces, or trace files.

    `progress` is called with the bytes read so far, of all files; the other options are those of `analyse`.
    Raises NoTraces, UnreadableFile, NotATrace, DamagedTrace, DuplicateRank, MixedJobs.
    """
    with OpenRun(paths, ReadOptions.given(details=details, **reading), lambda _: nullcontext(progress)) as run:
        return run.run()
