"""Watch one process of a script: capture some of its steps.

The capture begins when the first step is over: by then the script has its process group, its model and its device. It
ends a few steps after the last traced one, so that the rest of the script runs as if nobody watched.
"""

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ....common.trigger import Beside, Plan, Request, folder_of_plan
from ...base.console.notices import say
from ...base.current import leave_steps, take_steps
from ...base.patches import Patches
from ...base.schedule import TRAILING_STEPS, Schedule
from ...base.torch_private import DEFAULT_GROUP_SETTER
from ...errors import CaptureError, ProfilingError, RunDirRefusedError, UnwritableError
from ...ranks import process_group as parallel
from ...ranks.places import one_of_several, place_of_several, restarts
from ...ranks.process_group import Identity
from ...sessions.other_work import OtherWork
from ...sessions.outcome import ended_well
from ...sessions.session import SessionOptions
from ...sessions.side_files import Subject
from ...sessions.step_clock import captures_graph
from ..config import UNTIL_PLANNED, RunConfig
from . import model
from .alone import Alone
from .asking_signal import AskingSignal
from .beside_training import BesideTraining
from .forks import end_without_kineto
from .frameworks import follow
from .limit_watchdog import LimitWatchdog
from .listener import Listener
from .others import OtherProfilers
from .processes import ProcessWatch
from .session import PATIENCE, ScriptSession
from .steps import Steps
from .words import IN_GRAPH, nothing_captured, plan_in_words, traced

# An interpreter that exits sooner after a collective of gloo aborts in some runs, while a DDP model is alive.
_GLOO_EXIT_S = 0.1
_LOOK_S = 1.0


class StartWatch(Protocol):
    """Watch the processes that a script starts in one way."""

    @property
    def taken(self) -> bool:
        """Whether one was started."""


