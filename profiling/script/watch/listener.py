"""Listen for requests of further captures while a script trains, and have the ranks agree on a step. Knows no torch.

See docs/design/0040-capture-on-demand.md. All of it happens in a thread of its own: a step adds one to a number and
looks whether there is a plan. The thread looks into the run directory, about once a second; what it finds there, or
does not, or cannot read or write, never reaches the script.
"""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Protocol

from ....common import trigger
from ....common.trigger import Beside, Need, Plan, Pulse, Request, WrongRequest
from ...base.console.notices import say
from ...ranks.process_group import Identity

_EVERY_S = 1.0
# So many ranks may together look, and write how far they are, each second.
_RANKS_PER_S = 64
# Rank 0 names a step that no rank reaches before it has looked so often; and some steps more, for ranks ahead of it.
_LOOKS_AHEAD = 3
_STEPS_AHEAD = 4
# Requests of this many looks after a plan are the same one: SIGUSR2 to all ranks, say.
_LOOKS_MERGED = 4
# A plan that is this many times as far ahead as this rank would name a step is nobody's.
_TOO_FAR = 100
_JOIN_S = 2.0
_OF_ALL = Request()
_Stamp = tuple[int, int, int]


# An evaluation is known by a step that goes on for so many usual ones, and for so long at least.
_STEPS_OF_EVALUATION = 2
_EVALUATION_NS = 1_000_000_000
# While one goes on, or a checkpoint, a pulse is written so often: else the job would be taken for one that is over.
_GOES_ON_NS = 20_000_000_000


class AloneTimes(Protocol):
    """How long a rank needs no other one in a step; see `Alone`."""

    def want(self) -> None: ...  # noqa: D102
    def take(self) -> tuple[int, Need] | None: ...  # noqa: D102


class OtherTimes(Protocol):
    """What a rank does beside training; see `OtherWork`."""

    def since(self, begin_ns: int, *, last_step_ns: int, least_ns: int) -> Beside | None: ...  # noqa: D102


