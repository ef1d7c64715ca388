"""The profiler of torch, and the schedule that it follows."""

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from ...common.memory import free_bytes
from ...contract.rank import ProfilerOptions
from ..base.console.notices import say
from ..base.detail import Detail
from ..base.schedule import Schedule
from ..base.torch_private import drop_profiler, profiler_is_on, recording
from ..errors import CaptureError
from ..ranks import places
from .kineto_buffers import LIMIT_MB, limit_mb, raise_limit
from .wall_clock import WallClock

_ACTIONS = {"idle": ProfilerAction.NONE, "warmup": ProfilerAction.WARMUP, "active": ProfilerAction.RECORD}
_ENOUGH_STEPS = 2  # of those that were asked for, so that their trace is worth more than that of earlier ones
Export = Callable[[str], None]
"""Write the trace of a cycle to the file of this name."""


class Profiler:
    """Profile steps as the schedule says: `start`, `step` at the end of each step, `stop`.

    `steps_done` is the number of finished steps; `options` says what is recorded.
    """

    def __init__(self, schedule: Schedule, device: torch.device, detail: Detail) -> None:
        self.options = _options(detail, device)
        self.steps_done = 0
        self._schedule = schedule
        self._device = device
        self._displaced = False
        self._wall = WallClock()
        self._clock_was_set: str | None = None
        self.wrote_early = False
        """Whether steps before those that were asked for were written, as these did not come."""
        self._early: profile | None = None  # has recorded these, until enough of the others are there
        self._early_over = False
        self._discards = False
        self.cycles_lost = 0
        """Cycles whose trace was not worth writing."""
        self._torch: profile
        self._write: Callable[[Export], None]

    def check_free(self) -> None:
        """Raise CaptureError if another profiler is running in this process."""
        if profiler_is_on():
            raise CaptureError("another profiler runs in this process, and torch has one at a time; stop that first")

    def start(self, write: Callable[[Export], None]) -> None:
        """Begin with step 0; `write` is called at the end of each cycle."""
        # Kineto tells of every start and stop on stderr. It reads this when it starts for the first time.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        if self._device.type == "cuda":
            self._raise_limit()
        self._write = write
        self._torch = self._new()
        self._torch.start()

    def _raise_limit(self) -> None:
        """Let Kineto's buffers grow as far as all ranks of this host can have them."""
        ranks_here = places.local_size() or torch.cuda.device_count()
        most_mb, asked_mb = limit_mb(ranks_here, free_bytes()), self.options.kineto_buffer_mb
        raise_limit(asked_mb, default_mb=most_mb)
        if asked_mb is None and most_mb < LIMIT_MB and not places.local_place():
            say(f"the profiler may take {most_mb:,} MiB of memory for the GPU on each rank, as little is free "
                "(--kineto-buffer-mb)")  # fmt: skip

    def _new(self) -> profile:
        self._wall.begin()
        made = self._made()
        made.step_num = self.steps_done
        made.current_action = cast("Any", self._action(self.steps_done))
        return made

    def _made(self) -> profile:
        cuda = [ProfilerActivity.CUDA] if self._device.type == "cuda" else []
        return profile(
            activities=[ProfilerActivity.CPU, *cuda],
            schedule=self._action,
            on_trace_ready=self._cycle_over,
            record_shapes=self.options.record_shapes,
            with_stack=self.options.with_stack,
            profile_memory=self.options.profile_memory,
            experimental_config=recording(sync_events=self.options.sync_events, garbage=self.options.with_stack),
        )

    def reschedule(self, schedule: Schedule) -> None:
        """Trace other steps; for use while nothing is profiled."""
        self._schedule = schedule

    @property
    def _is_early(self) -> bool:
        """Whether the steps that were asked for are still to come, and steps before them may be recorded."""
        return self._schedule.early_from is not None and self.steps_done < self._schedule.wait

    def _action(self, step: int) -> ProfilerAction:
        if self._early_over and step < self._schedule.wait:
            return ProfilerAction.NONE
        if self._schedule.is_early(step):
            return ProfilerAction.RECORD
        if self._schedule.ends_cycle(step):
            return ProfilerAction.RECORD_AND_SAVE
        return _ACTIONS[self._schedule.phase(step)]

    def _cycle_over(self, ended: profile) -> None:
        if self._discards:
            return
        self._early = None
        if self._displaced:
            return
        why = self._wall.why_wrong()
        if why is not None:
            self._clock_was_set = why
            self.cycles_lost += 1
            return
        self._write(ended.export_chrome_trace)

    def step(self) -> None:
        """End a step. Raises CaptureError if another profiler is running where a cycle is to start."""
        self._notice_displacement()
        if self._schedule.starts_cycle(self.steps_done):
            self._check_start()
        self.steps_done += 1
        self._step_torch()

    def _check_start(self) -> None:
        """Have no early step recorded where another profiler runs, which may have ended when it is time."""
        if self._is_early and profiler_is_on():
            self._early_over = True
        else:
            self.check_free()

    def _notice_displacement(self) -> None:
        """Note if another profiler has ended ours: exporting from it would crash the process."""
        if self._is_early:
            self._early_over |= self._schedule.is_early(self.steps_done) and not profiler_is_on()
            self._discards |= self._early_over
            return
        is_ours = self._torch.current_action.name == "DEVICE_STOPPED"  # by torch itself, when Kineto has stopped
        if self._schedule.phase(self.steps_done) == "active" and not profiler_is_on() and not is_ours:
            self._displaced = True

    def _step_torch(self) -> None:
        if self._schedule.early_from is not None and self.steps_done == self._schedule.wait:
            self._begin_again()
            return
        if not profiler_is_on():
            self._wall.begin()
        with warnings.catch_warnings():
            # Of a second cycle; each one is exported before the next begins.
            warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
            warnings.filterwarnings("ignore", message="Device profiling activity collection was stopped early")
            try:
                self._torch.step()
            except BaseException:
                self.drop()
                raise

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

    def stop(self) -> None:
        """End, and write what was traced of this cycle; call `drop` if that raises.

        Where that is hardly a step of those that were asked for, those before it are written instead.
        """
        early, self._early = self._early, None
        self._discards = early is not None and self.steps_done - self._schedule.first_active < _ENOUGH_STEPS
        self._notice_displacement()
        self._torch.stop()
        if early is not None and self._discards:
            self.wrote_early = True
            self._write(early.export_chrome_trace)

    def drop(self) -> None:
        """Turn the profiler off after an error: torch's stop() leaves it on if it cannot wait for the device."""
        if profiler_is_on() and not self._displaced:
            with suppress(RuntimeError):
                drop_profiler()

    def why_incomplete(self) -> str | None:
        """Why traces are missing, if another profiler is the reason, or the clock; else None."""
        if self._displaced:
            return "another profiler was started inside the traced steps, and ended this one"
        return self._clock_was_set


def _options(detail: Detail, device: torch.device) -> ProfilerOptions:
    on_gpu = device.type == "cuda"
    return ProfilerOptions(
        record_shapes=not detail.light,
        with_stack=detail.with_stack,
        profile_memory=detail.profile_memory or detail.memory,
        sync_events=detail.sync_events and on_gpu,
        kineto_buffer_mb=detail.kineto_buffer_mb if on_gpu else None,
    )
