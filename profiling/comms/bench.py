"""One rank of `comms`: measure and check every case, then trace if requested."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from signal import Signals

import torch

from ...contract.comms import COMMS_FILE
from ...contract.rank import STILL_RUNNING
from ..base import run_directory as rundir
from ..base.console.messages import tell
from ..base.console.progress import Reporter
from ..base.interrupts import BLOCKED_GRACE_S, Interrupts
from ..base.schedule import Schedule
from ..errors import MeasurementError
from ..ranks import process_group as parallel
from ..ranks.process_group import Identity
from ..sessions.session import Session, SessionOptions
from ..sessions.side_files import Subject
from ..sessions.step_clock import one_by_one_ns
from . import timing
from .backends import backend_for
from .collectives import COLLECTIVES, Buffers, Case, buffers, call_of, count_for, prepare, wrong_elements
from .config import CollectiveName, CommsConfig, DtypeName
from .exchange import Exchange
from .facts import comms_head, device_facts
from .results import CommsResults, CommsRow, Skipped, footer, header, title

_TIMED, _CHECKED = 0, 1  # repetitions of the inputs
_PROBE_BYTES = 64


def measure_rank(config: CommsConfig, command: Sequence[str]) -> Path:
    """Measure as one rank, and return the run directory. Raises ProfilingError."""
    who = parallel.identity()
    where = parallel.rank_device(config.device, who.local_rank)
    backend = backend_for(config.backend, where)
    with parallel.joined(backend, where):
        run_dir = parallel.agree_on_run_dir(who, config.run_dir(backend, who.world_size), rundir.create_empty)
        bench = Bench(config, who, where, run_dir, command)
        with bench.recorded():
            bench.measure()
        if config.trace_iters:
            bench.trace()
        bench.finish()
        return run_dir


class Bench:
    """The measurement of one rank; rank 0 keeps the results, prints them, and writes comms.json after each."""

    def __init__(
        self, config: CommsConfig, who: Identity, where: torch.device, run_dir: Path, command: Sequence[str]
    ) -> None:
        self._config = config
        self._who = who
        self._where = where
        self._path = run_dir / COMMS_FILE
        self._command = command
        self._exchange = Exchange(who)
        self._cases: list[Case] = []
        self._reporter = Reporter(rank=who.rank, steps=0)
        self._interrupts = Interrupts(parallel.abort_process_groups, self._leave_blocked, BLOCKED_GRACE_S)
        self._results = CommsResults(
            comms_head(config, where, self._exchange.gathered(device_facts(who, where)), command)
        )

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record in comms.json how the block ends and what was measured until then."""
        self._save(STILL_RUNNING)
        self._interrupts.start()
        try:
            yield
        except BaseException as err:
            self._save(_why_incomplete(err, self._interrupts.received))
            if isinstance(err, RuntimeError) and self._interrupts.received is not None:
                # Peers that stopped earlier break our communication; the cause is the signal.
                raise SystemExit(128 + self._interrupts.received) from err
            raise
        finally:
            self._interrupts.stop()

    def measure(self) -> None:
        """Time and check every case, in order. Raises MeasurementError on rank 0 if none can be measured."""
        wanted, sizes = list(_wanted(self._config)), self._config.sizes_bytes(self._where.type)
        self._print(title(self._results.facts))
        live = not sys.stdout.isatty()  # else the rows themselves show the progress
        with Reporter(rank=self._who.rank, steps=len(wanted) * len(sizes), unit="measurement", live=live) as reporter:
            self._reporter = reporter
            for number, (collective, dtype, op) in enumerate(wanted):
                what = " ".join(filter(None, (collective, op, dtype)))
                if not reporter.advance(number * len(sizes), what) and live:
                    reporter.say(f"{number + 1:>3}/{len(wanted)}  {what}, {len(sizes)} sizes")
                for done, case in enumerate(self._cases_of(collective, dtype, op, sizes), 1):
                    self._measure_case(case)
                    reporter.advance(number * len(sizes) + done, f"{what}, {case.size_bytes:,} bytes")
        if self._cases:
            return
        if self._who.rank != 0:
            raise SystemExit(MeasurementError.exit_code)  # rank 0 says why
        raise MeasurementError(f"none of these collectives can be measured here: {self._results.skipped[0].line()}")

    def trace(self) -> None:
        """Capture a few timed calls of every measured case."""
        config, where = self._config, self._where
        subject = Subject(config=config.as_json(), command=self._command)
        session = Session(self._path.parent, Schedule(0, 1, 1), where, subject, SessionOptions(create=rundir.make))
        times_us: list[list[float]] = []
        try:
            with session:
                for _ in range(session.schedule.total_steps):  # the first of them warms up the profiler
                    times_us = [_traced_us(case, config.trace_iters) for case in self._cases]
                    session.step()
        except BaseException as err:
            self._save(f"while tracing: {_why_incomplete(err, session.interrupted_by)}")
            if isinstance(err, RuntimeError) and session.interrupted_by is not None:
                raise SystemExit(128 + session.interrupted_by) from err
            raise
        of_ranks = self._exchange.gathered(times_us)
        if of_ranks is not None:
            together = zip(self._results.rows, zip(*of_ranks, strict=True), strict=True)
            self._results.rows[:] = [replace(row, traced_us=list(times)) for row, times in together]

    def finish(self) -> None:
        """Mark the file as complete and print the last line. Raises MeasurementError on rank 0 for wrong results."""
        self._save(None)
        self._print(footer(self._results))
        if wrong := self._results.wrong:
            raise MeasurementError(
                f"{wrong} elements of the results are wrong: the backend, a link or memory corrupts data; "
                f"{self._path} says which collectives and sizes"
            )

    def _cases_of(self, collective: CollectiveName, dtype: DtypeName, op: str | None, sizes: list[int]) -> list[Case]:
        """One case per size; none if the backend lacks the collective or there are too few ranks."""
        least = COLLECTIVES[collective].least_ranks
        itemsize = getattr(torch, dtype).itemsize
        if self._who.world_size < least:
            self._skip(Skipped(collective, dtype, op or "none", f"needs {least} ranks"))
            return []
        probe = self._case(collective, dtype, op, _PROBE_BYTES // itemsize)
        lacking = self._agreed(_failure(probe))
        if lacking is not None:
            self._skip(Skipped(collective, dtype, op or "none", f"{parallel.backend()} lacks it: {lacking}"))
            return []
        counts = [count_for(collective, size, itemsize, self._who.world_size) for size in sizes]
        for size, count in zip(sizes, counts, strict=True):
            if not count:
                reason = "less than an element for every rank" if size >= itemsize else "less than an element"
                self._skip(Skipped(collective, dtype, op or "none", reason, size))
        return [self._case(collective, dtype, op, count) for count in dict.fromkeys(counts) if count]

    def _case(self, collective: CollectiveName, dtype: DtypeName, op: str | None, count: int) -> Case:
        who = self._who
        return Case(
            collective, getattr(torch, dtype), op, count, who.rank, who.world_size, self._config.root, self._where
        )

    def _measure_case(self, case: Case) -> None:
        held, failure = _prepared(case)
        no_memory = self._agreed(failure)
        if held is None or no_memory is not None:
            dtype = _dtype_name(case)
            self._skip(Skipped(case.collective, dtype, case.op or "none", str(no_memory), case.size_bytes))
            return
        call = call_of(case, held)
        timing.repeat(call, self._config.warmup, case.device)
        time_ns = timing.back_to_back_ns(call, self._config.iters, case.device, self._exchange.largest)
        timing.together(case.device)
        prepare(case, held, _CHECKED)
        timing.repeat(call, 1, case.device)
        of_ranks = self._exchange.gathered([time_ns, wrong_elements(case, held, _CHECKED)])
        self._cases.append(case)
        if of_ranks is not None:
            times_ns, wrong = zip(*of_ranks, strict=True)
            self._add(_row(case, self._config.iters, times_ns, sum(wrong)))

    def _add(self, row: CommsRow) -> None:
        rows = self._results.rows
        if not rows or rows[-1].collective != row.collective:
            self._print([f"# {row.collective} ({'in place' if row.in_place else 'out of place'})", *header()])
        rows.append(row)
        self._print([row.line()])
        self._save(STILL_RUNNING)

    def _agreed(self, reason: str | None) -> str | None:
        """The reason of the first rank that cannot go on; None on every rank if all can."""
        reasons = self._exchange.gathered(reason)
        first = None if reasons is None else next((each for each in reasons if each is not None), None)
        agreed: str | None = self._exchange.from_first(first)
        return agreed

    def _skip(self, skipped: Skipped) -> None:
        self._results.skipped.append(skipped)
        self._reporter.say(skipped.line())

    def _print(self, lines: Sequence[str]) -> None:
        """Print to stdout without delay."""
        if self._who.rank == 0:
            tell("\n".join(lines))

    def _save(self, reason: str | None) -> None:
        if self._who.rank == 0:
            with self._interrupts.shield():
                rundir.write_json(self._path, self._results.file(reason))

    def _leave_blocked(self, signum: Signals) -> None:
        """End a process whose main thread is blocked forever."""
        try:
            if self._who.rank == 0:
                rundir.write_json(self._path, self._results.file(f"{signum.name}, while a collective was blocked"))
        finally:
            os._exit(128 + signum)


def _wanted(config: CommsConfig) -> Iterator[tuple[CollectiveName, DtypeName, str | None]]:
    for collective in config.collectives:
        for dtype in config.dtypes:
            for op in config.ops if COLLECTIVES[collective].reduces else (None,):
                yield collective, dtype, op


def _failure(case: Case) -> str | None:
    """Why the call cannot be made; None if it can. Raises errors that the end of another rank causes."""
    try:
        held = buffers(case)
        prepare(case, held, _TIMED)
        timing.repeat(call_of(case, held), 1, case.device)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as err:
        if parallel.lost_peer(err):
            raise
        return _first_line(err)
    return None


def _prepared(case: Case) -> tuple[Buffers | None, str | None]:
    """Buffers with inputs, or the reason why there are none."""
    try:
        held = buffers(case)
        prepare(case, held, _TIMED)
    except (RuntimeError, MemoryError) as err:
        return None, _first_line(err)
    return held, None


def _traced_us(case: Case, times: int) -> list[float]:
    held = buffers(case)
    prepare(case, held, _TIMED)
    timing.together(case.device)
    return [time_ns / 1e3 for time_ns in one_by_one_ns(call_of(case, held), times, case.device)]


def _row(case: Case, iters: int, times_ns: Sequence[float], wrong: int) -> CommsRow:
    kind = COLLECTIVES[case.collective]
    return CommsRow(
        case.collective,
        case.size_bytes,
        case.count,
        _dtype_name(case),
        case.op or "none",
        case.root if kind.rooted else -1,
        kind.in_place,
        iters,
        times_ns,
        wrong,
    )


def _dtype_name(case: Case) -> str:
    return str(case.dtype).removeprefix("torch.")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _why_incomplete(error: BaseException, signum: Signals | None) -> str:
    if signum is not None:
        return signum.name
    if parallel.lost_peer(error):
        return "another rank ended first, and broke a collective"
    return f"{type(error).__name__}: {_first_line(error)}"
