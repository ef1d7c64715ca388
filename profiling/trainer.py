"""The capture that a callback of a trainer makes, and that breaks no training. Importable without torch."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypedDict

from ..contract.rank import Keep
from .base import run_directory as rundir
from .base.console.notices import say
from .base.detail import Detail
from .base.keeping import Keeping
from .base.schedule import ACTIVE, FROM_STEP, TRAILING_STEPS, WARMUP, Schedule
from .errors import RunDirRefusedError, UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from typing_extensions import Unpack

    from .sessions.session import Session

_FIRST_WITH_BUCKETS = 2
# All ranks begin to train at the same time. One whose capture failed must not keep the others for long.
_PATIENCE = timedelta(seconds=60)


class TrainerOptions(TypedDict, total=False):
    """The options of `TrainerCapture`, as callbacks take them."""

    from_step: int
    active: int
    with_stack: bool
    profile_memory: bool
    keep: Keep
    analyse: bool
    analyse_max_seconds: float


@dataclass(frozen=True)
class Findings:
    """What a capture showed: numbers by name, sentences, and the page, if there is one.

    `step` is the number of optimizer steps of the training, as its trainer counts them, after the last traced one.
    """

    step: int
    scalars: Mapping[str, float]
    headline: str
    summary: str
    page: Path | None


class TrainingLog(Protocol):
    """Where a training is logged."""

    name: str

    def add(self, findings: Findings) -> None: ...  # noqa: D102 - may raise whatever it likes


class TrainerCapture:
    """One capture of the first training of a trainer, told when that begins, ends a step, and is over.

    Steps `from_step` to `from_step + active - 1` are traced, counted from 0 in optimizer steps; earlier ones if the
    training is known to be too short. The traces go to `out`, which must be new or empty; without it, to a new folder
    in `traces/`, named after `kind`. `keep`, `with_stack`, `profile_memory`, `analyse` and `analyse_max_seconds` mean
    what they do for `capture()`.

    Raises UsageError for options that cannot be. After that nothing raises: what fails is said in one line on stderr,
    and the training goes on without a capture.
    """

    def __init__(
        self,
        kind: str,
        out: str | os.PathLike[str] | None = None,
        *,
        from_step: int = FROM_STEP,
        active: int = ACTIVE,
        with_stack: bool = False,
        profile_memory: bool = False,
        keep: Keep = "trace",
        analyse: bool = True,
        analyse_max_seconds: float = Keeping.max_seconds,
    ) -> None:
        if from_step < _FIRST_WITH_BUCKETS:
            why = "DDP rebuilds its buckets at the beginning of step 1"
            raise UsageError(f"from_step {from_step}: expected {_FIRST_WITH_BUCKETS} or more, because {why}")
        self._kind = kind
        self._out = None if out is None else Path(out)
        self._schedule = Schedule(from_step - WARMUP, WARMUP, active)
        self._detail = Detail(with_stack, profile_memory)
        self._keeping = Keeping(keep, analyse, analyse_max_seconds)
        self._session: Session | None = None
        self._step_at_begin = 0
        self._logs: tuple[TrainingLog, ...] = ()
        self._pid = 0
        self._is_used = False

    def begin(
        self,
        *,
        steps: float | None,
        device: torch.device,
        model: nn.Module | None,
        step: int = 0,
        batch_size: int | None = None,
        config: Mapping[str, Any] | None = None,
        logs: Callable[[], Iterable[TrainingLog]] = lambda: (),
    ) -> None:
        """Begin the capture, as a training begins of that many more steps after `step`; None if that is not known.

        `logs` finds where it is logged; it is called on rank 0 only.
        """
        if not self._is_used:
            self._is_used = True
            self._step_at_begin = step
            self._attempt(lambda: self._enter(steps, device, model, batch_size, config))
            if self._session is not None:
                self._find_logs(self._session, logs)

    def step(self) -> None:
        """End an optimizer step."""
        session = self._session
        if session is not None and session.steps_done < session.schedule.total_steps + TRAILING_STEPS:
            self._attempt(session.step)

    def end(self, error: BaseException | None = None) -> None:
        """End the capture; analyse it on rank 0, and write what it shows to the logs, unless the training failed."""
        session, self._session = self._session, None
        atexit.unregister(self._left_behind)
        if session is not None and os.getpid() == self._pid:
            self._attempt(lambda: _leave(session, error))
            if error is None:
                self._attempt(lambda: self._log(session))

    def _enter(
        self,
        steps: float | None,
        device: torch.device,
        model: nn.Module | None,
        batch_size: int | None,
        config: Mapping[str, Any] | None,
    ) -> None:
        import torch

        from .ranks import process_group as parallel
        from .sessions.session import SessionOptions
        from .sessions.side_files import Subject
        from .sessions.trainer_session import TrainerSession

        out = self._out
        if out is None:
            stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
            out = Path("traces") / f"{self._kind}-w{parallel.identity().world_size}-{stamp}"
        where = device if device.type == "cuda" else torch.device("cpu")
        held = weakref.ref(model) if model is not None else None
        subject = Subject(held, None, batch_size, config, sys.argv)
        options = SessionOptions(self._detail, self._keeping, patience=_PATIENCE, tell=say)
        session = TrainerSession(out, fitted(self._schedule, steps), where, subject, options)
        session.__enter__()
        self._session, self._pid = session, os.getpid()
        atexit.register(self._left_behind)

    def _find_logs(self, session: Session, logs: Callable[[], Iterable[TrainingLog]]) -> None:
        if session.is_first and self._keeping.analyse:
            try:
                self._logs = tuple(logs())
            except Exception as err:  # noqa: BLE001  (the capture is worth it without)
                say(f"what the capture shows will not be logged: {_reason(err)}")

    def _log(self, session: Session) -> None:
        """Write what the capture shows to each log; what fails there is said, and nothing else."""
        run_dir = session.run_dir
        page, scalars = run_dir / rundir.REPORT_FILE, run_dir / rundir.SCALARS_FILE
        if not self._logs or not scalars.is_file():  # and why there is none was said
            return
        found = json.loads(scalars.read_bytes())
        findings = Findings(
            step=self._step_at_begin + session.schedule.total_steps,
            scalars=found["scalars"],
            headline=found["headline"],
            summary=(run_dir / rundir.SUMMARY_FILE).read_text(encoding="utf-8", errors="replace"),
            page=page if page.is_file() else None,
        )
        for log in self._logs:
            why = _failure(lambda: log.add(findings), self._keeping.max_seconds)  # noqa: B023 - called before the next
            if why is not None:
                say(f"{log.name} has not all of the capture: {why}")

    def _attempt(self, act: Callable[[], None]) -> None:
        """Act; if that fails, say so and end the capture. Signals are left to the training."""
        try:
            act()
        except Exception as err:  # noqa: BLE001  (a training must not end by what watches it)
            session, self._session = self._session, None
            if session is None:
                if not isinstance(err, RunDirRefusedError):  # which rank 0 says for all
                    say(f"the training goes on without a capture: {_reason(err)}")
                return
            try:
                _leave(session, err)  # which says what became of it
            except Exception as again:  # noqa: BLE001
                say(f"the training goes on without the capture: {_reason(again)}")

    def _left_behind(self) -> None:
        """End the capture of a training that called no `end`: it failed, or its process ended."""
        with suppress(SystemExit, KeyboardInterrupt):  # a signal came meanwhile, and the process is ending anyway
            self.end(getattr(sys, "last_value", None) or SystemExit())


class CapturingCallback:
    """What callbacks of all trainers have in common; comes before the trainer's own class, which it initialises."""

    kind: ClassVar[str]
    """In the names of run directories."""

    def __init__(self, out: str | os.PathLike[str] | None = None, **options: Unpack[TrainerOptions]) -> None:
        super().__init__()
        self._capture = TrainerCapture(self.kind, out, **options)


