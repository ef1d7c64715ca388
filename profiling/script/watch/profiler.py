"""The profiler of a script's capture, which makes way for the script's own."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerAction, profile

from ...base.detail import Detail
from ...base.schedule import Schedule
from ...base.torch_private import drop_profiler, profiler_is_on
from ...sessions.profiler import Export, Profiler
from .others import OtherProfilers

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
        profiler.record_steps = self._action(self.steps_done) is not ProfilerAction.NONE
        return profiler

    def _action(self, step: int) -> ProfilerAction:
        return ProfilerAction.NONE if self._aside else super()._action(step)

    def _check_start(self) -> None:
        self.check_free()

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
            if not begins_again:
                self._torch.record_steps = True
            super()._step_torch()

    def _notice_displacement(self) -> None:
        if self._is_early or not self._aside:
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
