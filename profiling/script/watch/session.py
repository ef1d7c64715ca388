"""The session of a script: it makes way for the script's own profilers, and needs no explicit end."""

import sys
from collections.abc import Callable
from datetime import timedelta
from signal import Signals
from typing import Any

from torch.profiler import ProfilerAction, profile

from ...base.keeping import TRACES_ONLY
from ...base.torch_private import drop_profiler, profiler_is_on
from ...errors import UnwritableError
from ...ranks.process_group import Identity
from ...sessions.outcome import ONE_STEP, Outcome
from ...sessions.session import Session

# Where rank 0 steps no optimizer it never comes, and the other ranks of the script wait.
PATIENCE = timedelta(seconds=30)
_OTHER_RUNS = "the script ran a profiler of its own"


class ScriptSession(Session):
    """A `Session` that makes way. `say` tells the user about the capture."""

    _no_step = ONE_STEP

    def __init__(self, *args: Any, say: Callable[[str], None]) -> None:
        super().__init__(*args)
        self._say = say
        self._is_over = False
        self._gathered = False
        self._aside = False  # for the rest of this cycle
        self._own_call = False
        self._started = False
        self._rests_until = 0
        self._cut_short: str | None = None
        self.unwritten: str | None = None
        """Why a file of the capture could not be written."""

    def _conclude(self, error: BaseException | None) -> None:
        """Do nothing where the capture ends: the script goes on and must not wait."""

    def _release_signals(self) -> None:
        """Leave signals alone, unless work follows at the script's end: a launcher ends ranks whose peer died."""
        self._is_over = True
        if self._keeping == TRACES_ONLY:
            super()._release_signals()

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
                self.gather(error)
                if self._cycles or self.unwritten is None:
                    self._analyse(error)
        finally:
            super()._release_signals()

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
        return Outcome(self.run_dir, who.rank, who.world_size, self._cycles, self.unwritten).sentence()

    def _note_blocked(self, signum: Signals) -> None:
        if not self._is_over:  # else it is the script that is blocked, after all that is traced
            super()._note_blocked(signum)

    def cut_short(self, why: str) -> None:
        """Note why this capture is incomplete; the first reason stays."""
        self._cut_short = self._cut_short or why

    def leave(self) -> None:
        """In a forked child: record nothing."""
        if self.schedule.phase(self.steps_done) == "active" and profiler_is_on():
            drop_profiler()

    def make_way(self) -> None:
        """End our profiler and write its trace, as the script is about to start its own."""
        if self._own_call or self._aside or self.schedule.phase(self.steps_done) == "idle":
            return
        with self._interrupts.shield():
            self._profiler.stop()
            self._stand_aside("started")
            self._profiler = self._new_profiler()
            self._profiler.step_num = self.steps_done

    def step(self) -> None:
        """End a step; steps far from the profiled ones cost some microseconds only."""
        if self.steps_done < self._rests_until:
            self._clock.stop(self.steps_done, "idle")
            self.steps_done += 1
            self._profiler.step_num += 1
            self._clock.start()
            return
        super().step()
        self._rests_until = self._next_change()

    def _next_change(self) -> int:
        """The last step before the profiler is needed again; 0 while it is."""
        position = self.steps_done % self.schedule.cycle_steps
        if self.steps_done >= self.schedule.total_steps:
            return sys.maxsize
        return self.steps_done - position + self.schedule.wait - 1 if position < self.schedule.wait else 0

    def _check_no_other_profiler(self) -> None:
        if not profiler_is_on():
            self._aside = False
        elif self._started or self.schedule.phase(self.steps_done) != "idle":
            self._stand_aside("was running")

    def _stand_aside(self, how: str) -> None:
        if self._aside:
            return
        self._aside = True
        self.cut_short(f"{_OTHER_RUNS}, which {how} in step {self.steps_done}; torch has one at a time")
        self._say(
            f"step {self.steps_done}: a profiler of the script's own {how}; until it ends, nothing is traced here"
        )

    def _notice_displacement(self) -> None:
        if not self._aside:
            super()._notice_displacement()

    def _new_profiler(self) -> profile:
        profiler = super()._new_profiler()
        profiler.record_steps = self._action(self.steps_done) is not ProfilerAction.NONE
        return profiler

    def _start_profiler(self) -> None:
        self._own_call = self._started = True
        try:
            super()._start_profiler()
        finally:
            self._own_call = False

    def _step_profiler(self) -> None:
        if self._aside and self.steps_done % self.schedule.cycle_steps == 0:
            self._aside = False  # the cycle is over
            if self.schedule.phase(self.steps_done) != "idle":
                self._check_no_other_profiler()
        if self._profiler.current_action is self._action(self.steps_done) is ProfilerAction.NONE:
            self._profiler.step_num += 1  # and no ProfilerStep in a trace of the script's own
            return
        self._own_call = True
        try:
            self._profiler.record_steps = True
            super()._step_profiler()
        finally:
            self._own_call = False

    def _action(self, step: int) -> ProfilerAction:
        return ProfilerAction.NONE if self._aside else super()._action(step)

    def _why_incomplete(self, error: BaseException | None) -> str | None:
        return self._cut_short or super()._why_incomplete(error)
