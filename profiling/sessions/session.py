"""One profiler session, which `capture()`, `train` and `run` share."""

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from signal import Signals
from typing import Any

import torch

from ...common.wording import counted
from ...contract.rank import STILL_RUNNING, StepTime
from ..base import run_directory as rundir
from ..base.console.notices import say, show
from ..base.current import leave_steps, take_steps
from ..base.detail import SHAPES_ONLY, Detail
from ..base.flight_recorder import DUMP_PREFIX
from ..base.interrupts import BLOCKED_GRACE_S, Interrupts
from ..base.keeping import TRACES_ONLY, Keeping
from ..base.schedule import Schedule
from ..errors import ProfilingError, UnwritableError
from ..ranks import process_group as parallel
from . import side_files as sidefiles
from .afterwards.conclusion import Conclusion, Patience
from .block import Block
from .clock_probe import ClockProbe
from .flight_recorder import FlightRecorder
from .kineto_buffers import GpuRecord
from .loop_watch import LoopWatch, steps_of_periods
from .memory_record import MemoryRecord
from .other_work import OtherWork
from .outcome import CYCLE_LOST, EARLY_IN_LOOP, NEVER_STEPPED, TOO_SHORT, Outcome, ended_well
from .profiler import Export, Profiler
from .rank_files import RankFiles
from .side_files import Subject
from .step_clock import StepClock, overhead

# After twice `BLOCKED_GRACE_S`, and within the 30 s of torchrun.
_CONCLUDE_BLOCKED_S = 10.0
# So many steps before the traced ones are looked at, each for some 40 us: half of them may be a period.
_LONGEST_PERIOD = 200


@dataclass(frozen=True)
class SessionOptions:
    """What is recorded besides times, and how a session begins.

    `create` makes the run directory; the usual one refuses a directory that has files in it. The other ranks wait for
    rank 0 to enter, for `patience`. `keeping` says what becomes of the traces, and `show` gets the summary of the run.
    `tell` gets a sentence on what became of it, from each rank that has one; None for a caller who says it.

    `agreed` are the ranks of a capture that they have agreed on before, with its directory: they begin it each by
    itself, and none waits for another one. Their clocks are not compared.
    """

    detail: Detail = SHAPES_ONLY
    keeping: Keeping = TRACES_ONLY
    show: Callable[[str], None] = show
    create: Callable[[Path], Path] = rundir.create_empty
    patience: timedelta = parallel.ENTRY_PATIENCE
    tell: Callable[[str], None] | None = None
    flight_recorder: bool = False
    agreed: Collection[int] | None = None