class Listener:
    """One rank's ear. The training thread calls `stepped`, `take` and `ask`, and sets `free_until`.

    With `after_s`, rank 0 asks for `first` itself when that much time has passed. What `alone` and `other` tell is
    written with each pulse.
    """

    def __init__(
        self,
        run_dir: Path,
        who: Identity,
        *,
        after_s: float | None = None,
        first: Request | None = None,
        alone: AloneTimes | None = None,
        other: OtherTimes | None = None,
    ) -> None:
        self.every_s = max(_EVERY_S, who.world_size / _RANKS_PER_S)
        self.free_until = sys.maxsize
        """Rank 0 plans no capture that would not be over before this step; `sys.maxsize` if it is free."""
        self.done = 0
        """Steps that this rank has done."""
        self._run_dir = run_dir.absolute()  # the script may change its directory
        self._who = who
        self._after_s, self._first = after_s, first or _OF_ALL
        self._began_s = time.monotonic()
        self._last = (0, time.perf_counter_ns())
        self._beaten = self._last
        self._beat_ns = 0
        self._alone, self._other = alone, other
        self._beside: Beside | None = None
        self._step_s = 0.0
        self._asked: Request | None = None
        self._plan: Plan | None = None
        self._heard: set[Plan] = set()
        self._number = 0
        self._read: tuple[_Stamp, Request | None, str] | None = None
        self._made: Path | None = None
        self._merged, self._merged_until_s = Plan(), 0.0
        self._stuck: _Stamp | None = None
        self._said: set[str] = set()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen."""
        thread = threading.Thread(target=self._work, name="commtrace-listener", daemon=True)
        try:
            thread.start()
        except RuntimeError as err:  # no more threads for this user
            self._say(f"captures on demand are not possible: {err}")
            return
        self._thread = thread

    def stop(self) -> None:
        """Stop to listen. A file system that does not answer keeps nobody waiting for long."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def stepped(self, done: int) -> None:
        """Note that this many steps are done."""
        self.done = done
        self._last = (done, time.perf_counter_ns())

    @property
    def has_plan(self) -> bool:
        """Whether there is a plan that was not taken."""
        return self._plan is not None

    def take(self) -> Plan | None:
        """The plan of rank 0 that was not taken yet."""
        plan, self._plan = self._plan, None
        return plan

    def ask(self) -> None:
        """Ask for a capture of all ranks. A handler of signals may call this: it only sets a value."""
        self._asked = _OF_ALL

    # --- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        if self._who.rank == 0:
            with suppress(OSError):  # of which only those need to hear who ask for something
                self._tell(Plan())
        while not self._stopped.wait(self.every_s):
            self._try(self._look)
        trigger.leave(self._run_dir, self._who.rank)
        self._remove_unused()

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as err:
            self._say(f"captures on demand are not possible now: {self._run_dir}: {err.strerror or err}")
        except Exception as err:  # noqa: BLE001  (nothing of this is the script's)
            self._say(f"captures on demand are not possible now: {type(err).__name__}: {err}")

    def _tell(self, plan: Plan) -> None:
        """Write the plan, into a folder that may have been removed meanwhile, but not with the run directory."""
        trigger.make_folder(self._run_dir)
        trigger.decide(self._run_dir, plan)

    def _look(self) -> None:
        self._measure()
        if self._who.rank:
            self._hear()
            if self._asked is not None and self._stamp() is None:  # else what is asked for already comes first
                trigger.ask(self._run_dir, self._asked)
                self._asked = None
        else:
            if self._after_s is not None and time.monotonic() - self._began_s >= self._after_s:
                self._after_s, self._asked = None, self._first
            self._answer()
        self._beat()

    def _measure(self) -> None:
        (done, at_ns), (before, before_ns) = self._last, self._beaten
        if done > before:
            self._step_s = (at_ns - before_ns) / (done - before) / 1e9

    def _hear(self) -> None:
        """Look whether rank 0 has a new plan. Its number alone does not tell: any might have been written there."""
        plan = trigger.plan_of(self._run_dir)
        if plan is None or not plan.number or plan in self._heard or not self._step_s:
            return
        if plan.from_step - self.done <= _TOO_FAR * self._ahead():
            self._heard.add(plan)
            self._plan = plan

    def _ahead(self) -> int:
        """How many steps ahead a plan begins; where nothing is known of the steps yet, nobody knows that."""
        return _STEPS_AHEAD + ceil(_LOOKS_AHEAD * self.every_s / self._step_s) if self._step_s else sys.maxsize

    def _answer(self) -> None:
        """As rank 0, plan what is asked for, once nothing else is going on."""
        found = self._found()
        request = self._asked or found
        if request is None:
            return
        merged = time.monotonic() < self._merged_until_s and (self._merged.steps, self._merged.ranks) == (
            request.steps,
            request.ranks,
        )
        plan = Plan(self._number + 1, self.done + self._ahead(), request.steps, request.ranks)
        if not merged and (self._plan is not None or plan.from_step + plan.steps > self.free_until):
            return
        if request == found and not self._taken_back() and self._asked is None:
            return
        self._asked = None
        if merged:
            return
        try:
            if self.free_until == sys.maxsize:  # else other steps are traced instead of those of the first capture
                plan = trigger.make_folder_of_plan(self._run_dir, plan)
                self._made = trigger.folder_of_plan(self._run_dir, plan)
            self._tell(plan)
        except OSError as err:
            self._remove_unused()
            self._refuse(f"the ranks cannot be told: {err.strerror or err}")
            return
        self._number, self._plan, self._merged = plan.number, plan, plan
        self._merged_until_s = time.monotonic() + _LOOKS_MERGED * self.every_s

    def _found(self) -> Request | None:
        """What somebody asks for by a file, once it has been the same at two looks: it may not be whole yet.

        What makes no sense is refused. A file that could not be removed when it was answered asks for nothing more.
        """
        stamp = self._stamp()
        before, self._read = self._read, None
        if stamp in (None, self._stuck):
            return None
        wrong, request = "", None
        try:
            request = trigger.request_of(self._run_dir, self._who.world_size)
        except WrongRequest as err:
            wrong = str(err)
        self._read = stamp, request, wrong
        if self._read != before:
            return None
        if wrong and self._taken_back():
            self._refuse(wrong)
        return request

    def _refuse(self, why: str) -> None:
        """Say why a request is not answered, beside it and on the console."""
        with suppress(OSError):
            trigger.refuse(self._run_dir, why)
        self._say(f"{self._run_dir / trigger.REQUEST}: refused: {why}")

    def _remove_unused(self) -> None:
        """Remove the folder of the last plan, unless ranks have come to it."""
        if self._made is not None:
            with suppress(OSError):
                self._made.rmdir()

    def _taken_back(self) -> bool:
        """Remove the request, before it is answered: else it would be answered again and again."""
        self._read = None
        try:
            trigger.take_back(self._run_dir)
        except OSError as err:
            self._stuck = self._stamp()
            self._say(f"{self._run_dir / trigger.REQUEST}: left alone, as it cannot be removed: {err.strerror or err}")
            return False
        return True

    def _stamp(self) -> _Stamp | None:
        """Tells one state of the request's file from another; None if there is none."""
        try:
            status = (self._run_dir / trigger.REQUEST).lstat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _beat(self) -> None:
        """Write how far this rank is. Nobody needs that if it cannot be written."""
        (done, at_ns), (before, before_ns) = self._last, self._beaten
        now_ns = time.perf_counter_ns()
        # Steps since the last pulse hold what was done beside them. Without any, only what was not told yet counts.
        beside = self._beside_since(before_ns if done > before else max(before_ns, self._beat_ns), at_ns)
        if done == before and beside == self._beside and (beside is None or now_ns - self._beat_ns < _GOES_ON_NS):
            return
        self._beaten, self._beside, self._beat_ns = (done, at_ns), beside, now_ns
        step_ns = round((at_ns - before_ns) / (done - before)) if done > before > 0 else None
        alone_ns, need = (self._alone.take() if self._alone is not None else None) or (None, None)
        pulse = Pulse(
            self._who.rank, done, time.time_ns(), step_ns, self.every_s, self._who.host, alone_ns, need, beside
        )
        try:
            trigger.beat(self._run_dir, pulse)
        except OSError:
            with suppress(OSError):  # the folder, unless the run directory has gone as well
                trigger.make_folder(self._run_dir)
        if self._alone is not None:
            self._alone.want()

    def _beside_since(self, before_ns: int, at_ns: int) -> Beside | None:
        if self._other is None:
            return None
        least_ns = max(_EVALUATION_NS, round(_STEPS_OF_EVALUATION * self._step_s * 1e9))
        return self._other.since(before_ns, last_step_ns=at_ns, least_ns=least_ns)

    def _say(self, line: str) -> None:
        """Once, and for all ranks if it concerns them."""
        if line not in self._said and not self._who.rank:
            self._said.add(line)
            say(line)
