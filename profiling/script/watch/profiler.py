"""The profiler of a script's capture, which makes way for the script's own."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.profiler import ProfilerAction, profile

from ...base.detail import Detail
from ...base.schedule import Schedule
from ...base.torch_private import drop_profiler, profiler_is_on
from ...sessions.profiler import Export, Profiler
from .others import OtherProfilers

_ENOUGH_STEPS = 2  # of those that were asked for, so that their trace is worth more than that of earlier ones
_OTHER_RUNS = "the script ran a profiler of its own"


class ScriptProfiler(Profiler):
    """A `Profiler` that stands aside for the rest of a cycle when the script has one of its own.

    `say` tells the user about it. Outside of a cycle it leaves no mark in a trace of the script's.
    """

    def __init__(
        self,
        schedule: Schedule,
        device: torch.device,
        detail: Detail,
        others: OtherProfilers,
        say: Callable[[str], None],
        done: int = 0,
    ) -> None:
        super().__init__(schedule, device, detail)
        self.steps_done = done
        self._others = others
        self._say = say
        self._started = False
        self._aside = False  # for the rest of this cycle
        self._early_over = False
        self._early: profile | None = None  # has recorded steps before those that were asked for, until these are there
        self.wrote_early = False
        self._discards = False
        self._cut_short: str | None = None

    @property
    def is_in_the_way(self) -> bool:
        """Whether a profiler of the script's that starts now would end this one."""
        is_off = self._action(self.steps_done) is ProfilerAction.NONE
        return not (is_off or self._schedule.phase(self.steps_done) == "idle")

    @property
    def stood_aside(self) -> bool:
        """Whether a profiler of the script's took the place of this one in steps that were asked for."""
        return (self._cut_short or "").startswith(_OTHER_RUNS)

    def make_way(self) -> None:
        """End, and write the trace, as the script is about to start its own; count on for the next cycle.

        Steps that are recorded early are not worth a trace: those that were asked for may still come.
        """
        self._discards = self._is_early
        self._torch.stop()
        self._discards = False
        self._stand_aside("started")
        self._torch = self._new()

    def restart(self) -> None:
        """Begin anew with step 0, and write nothing of the steps so far."""
        self._discards = True
        try:
            self._torch.stop()
        finally:
            self._discards = False
        self.steps_done = 0
        self._aside = self._early_over = False
        self._early = None
        self.check_free()
        self.start(self._write)

    def check_free(self) -> None:
        """Stand aside if a profiler of the script's is running, unless it may end before this one is needed."""
        if not self._others.are_on:
            self._aside = False
        elif self._started or self._schedule.phase(self.steps_done) != "idle":
            self._stand_aside("was running")

    @property
    def _is_early(self) -> bool:
        """Whether the steps that were asked for are still to come, and steps before them may be recorded."""
        return self._schedule.early_from is not None and self.steps_done < self._schedule.wait

    def _stand_aside(self, how: str) -> None:
        if self._is_early:
            self._early_over = True
            return
        if self._aside:
            return
        self._aside = True
        self.cut_short(f"{_OTHER_RUNS}, which {how} in step {self.steps_done}; torch has one at a time")
        self._say(
            f"step {self.steps_done}: a profiler of the script's own {how}; until it ends, nothing is traced here"
        )

    def start(self, write: Callable[[Export], None]) -> None:
        """Begin with step 0."""
        self._started = True
        with self._others.ours():
            super().start(write)

    def _new(self) -> profile:
        profiler = super()._new()
        profiler.step_num = self.steps_done
        action = self._action(self.steps_done)
        profiler.current_action = cast("Any", action)
        profiler.record_steps = action is not ProfilerAction.NONE
        return profiler

    def _action(self, step: int) -> ProfilerAction:
        if self._aside or (self._early_over and step < self._schedule.wait):
            return ProfilerAction.NONE
        return ProfilerAction.RECORD if self._schedule.is_early(step) else super()._action(step)

    def _cycle_over(self, ended: profile) -> None:
        if not self._discards:
            self._early = None
            super()._cycle_over(ended)

    def stop(self) -> None:
        """End, and write what was traced of this cycle: the steps before it where there are hardly any of its own."""
        early, self._early = self._early, None
        self._discards = early is not None and self.steps_done - self._schedule.first_active < _ENOUGH_STEPS
        super().stop()
        if early is not None and self._discards:
            self.wrote_early = True
            self._write(early.export_chrome_trace)

    def reschedule(self, schedule: Schedule) -> None:
        """Trace other steps; for use while nothing is profiled."""
        self._schedule = schedule

    def skip_step(self) -> None:
        """End an idle step that an idle one follows; for use from `start` on."""
        self.steps_done += 1
        self._torch.step_num += 1

    def _step_torch(self) -> None:
        if self._aside and self.steps_done % self._schedule.cycle_steps == 0:
            self._aside = False  # the cycle is over
            if self._schedule.phase(self.steps_done) != "idle":
                self.check_free()
        is_off = self._torch.current_action is self._action(self.steps_done) is ProfilerAction.NONE
        begins_again = self._schedule.early_from is not None and self.steps_done == self._schedule.wait
        if is_off and not begins_again:
            self._torch.step_num += 1  # and no ProfilerStep in a trace of the script's own
            return
        with self._others.ours():
            if begins_again:
                self._begin_again()
                return
            self._torch.record_steps = True
            super()._step_torch()

    def _begin_again(self) -> None:
        """Keep what was recorded early in memory, and begin with the steps that were asked for."""
        if not self._early_over:
            self._discards = True
            self._torch.stop()
            self._early = None if self._wall.why_wrong() else self._torch
        self._discards = self._early_over = False
        self.check_free()
        self._torch = self._new()
        self._torch.start()

    def _notice_displacement(self) -> None:
        if self._is_early:
            self._early_over |= self._schedule.is_early(self.steps_done) and not profiler_is_on()
            self._discards |= self._early_over
        elif not self._aside:
            super()._notice_displacement()

    def leave(self) -> None:
        """In a forked child: record nothing."""
        if self._schedule.phase(self.steps_done) == "active" and profiler_is_on():
            drop_profiler()

    def cut_short(self, why: str) -> None:
        """Note why traces are missing; the first reason stays."""
        self._cut_short = self._cut_short or why

    def why_incomplete(self) -> str | None:
        """Why traces are missing: what was noted first, or else what any profiler says."""
        return self._cut_short or super().why_incomplete()
