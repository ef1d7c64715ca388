"""The session of a script: it makes way for the script's own profilers, and needs no explicit end."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from signal import Signals

import torch

from ...base.keeping import TRACES_ONLY
from ...base.schedule import TRAILING_STEPS, Schedule
from ...errors import UnwritableError
from ...ranks.process_group import Identity
from ...sessions.other_work import OtherWork
from ...sessions.outcome import EARLY, NOT_REACHED, ONE_STEP, Outcome
from ...sessions.session import Session, SessionOptions
from ...sessions.side_files import Subject
from .others import OtherProfilers
from .profiler import ScriptProfiler

# Ranks wait so long for rank 0, where they have made a step and it has not; then they go on, and look again.
PATIENCE = timedelta(seconds=10)
# Unprofiled steps that are timed before the profiled ones.
_BASELINE_STEPS = 5 * TRAILING_STEPS


class ScriptSession(Session):
    """A `Session` that makes way. `say` tells the user about the capture; `done` steps have been done before it.

    `other_work` notices what is beside training, also between captures.
    """

    _program = "the script"
    _early = EARLY
    _no_step = ONE_STEP
    _takes_steps = False  # the observer does, who also counts those without a session
    _profiler: ScriptProfiler

    def __init__(
        self,
        run_dir: Path,
        schedule: Schedule,
        device: torch.device,
        subject: Subject,
        options: SessionOptions,
        *,
        others: OtherProfilers,
        other_work: OtherWork,
        say: Callable[[str], None],
        done: int = 0,
    ) -> None:
        profiler = ScriptProfiler(schedule, device, options.detail, others, say, done)
        super().__init__(run_dir, schedule, device, subject, options, profiler, other_work)
        self._others = others
        self._other_work = other_work
        self._say = say
        self._is_over = False
        self._gathered = False
        self._rests_until = 0
        self.unwritten: str | None = None
        """Why a file of the capture could not be written."""

    def step(self) -> None:
        """End a step; steps far from the profiled ones cost some microseconds only."""
        left = self._rests_until - self.steps_done
        if left > 0:
            self._watch_loop()
            # Of a long wait, the last steps are enough to compare traced ones with.
            if left <= _BASELINE_STEPS or self.steps_done >= self.schedule.total_steps:
                self._clock.stop(self.steps_done, "idle")
                self._clock.start()
                if self._memory is not None:
                    self._memory.look(self.steps_done)
            elif left == _BASELINE_STEPS + 1:
                self._clock.start()
                if self._memory is not None:
                    self._memory.reset()
            self._profiler.skip_step()
            return
        super().step()
        self._rests_until = self.schedule.idle_until(self.steps_done)

    def restart(self) -> bool:
        """Count steps anew from 0 and drop those so far; return False, and do nothing, if a trace has been written."""
        if self._files.cycles:
            return False
        with self._interrupts.shield():
            self._rests_until = 0
            self._profiler.restart()
            self._clock.restart()
        return True

    def reschedule(self, schedule: Schedule) -> None:
        """Trace other steps than those that are still to come."""
        super().reschedule(schedule)
        self._rests_until = schedule.idle_until(self.steps_done)

    def further(self, run_dir: Path, schedule: Schedule, options: SessionOptions, *, done: int) -> "ScriptSession":
        """Another capture of the same script, when this one is over."""
        return ScriptSession(
            run_dir,
            schedule,
            self._device,
            self._subject,
            options,
            others=self._others,
            other_work=self._other_work,
            say=self._say,
            done=done,
        )

    def make_way(self) -> None:
        """End our profiler and write its trace, as the script is about to start its own."""
        if self._profiler.is_in_the_way:
            with self._interrupts.shield():
                self._profiler.make_way()

    def cut_short(self, why: str) -> None:
        """Note why this capture is incomplete; the first reason stays."""
        self._profiler.cut_short(why)

    def leave(self) -> None:
        """In a forked child: record nothing."""
        self._profiler.leave()

    def traced_steps(self) -> list[int]:
        """The steps that are in the traces, the one that the script ended in as well."""
        if not self._files.cycles:
            return []
        schedule, last = self.schedule, self.steps_done
        early = self._profiler.wrote_early or schedule.is_early(last)
        return [step for step in range(schedule.first_profiled, min(last + 1, schedule.total_steps))
                if self.records(step) and schedule.is_early(step) == early]  # fmt: skip

    @property
    def was_displaced(self) -> bool:
        """Whether nothing was traced, because the script ran a profiler of its own."""
        return not self._files.cycles and self._profiler.stood_aside

    def _too_short(self, done: str) -> str:
        schedule, last = self.schedule, self.steps_done - 1
        if not self._files.cycles and schedule.early_from is None and last < schedule.first_active:
            return f"the script ended after step {last:,}, before step {schedule.first_active:,}, {NOT_REACHED}"
        return super()._too_short(done)

    def _conclude(self, error: BaseException | None) -> None:
        """Do nothing where the capture ends: the script goes on and must not wait."""

    def _release_signals(self) -> None:
        """Leave signals alone, unless work follows at the script's end: a launcher ends ranks whose peer died."""
        self._is_over = True
        if self._options.keeping == TRACES_ONLY:
            super()._release_signals()

    def shield(self) -> AbstractContextManager[None]:
        """Hold signals back until the block ends; then raise for one that came."""
        return self._interrupts.shield()

    def gather(self, error: BaseException | None, *, together: bool = False) -> None:
        """Bring recordings together on rank 0, once; with `together`, other ranks wait for it."""
        if not self._gathered:
            self._gathered = True
            with self._interrupts.shield():
                self._gather(error, together=together)

    def conclude(self, error: BaseException | None) -> None:
        """Do what follows the traces, after the script has ended."""
        try:
            with self._interrupts.shield():
                self._attempt_memory(error)
                self.gather(error)
                if self._files.cycles or self.unwritten is None:
                    self._analyse(error)
        finally:
            super()._release_signals()

    def _end_memory(self, error: BaseException | None) -> None:
        """Go on recording if the training goes on: it may run out of memory later."""
        if error is not None:
            super()._end_memory(error)

    def _attempt_memory(self, error: BaseException | None) -> None:
        if self._memory is not None and self._memory.is_recording:
            super()._end_memory(error)
            with self._errors_reported():
                self._record.save(self._record.reason)

    def _report_error(self, error: Exception) -> None:
        """Keep the error of an unwritable file until the script has ended; report others at once."""
        if isinstance(error, UnwritableError):
            self.note_unwritten(error)
        else:
            super()._report_error(error)

    def note_unwritten(self, error: UnwritableError) -> None:
        """Note that a file could not be written; the first reason stays."""
        self.unwritten = self.unwritten or str(error)

    def loss(self, who: Identity) -> str | None:
        """What unwritten files cost, as a sentence; None for nothing, or if rank 0 says it.

        Ranks share a disk, most often. Where any of them has a trace, each has to speak for itself.
        """
        if self.unwritten is None or (who.rank and not any(self.run_dir.glob("*.pt.trace.*"))):
            return None
        return Outcome(self.run_dir, who.rank, who.world_size, self._files.cycles, self.unwritten).sentence()

    def _note_blocked(self, signum: Signals) -> None:
        if not self._is_over:  # else it is the script that is blocked, after all that is traced
            super()._note_blocked(signum)