def fitted(schedule: Schedule, steps: float | None) -> Schedule:
    """The schedule, begun earlier and cut so that it ends within this many steps; unchanged if they are not known.

    At least one step is traced, after two that are not.
    """
    if steps is None or steps >= schedule.total_steps:
        return schedule
    active = max(1, min(schedule.active, int(steps) - _FIRST_WITH_BUCKETS))
    wait = max(_FIRST_WITH_BUCKETS - WARMUP, min(schedule.wait, int(steps) - WARMUP - active))
    return Schedule(wait, WARMUP, active)


def _failure(act: Callable[[], None], seconds: float) -> str | None:
    """Act; return why that failed. A server that never answers must not keep the training from ending."""
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            act()
        except Exception as err:  # noqa: BLE001  (it is told)
            errors.append(err)

    thread = threading.Thread(target=attempt, name="commtrace-log", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return f"it took longer than {seconds:g} s"
    return f"{type(errors[0]).__name__}: {str(errors[0]).partition(chr(10))[0]}" if errors else None


def _leave(session: Session, error: BaseException | None) -> None:
    session.__exit__(type(error) if error is not None else None, error, None)


def _reason(error: Exception) -> str:
    return str(error) if type(error).__module__ == RunDirRefusedError.__module__ else f"{type(error).__name__}: {error}"