class Session(Block):
    """What `capture()` returns, and the block it guards. `run_dir` is final once the block is entered.

    With torch.distributed, every rank enters the block after init_process_group, and rank 0 decides the directory; the
    process group may be destroyed before the block ends. Without it, this is rank 0 of 1.

    When the block ends early - by an exception, SIGINT, SIGTERM, or too few steps - what was traced so far is written
    all the same, and the side file says `"complete": false` and why. Signals that the program handles itself are left
    to it.

    What is recorded, and what becomes of it, `capture()` says. Nothing that fails after the traces is an error of the
    training.

    Entering raises RunDirError when the directory cannot be made, and CaptureError when another profiler is running in
    this process, or another capture.

    The methods stand in the order of its life: what is known at any time; before the first step; while steps run; after
    the last one (stop the profiler, say what is missing, gather and analyse); and how a blocked rank ends. `Block` is
    how code surrounds it, `Profiler` traces, `RankFiles` writes, `Conclusion` does what follows the traces, and
    `Interrupts` handles signals.

    With gloo, end a script with `del model; gc.collect(); dist.destroy_process_group()`: a DDP model that is alive when
    the interpreter exits makes some runs abort there.
    """

    _program = "the loop"
    _early = EARLY_IN_LOOP
    _no_step = NEVER_STEPPED

    def __init__(
        self,
        run_dir: Path,
        schedule: Schedule,
        device: torch.device,
        subject: Subject,
        options: SessionOptions = SessionOptions(),
        profiler: Profiler | None = None,
        other: OtherWork | None = None,
    ) -> None:
        super().__init__()
        self.schedule = schedule
        self._device = device
        self._subject = subject
        self._options = options
        self._profiler = profiler or Profiler(schedule, device, options.detail)
        self._clock = StepClock(device, other)
        self._gpu = GpuRecord(device)
        self._probe = ClockProbe()
        self._files = RankFiles(run_dir, subject, options.agreed)
        self._record = self._files.record
        self._loop = LoopWatch(self._clock.counters.other)
        self.has_whole_periods = False
        """Whether whole periods of a loop are traced, with all that is in them."""
        leaving = Block.__exit__.__code__
        self._interrupts = Interrupts(self._free_blocked, self._leave_blocked, BLOCKED_GRACE_S, leaving)
        self._concluding = threading.Lock()  # by the main thread, or `_conclude_blocked`
        self._unwritten = False
        self._conclusion: Conclusion  # from the beginning of the block on
        self._recorder: FlightRecorder | None = None
        self._memory: MemoryRecord | None = None

    @property
    def run_dir(self) -> Path:
        """The directory of the run; before the block, that which was asked for."""
        return self._files.run_dir

    @property
    def is_first(self) -> bool:
        """Whether this rank writes and says what is the same for all."""
        return self._files.is_first

    @property
    def steps_done(self) -> int:
        """The number of finished steps."""
        return self._profiler.steps_done

    @property
    def traces(self) -> list[str]:
        """The names of the files of this rank that are kept."""
        return self._record.traces

    @property
    def interrupted_by(self) -> Signals | None:
        """The signal that ended the block, if one did."""
        return self._interrupts.received

    def step_times(self) -> list[StepTime]:
        """The times of all steps that the device has finished."""
        return self._clock.times()

    def last_step_time(self) -> StepTime | None:
        """The time of the last step that the device has finished; None without one."""
        return self._clock.last()

    def outcome(self) -> Outcome:
        """How the capture ended; for use after the block."""
        files = self._files
        return Outcome(
            files.run_dir,
            files.who.rank,
            files.who.world_size,
            files.cycles,
            files.record.reason,
            files.record.absent,
            overhead(self.step_times()),
            self._options.agreed,
            () if self._options.keeping.analyse else files.elsewhere(),  # which brings them here
        )

    def check_free(self) -> None:
        """Raise CaptureError if another profiler is running in this process."""
        self._profiler.check_free()

    def begin(self) -> None:
        """Agree on the run directory, begin the files there, and start the profiler."""
        self._begin_files()
        who = self._files.who
        self._conclusion = Conclusion(self._options.keeping, who, self.run_dir, self._options.show)
        if self._options.flight_recorder:
            self._recorder = FlightRecorder(self.run_dir, who.rank)
            self._recorder.start()
        self._interrupts.start()
        try:
            with self._interrupts.held():
                if self._options.agreed is None:
                    self._probe.at_start(who)
                else:
                    self._probe.skip("captured on demand, for which no rank waits")
                self._record.look_at_gpu("start")
                self._record.save(STILL_RUNNING)
                self._begin_memory()
                self._profiler.start(self._write_trace)
                self._clock.counters.start()
                self._clock.start()
        except BaseException:  # whoever could not begin has no end, where handlers are put back
            self._clock.counters.stop()
            self._interrupts.stop()
            raise
        if self._takes_steps:
            take_steps(self.step)

    def _begin_files(self) -> None:
        """Take the run directory of rank 0, and write to it what is known by now. Raises RunDirError."""
        options, files = self._options, self._files
        rank = parallel.identity().rank
        dumps = [f"{DUMP_PREFIX}{rank}"] if options.flight_recorder else []  # torch may write one by itself
        snapshots = [rundir.memory_snapshot_name(rank)] if options.detail.memory else []
        files.agree(options.create, options.patience, [*dumps, *snapshots])
        known = sidefiles.rank_facts(files.who, self._device, self.schedule, self._subject, self._profiler.options)
        files.begin(replace(known, keep=options.keeping.kept), self._clock, self._probe)
        only_on_gpus = options.detail.only_on_gpus
        if self.is_first and self._device.type != "cuda" and only_on_gpus:
            say(f"{', '.join(only_on_gpus)}: only for GPUs, and this capture is of a CPU; left out")
        files.keep_nccl_log()

    def _begin_memory(self) -> None:
        if self._options.detail.memory and self._device.type == "cuda":
            self._memory = MemoryRecord(self.run_dir, self._files.who.rank, self._device)
            self._memory.start()

    def _end_memory(self, error: BaseException | None) -> None:
        if self._memory is not None:
            self._memory.stop(error)
            self._note_memory()

    def _note_memory(self) -> None:
        memory = self._memory
        if memory is not None:
            self._record.set(
                step_memory=list(memory.steps), memory_snapshot=memory.name, memory_snapshot_reason=memory.reason
            )

    def note(self, **facts: Any) -> None:
        """Set fields of the side file that were found before the first step, which begins now. Raises RunDirError."""
        with self._interrupts.shield():
            self._record.set(**facts)
            self._record.save(STILL_RUNNING)
            self._clock.start()

    def step(self) -> None:
        """End a training step; its trace is written when it is the last active one of a cycle. Raises RunDirError.

        Raises CaptureError outside of the block.
        """
        self.check_recording()
        self._watch_loop()
        with self._interrupts.shield():
            step = self.steps_done
            phase = self.schedule.phase(step)
            self._clock.stop(step, phase, is_traced=self.records(step))
            self._gpu.look(step, phase)
            if self._memory is not None:
                self._memory.look(step)
            self._profiler.step()
            if self.schedule.ends_cycle(step):
                self._write_memory()
                self._files.look_for_absent()
            self._clock.start()

    def _watch_loop(self) -> None:
        schedule = self.schedule
        if schedule.extends and self.steps_done >= schedule.first_active - _LONGEST_PERIOD:
            self._loop.ended(self.steps_done)
            if self.steps_done == schedule.total_steps - 2:  # then torch takes the next step for the last one
                self._extend()

    def _extend(self) -> None:
        """Trace whole periods of a loop that repeats after several steps, once that is known."""
        period, schedule = self._loop.period, self.schedule
        self.has_whole_periods = period is not None
        active = schedule.active if period is None else steps_of_periods(period, schedule.active)
        self.reschedule(replace(schedule, active=active, extends=False))
        if period is not None and active > schedule.active and self.is_first:
            last = schedule.first_active + active - 1
            say(
                f"what steps do repeats after {period} of them: steps {schedule.first_active:,} to {last:,} are "
                "traced, which are two periods and the ends"
            )

    def reschedule(self, schedule: Schedule) -> None:
        """Trace other steps than those that are still to come."""
        self.schedule = schedule
        self._profiler.reschedule(schedule)
        self._record.set(schedule=sidefiles.schedule_facts(schedule))

    def _write_memory(self) -> None:
        if self._memory is not None:
            with self._interrupts.busy():
                self._memory.write()
                self._note_memory()

    def records(self, step: int) -> bool:
        """Whether the trace may hold this step."""
        return self.schedule.phase(step) == "active" or self.schedule.is_early(step)

    def _write_trace(self, export: Export) -> None:
        with self._interrupts.busy():
            cycle = self._files.cycles + self._profiler.cycles_lost
            self._conclusion.files.add(self._files.write_trace(export, self._gpu, cycle))
            self._record.look_at_groups()
            self._record.settle(self._conclusion.files, STILL_RUNNING)

    def end(self, error: BaseException | None) -> None:
        """Stop the profiler, write what is known now, and do what follows the traces."""
        with self._interrupts.shield():
            leave_steps(self.step)
            self._clock.counters.stop()
            failure = error
            self._unwritten = isinstance(error, UnwritableError)
            try:
                self._close(error)
            except BaseException as err:
                failure = error or err
                if error is None or not isinstance(err, Exception):
                    raise
                if isinstance(err, ProfilingError):  # else it follows from the program's own, which is to be seen
                    self._report_error(err)
            finally:
                self._conclude(failure)
                if self._recorder is not None:
                    self._recorder.stop(failed=failure is not None)
                self._release_signals()
                self.let_others_in()
                if self._options.tell is not None:
                    self._tell_outcome(self._options.tell)

    def _close(self, error: BaseException | None) -> None:
        try:
            self._profiler.stop()
            if error is None:
                self._clock.await_device(stopped=lambda: self.interrupted_by is not None)
                self._files.look_for_absent()
        except BaseException as err:
            error = error or err
            self._profiler.drop()
            raise
        finally:
            with suppress(RuntimeError):  # DDP's own times are CUDA events, which fail after a CUDA error
                self._record.look_at_groups()
            self._record.look_at_gpu("end")
            self._end_memory(error)
            self._record.save(self._why_incomplete(error))
            self._files.keep_nccl_log()  # of communication that began inside the block
            self._probe_again(error)

    def _probe_again(self, error: BaseException | None) -> None:
        """Compare clocks at the end of a block that ended normally: otherwise peers may be gone."""
        if self.interrupted_by is not None:
            self._probe.skip_end(f"the block was ended by {self.interrupted_by.name}")
        elif error is not None:
            self._probe.skip_end(f"the block was ended by {type(error).__name__}")
        else:
            self._probe.at_end(stopped=lambda: self.interrupted_by is not None)
        self._record.save(self._why_incomplete(error))

    def _why_incomplete(self, error: BaseException | None) -> str | None:
        why = self._profiler.why_incomplete()
        if why is not None:
            return why
        if self._all_traced:
            return self._gpu.lost or self._clock.unknown()  # whatever ended the block later
        scheduled = self.schedule.total_steps
        done = f"after {min(self.steps_done, scheduled)} of {scheduled} scheduled steps"
        if self.interrupted_by is not None:
            return f"{self.interrupted_by.name} {done}"
        if error is not None and not ended_well(error):
            if parallel.lost_peer(error):
                return f"another rank ended first, and broke a collective {done}"
            message = str(error).strip().partition("\n")[0]
            return f"{type(error).__name__}: {message} ({done})"
        return self._too_short(done) if self.steps_done else self._no_step

    def _too_short(self, done: str) -> str:
        """Why the program was too short, and what is traced instead."""
        schedule, last = self.schedule, self.steps_done - 1
        if self._files.cycles:
            asked = f"step {schedule.first_active}, from which {counted(schedule.active, 'step')} were to be traced"
            if schedule.is_early(last):
                return f"{self._program} ended before {asked}; steps {schedule.early_from} to {last} {self._early}"
            if self._profiler.wrote_early:
                early = f"steps {schedule.early_from} to {schedule.wait - 1} {self._early}"
                return f"{self._program} ended soon after {asked}; {early}"
        return f"{self._program} ended {done}; {TOO_SHORT}"

    @property
    def _all_traced(self) -> bool:
        """Whether every scheduled cycle is over, and its trace written."""
        return self.steps_done >= self.schedule.total_steps and self._files.cycles >= self.schedule.repeat

    def look_for_absent(self) -> None:
        """Record which ranks are not captured, as the process group is about to go."""
        with self._interrupts.shield():
            self._files.look_for_absent()

    def _tell_outcome(self, tell: Callable[[str], None]) -> None:
        sentence = self.outcome().sentence()
        if sentence:
            tell(sentence)

    def _release_signals(self) -> None:
        self._interrupts.stop()

    def _conclude(self, error: BaseException | None) -> None:
        """Gather recordings, and analyse the run."""
        self._gather(error)
        self._analyse(error)

    def _gather(self, error: BaseException | None, *, together: bool = False) -> None:
        """Finish packing, and gather recordings on rank 0."""
        if ended_well(error):
            self._interrupts.forget_caught()
        patience = self._patience_after(error)
        with self._errors_reported():
            self._conclusion.finish_packing(patience)
            self._record.settle(self._conclusion.files, self._record.reason)
            why = self._conclusion.gather(self._record.content(), patience, together=together)
            if why is not None:
                self._record.set(hand_over_reason=why)
                self._record.save(self._record.reason)

    def _analyse(self, error: BaseException | None) -> None:
        with self._errors_reported():
            self._conclusion.analyse(self._patience_after(error))

    def _patience_after(self, error: BaseException | None) -> Patience:
        return Patience(lambda: self.interrupted_by, failed=not ended_well(error))

    @contextmanager
    def _errors_reported(self) -> Iterator[None]:
        """Report errors of the block instead of raising them: training is over."""
        with self._concluding, self._interrupts.busy():
            try:
                yield
            except Exception as err:  # noqa: BLE001
                self._report_error(err)

    def _report_error(self, error: Exception) -> None:
        """Report an error, but only the first of files that cannot be written: others will fail alike."""
        if not (self._unwritten and isinstance(error, UnwritableError)):
            say(f"error: {error if isinstance(error, ProfilingError) else f'{type(error).__name__}: {error}'}")
        self._unwritten |= isinstance(error, UnwritableError)

    def _free_blocked(self) -> None:
        """Make the main thread's wait for other ranks fail, so that it goes on with an error."""
        if self._recorder is not None:
            self._recorder.keep()
        parallel.abort_process_groups()

    def _leave_blocked(self, signum: Signals) -> None:
        """End a process whose main thread is blocked for good; first write and report what is possible."""
        last = threading.Thread(target=self._conclude_blocked, args=(signum,), name="commtrace-conclude", daemon=True)
        try:
            last.start()
            last.join(_CONCLUDE_BLOCKED_S)
        finally:
            os._exit(128 + signum)

    def _conclude_blocked(self, signum: Signals) -> None:
        """Pack and analyse the traces written so far. The main thread, if it goes on after all, waits for the exit."""
        with self._errors_reported():
            self._note_blocked(signum)
            if self._files.cycles:
                patience = Patience(lambda: signum)
                self._conclusion.finish_packing(patience)
                self._record.settle(self._conclusion.files, self._record.reason)
                self._conclusion.analyse(patience)

    def _note_blocked(self, signum: Signals) -> None:
        lost = f"{signum.name} while blocked, in step {self.steps_done}; {CYCLE_LOST}"
        self._record.save(self._gpu.lost if self._all_traced else lost)
        self._tell_outcome(self._options.tell or say)