class Observer:
    """The watch on one process: `attach()` once torch is imported, `finish()` at the end. Neither disturbs the script.

    `child` is the index of a process that torch.multiprocessing started. `start_watches` have processes watched that
    this one starts.
    """

    def __init__(
        self,
        config: RunConfig,
        command: Sequence[str],
        *,
        child: int | None = None,
        start_watches: Sequence[Callable[[Patches], "StartWatch | None"]] = (),
    ) -> None:
        self._config = config
        self._command = list(command)
        self._child = child
        self._pid = os.getpid()
        self._patches = Patches()  # until the first capture is over
        self._counting = Patches()  # until the script is over
        self._until_over = Patches()
        self._step_ends = Steps(self, config.steps_of, only_by_hand=config.step_on is not None)
        self._alone = Alone()
        self._other_work = OtherWork(self._notice if config.limits is None else None)
        self._others = OtherProfilers()
        self._session: ScriptSession | None = None
        self._watchdog: LimitWatchdog | None = None
        self._captured: ScriptSession | None = None  # also when that is over
        self._listener: Listener | None = None
        self._on_demand: list[ScriptSession] = []
        self._signal = AskingSignal()
        self._looks_again_s = 0.0
        self._beside = BesideTraining()
        self._is_owed = False  # a capture, once the script's own profiler has ended
        self._steps = -1  # of the optimizer, after the first one
        self._begun = False
        self._used_gloo = False
        self._entered: tuple[ScriptSession, Identity] | None = None  # or tried to
        self._start_watches = start_watches
        self._started: list[StartWatch] = []
        self._processes: ProcessWatch | None = None
        self.stopped_by: int | None = None

    def attach(self) -> None:
        """Start to watch this process."""
        self._attempt(self._hook_in)

    def _hook_in(self) -> None:
        os.register_at_fork(after_in_child=_leaver(self))
        self._others.watch(self._counting, self._before_other_profiler)
        watches = [begin(self._patches) for begin in self._start_watches]
        self._started = [watch for watch in watches if watch is not None]
        self._processes = ProcessWatch(self._patches)
        if self._config.limits is None:
            self._step_ends.attach(self._counting)
            self._alone.attach(self._step_ends, self._counting)
            self._other_work.attach(self._counting)
            take_steps(self.end_step)
            self._counting.on_detach(lambda: leave_steps(self.end_step))
            follow(self._step_ends, self._counting)
            self._signal.handle()
        elif self._child is None and not one_of_several():
            self._attempt(self._begin_whole)
        elif dist.is_available():
            for owner in (dist, dist.distributed_c10d):
                self._patches.wrap(owner, "init_process_group", self._init_process_group)

    def _notice(self, what: Beside) -> None:
        """Note that a recorded step of the first capture is not only a step of training."""
        session = self._session
        if session is not None and session is self._captured and os.getpid() == self._pid:
            self._beside.note(session, what)

    def finish(self, error: BaseException | None) -> None:
        """Finish after the script, with its error if any. May raise for a signal, as the script would."""
        if os.getpid() != self._pid:
            return
        with ExitStack() as shields:  # a launcher ends this rank just now, if it has ended because a peer died
            for entered in filter(None, (self._captured, *self._on_demand)):
                shields.enter_context(entered.shield())
            self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        self._signal.ignore()
        session = self._session
        if session is not None and self._config.limits is not None and ended_well(error):
            self._attempt(session.step)
        if session is not None and self._step_ends.in_graph and session.steps_done < session.schedule.total_steps:
            session.cut_short(IN_GRAPH)
        minute = self._config.from_minute
        if session is not None and minute is not None and session.schedule.wait == UNTIL_PLANNED:
            session.cut_short(f"the script ended before minute {minute:g} (--from-minute)")
        try:
            self._end(error)
        finally:
            self._counting.undo()
            if self._listener is not None:
                self._listener.stop()
            for captured in self._on_demand:
                self._attempt(partial(captured.conclude, error))
            if self._captured is not None:
                self._conclude(self._captured, error)
            self._report_loss()
        if not self._begun and not any(watch.taken for watch in self._started):
            processes = self._processes.said() if self._processes is not None else None
            in_graph = self._step_ends.in_graph
            say(nothing_captured(self._config, processes, in_graph=in_graph, has_stepped=self._steps >= 0))
        if self._used_gloo:
            time.sleep(_GLOO_EXIT_S)

    def _report_loss(self) -> None:
        """Report what of the capture could not be written."""
        if self._entered is not None:
            first, who = self._entered
            for sentence in filter(None, (session.loss(who) for session in (first, *self._on_demand))):
                say(f"error: {sentence}")

    def _conclude(self, session: ScriptSession, error: BaseException | None) -> None:
        """Wait for packing and analyse the run; signals only shorten that."""
        self._until_over.undo()
        try:
            session.conclude(error)
        finally:
            self.stopped_by = session.interrupted_by

    def _before_group_goes_in_capture(self, original: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        """Ask which ranks are captured, before nobody can be asked any more."""
        session = self._session
        if group is None and session is not None and os.getpid() == self._pid:
            self._attempt(session.look_for_absent)
        return original(group, *args, **kwargs)

    def _before_group_goes(self, original: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        """Gather recordings before the process group, and with it the store, is destroyed.

        Held until the script ends, it would be what another process group finds at the same address.
        """
        in_main = threading.current_thread() is threading.main_thread()  # not where a signal has a group aborted
        session = self._captured
        if group is None and in_main and os.getpid() == self._pid and session is not None:
            session.gather(sys.exc_info()[1], together=True)
        return original(group, *args, **kwargs)

    def leave(self) -> None:
        """In a forked child: stop to watch, and let it end as without us."""
        self._patches.undo()
        self._counting.undo()
        self._until_over.undo()
        if self._session is not None:
            self._session.leave()
        if self._begun:
            end_without_kineto()
        self._signal.goes_to(None)
        self._session = self._captured = self._listener = None

    def end_step(self) -> None:
        """End a step where the script, or its user, says so."""
        if os.getpid() == self._pid and self._config.limits is None:
            self._step_ends.by_hand()

    def step_ended(self, optimizer: Optimizer | None) -> None:
        """The first step opens the capture."""
        if os.getpid() == self._pid:
            self._attempt(lambda: self._count(optimizer))

    def steps_were_parts(self, because: str) -> None:
        """Count anew, as long as nothing has been written."""
        if os.getpid() == self._pid:
            self._attempt(lambda: self._count_anew(because))

    def _count_anew(self, because: str) -> None:
        session = self._session
        anew = session is not None and session.restart()
        if anew:
            self._steps = 0
        else:
            self._count(self._step_ends.last)
        if session is not None and parallel.identity().rank == 0:
            what = (
                "steps are counted from here" if anew else "those that were traced may be parts of steps; begin later"
            )
            advice = "" if anew else " (--from-step), or say where a step ends (--steps-of, --step-on)"
            say(f"{because}; {what}{advice}")

    def _count(self, optimizer: Optimizer | None) -> None:
        self._steps += 1
        self._alone.step_ended()
        listener = self._listener
        if listener is not None:
            listener.stepped(self._steps)
        if not self._begun:
            if self._rank_0_is_there():
                self._begin(self._subject(optimizer), model.trained_on(optimizer))
        elif self._session is not None:
            self._session.step()
            if self._session.steps_done >= self._session.schedule.total_steps + TRAILING_STEPS:
                self._end(None)
        elif self._is_owed and listener is not None and not self._others.are_on:
            self._is_owed = False
            listener.ask()
        if listener is not None and listener.has_plan:
            self._follow(listener)

    def _rank_0_is_there(self) -> bool:
        """Whether the capture has begun on rank 0, which may compile for minutes, or never step an optimizer."""
        who, now_s = parallel.identity(), time.monotonic()
        if now_s < self._looks_again_s:
            return False
        is_there = parallel.rank_0_came(who, timedelta(0) if self._looks_again_s else PATIENCE)
        if who.rank == 1 and not is_there and not self._looks_again_s:
            say("rank 0 has made no step of an optimizer yet; the other ranks go on, and are captured when it has")
        self._looks_again_s = time.monotonic() + _LOOK_S
        return is_there

    def _follow(self, listener: Listener) -> None:
        """Begin the capture that rank 0 has planned, or trace its steps instead of those that are still to come."""
        session = self._session
        if session is not None and session.schedule.first_profiled <= self._steps:
            return  # until that is over
        plan = listener.take()
        assert plan is not None
        warmup = self._config.schedule.warmup
        if plan.from_step - warmup < self._steps:
            say(f"the capture from step {plan.from_step} on is without rank {parallel.identity().rank}, which heard of "
                f"it at step {self._steps}")  # fmt: skip
            return
        schedule = Schedule(plan.from_step - warmup, warmup, plan.steps)
        if session is not None:
            session.reschedule(schedule)
            listener.free_until = 0
            if session.is_first:
                say(f"{traced(plan.from_step, plan.steps)} traced, into {session.run_dir}")
        elif plan.has(parallel.identity().rank):
            self._begin_on_demand(plan, schedule)

    def _begin_on_demand(self, plan: Plan, schedule: Schedule) -> None:
        first = self._captured
        assert first is not None
        assert self._listener is not None
        who = parallel.identity()
        keeping = replace(self._config.keeping, keep=self._config.keeping.kept, analyse=False)
        session = first.further(
            folder_of_plan(first.run_dir, plan),
            schedule,
            SessionOptions(
                self._config.detail,
                keeping,
                agreed=[rank for rank in range(who.world_size) if plan.has(rank)],
            ),
            done=self._steps,
        )
        session.__enter__()
        self._listener.free_until = 0
        self._session = session
        self._on_demand.append(session)
        if session.is_first:
            say(f"{traced(plan.from_step, plan.steps)} traced on demand, into {session.run_dir}")

    def _init_process_group(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not self._begun and os.getpid() == self._pid:
            self._attempt(self._begin_whole)
        return result

    def _begin_whole(self) -> None:
        limits = self._config.limits
        assert limits is not None
        if threading.current_thread() is not threading.main_thread():
            raise CaptureError("--whole-run needs the main thread, and the script began its work in another one")
        self._begin(Subject(config=self._config.as_json(), command=self._command), parallel.current_device())
        self._watchdog = LimitWatchdog(limits, self._stop_whole, not_now=captures_graph)
        self._watchdog.start()

    def _stop_whole(self, why: str) -> None:
        session = self._session
        if session is not None:
            session.cut_short(f"stopped early, because {why}")
            say(f"tracing stops here, because {why}; the script goes on")
            self._attempt(session.step)
            self._attempt(lambda: self._end(None))

    def _begin(self, subject: Subject, device: torch.device) -> None:
        self._begun = True
        who = parallel.identity()
        if who.world_size > 1 and parallel.default_store() is None and self._config.run_name is None:
            raise CaptureError(
                f"rank {who.rank} of {who.world_size} has no process group yet, so the ranks cannot agree on a name "
                "for the run; give one with --run-name"
            )
        session = ScriptSession(
            self._config.run_dir(who.world_size, self._part(who), restarts()),
            self._config.schedule,
            device,
            subject,
            SessionOptions(
                self._config.detail,
                self._config.keeping,
                patience=PATIENCE,
                flight_recorder=self._config.flight_recorder,
            ),
            others=self._others,
            other_work=self._other_work,
            say=say,
            done=max(0, self._steps),
        )
        self._entered = session, who
        session.__enter__()
        if dist.is_available():
            self._patches.wrap(dist.distributed_c10d, DEFAULT_GROUP_SETTER, self._before_group_goes_in_capture)
        self._session = self._captured = session
        self._used_gloo = "gloo" in (parallel.backend() or "")
        if self._config.limits is None:
            self._listen(session, who, device)
        if who.rank == 0:
            say(f"{plan_in_words(self._config)}; traces go to {session.run_dir}")

    def _listen(self, session: ScriptSession, who: Identity, device: torch.device) -> None:
        """Take requests for further captures from now on."""
        minutes, active = self._config.from_minute, self._config.schedule.active
        after_s = None if minutes is None else 60 * minutes
        self._alone.use(device)
        self._alone.want()
        self._listener = Listener(
            session.run_dir,
            who,
            after_s=after_s,
            first=Request(active),
            alone=self._alone,
            other=self._other_work,
        )
        self._listener.free_until = session.schedule.first_profiled
        self._signal.goes_to(self._listener)
        self._listener.start()

    def _part(self, who: Identity) -> str | None:
        """A name that distinguishes this capture from others of the same command; None if it is the only one."""
        if who.world_size == 1 and parallel.default_store() is None:
            return place_of_several() if self._child is None else str(self._child)
        return "spawned" if self._child is not None and self._config.limits is not None else None

    def _subject(self, optimizer: Optimizer | None) -> Subject:
        module = model.outermost(optimizer) if optimizer is not None else None
        return Subject(
            model=weakref.ref(module) if module is not None else None,
            config=self._config.as_json(),
            command=self._command,
            model_known=model.facts(optimizer) if optimizer is not None else None,
        )

    def _end(self, error: BaseException | None) -> None:
        """Close the capture; what is left then counts steps, and listens."""
        self._patches.undo()
        session, self._session = self._session, None
        if self._listener is not None:
            self._listener.free_until = sys.maxsize
        if self._watchdog is not None:
            self._watchdog.stop()
        if session is None:
            return
        try:
            self._attempt(lambda: session.__exit__(type(error) if error else None, error, None), session)
            beside = self._beside.said(session)
            self._is_owed = session is self._captured and (session.was_displaced or beside is not None)
            if beside is not None and session.is_first:
                goes_on = session.steps_done >= session.schedule.total_steps + TRAILING_STEPS
                later = "; later steps are traced as well if the training goes on for some seconds"
                say(beside + later if goes_on else beside)
        finally:
            self.stopped_by = session.interrupted_by
            if session is self._captured and self._config.keeping.analyse and dist.is_available():
                self._until_over.wrap(dist.distributed_c10d, DEFAULT_GROUP_SETTER, self._before_group_goes)
            sentence = session.outcome().sentence() if session.unwritten is None else None
            if sentence:
                say(sentence)

    def _before_other_profiler(self, original: Any, profiler: Any, *args: Any, **kwargs: Any) -> Any:
        session = self._session
        if session is not None and os.getpid() == self._pid:
            self._attempt(session.make_way)
        return original(profiler, *args, **kwargs)

    def _attempt(self, action: Callable[[], object], ended: ScriptSession | None = None) -> None:
        """Run an action for the capture, or for one that has `ended`, and keep its errors away from the script."""
        try:
            action()
        except Exception as err:  # noqa: BLE001
            is_first = (ended or self._session) is self._captured or not self._begun
            if isinstance(err, UnwritableError) and self._entered is not None and is_first:
                self._entered[0].note_unwritten(err)  # which is said at the end
            elif not isinstance(err, RunDirRefusedError):  # rank 0 says it
                what = str(err) if isinstance(err, ProfilingError) else f"{type(err).__name__}: {err}"
                say(f"error: {what.partition(chr(10))[0]}; the script goes on")
            self._give_up(err)

    def _give_up(self, error: Exception) -> None:
        session, self._session = self._session, None
        self._patches.undo()
        if self._listener is None:
            self._counting.undo()
        else:
            self._listener.free_until = sys.maxsize
        if self._watchdog is not None:
            self._watchdog.stop()
        if session is not None:
            with suppress(Exception):  # it has been said what is wrong
                session.__exit__(type(error), error, None)


def _leaver(observer: Observer) -> Callable[[], None]:
    held = weakref.ref(observer)

    def leave() -> None:
        left = held()
        if left is not None:
            left.leave()

    return leave
