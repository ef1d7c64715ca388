"""One profiler session: `capture()`, which `train` and people's own loops share."""

import os
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from ..base import run_directory as rundir
from ..base.contract.rank import ProfilerOptions, RankFile, StepTime
from ..base.interrupts import BLOCKED_GRACE_S, Interrupts
from ..base.schedule import Schedule
from ..base.torch_private import profiler_is_on
from ..errors import CaptureError
from ..modes import FACTS
from ..ranks import process_group as parallel
from . import side_files as sidefiles
from .clock_probe import ClockProbe
from .flight_recorder import FlightRecorder
from .side_files import Subject
from .step_clock import StepClock

_UNFINISHED = rundir.UNFINISHED
_ACTIONS = {"idle": ProfilerAction.NONE, "warmup": ProfilerAction.WARMUP, "active": ProfilerAction.RECORD}


@dataclass(frozen=True)
class SessionOptions:
    """What is recorded besides times and shapes, and how a session begins.

    `create` makes the run directory; the usual one refuses a directory that has files in it. The other ranks wait for
    rank 0 to enter, for `patience`.
    """

    with_stack: bool = False
    profile_memory: bool = False
    create: Callable[[Path], None] = rundir.create_empty
    patience: timedelta = parallel.ENTRY_PATIENCE
    flight_recorder: bool = False


class Session:
    """What `capture()` returns, and the block it guards. `run_dir` is final once the block is entered.

    With torch.distributed, every rank enters the block after init_process_group, and rank 0 decides the directory; the
    process group may be destroyed before the block ends. Without it, this is rank 0 of 1.

    When the block ends early - by an exception, SIGINT, SIGTERM, or too few steps - what was traced so far is written
    all the same, and the side file says `"complete": false` and why. Signals that the program handles itself are left
    to it.

    With gloo, end a script with `del model; gc.collect(); dist.destroy_process_group()`: a DDP model that is alive when
    the interpreter exits makes some runs abort there.
    """

    def __init__(
        self,
        run_dir: Path,
        schedule: Schedule,
        device: torch.device,
        subject: Subject,
        options: SessionOptions = SessionOptions(),
    ) -> None:
        self.run_dir = run_dir
        self._create = options.create
        self._with_recorder = options.flight_recorder
        self._recorder: FlightRecorder | None = None
        self._patience = options.patience
        self.schedule = schedule
        self.traces: list[str] = []
        self.steps_done = 0
        self._device = device
        self._subject = subject
        self._options = ProfilerOptions(
            record_shapes=True, with_stack=options.with_stack, profile_memory=options.profile_memory
        )
        self._clock = StepClock(device)
        self._probe = ClockProbe()
        leaving = type(self).__exit__.__code__
        self._interrupts = Interrupts(self._free_blocked, self._leave_blocked, BLOCKED_GRACE_S, leaving)
        self._displaced = False
        self._facts: RankFile

    def __enter__(self) -> "Session":
        self._check_no_other_profiler()
        who = parallel.identity()
        self._worker = rundir.worker_name(who.host, who.rank)
        self.run_dir = parallel.agree_on_run_dir(who, self.run_dir, self._create, self._patience)
        rundir.make(self.run_dir)
        rundir.claim(self.run_dir, self._worker, [rundir.RUN_FILE] if who.rank == 0 else [])
        self._facts = sidefiles.rank_facts(who, self._device, self.schedule, self._subject, self._options)
        self._refresh()
        self._save(_UNFINISHED)
        if who.rank == 0:
            facts = sidefiles.run_facts(self.run_dir.name, who, self._subject)
            rundir.write_json(self.run_dir / rundir.RUN_FILE, facts)
        if self._with_recorder:
            self._recorder = FlightRecorder(self.run_dir, who.rank)
            self._recorder.start()
        self._interrupts.start()
        with self._interrupts.held():  # an exception from here would leave the handlers behind
            self._probe.at_start(who)
            self._save(_UNFINISHED)
            self._start_profiler()
        return self

    def note(self, **facts: Any) -> None:
        """Set fields of the side file that were found before the first step, which begins now. Raises RunDirError."""
        with self._interrupts.shield():
            self._facts = replace(self._facts, **facts)
            self._save(_UNFINISHED)
            self._clock.start()

    def step(self) -> None:
        """End a training step; its trace is written when it is the last active one of a cycle. Raises RunDirError."""
        with self._interrupts.shield():
            self._clock.stop(self.steps_done, self.schedule.phase(self.steps_done))
            self._notice_displacement()
            if self.schedule.starts_cycle(self.steps_done):
                self._check_no_other_profiler()
            self.steps_done += 1
            self._step_profiler()
            self._clock.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._interrupts.shield():
            try:
                self._notice_displacement()
                self._profiler.stop()
            except BaseException as err:
                error = error or err
                raise
            finally:
                self._refresh()
                self._save(self._why_incomplete(error))
                self._probe_again(error)
                if self._recorder is not None:
                    self._recorder.stop(failed=error is not None)
                self._interrupts.stop()

    @property
    def interrupted_by(self) -> Signals | None:
        """The signal that ended the block, if one did."""
        return self._interrupts.received

    @property
    def _all_traced(self) -> bool:
        """Whether every scheduled cycle is over, and its trace written."""
        return self.steps_done >= self.schedule.total_steps and len(self.traces) >= self.schedule.repeat

    def step_times(self) -> list[StepTime]:
        """The time of every step so far, or as far as the device has come."""
        return self._clock.times()

    def last_step_time(self) -> StepTime | None:
        """The last one of these."""
        return self._clock.last()

    def _start_profiler(self) -> None:
        # Kineto tells of every start and stop on stderr. It reads this when it starts for the first time.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._profiler = self._new_profiler()
        self._profiler.start()
        self._clock.start()

    def _new_profiler(self) -> profile:
        cuda = [ProfilerActivity.CUDA] if self._device.type == "cuda" else []
        return profile(
            activities=[ProfilerActivity.CPU, *cuda],
            schedule=self._action,
            on_trace_ready=self._write_trace,
            **asdict(self._options),
        )

    def _step_profiler(self) -> None:
        with warnings.catch_warnings():
            # Of a second cycle; each one is exported before the next begins.
            warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
            self._profiler.step()

    def _action(self, step: int) -> ProfilerAction:
        if self.schedule.ends_cycle(step):
            return ProfilerAction.RECORD_AND_SAVE
        return _ACTIONS[self.schedule.phase(step)]

    def _check_no_other_profiler(self) -> None:
        if profiler_is_on():
            raise CaptureError("another profiler runs in this process, and torch has one at a time; stop that first")

    def _notice_displacement(self) -> None:
        """Exporting from a profiler that another one has ended would crash the process."""
        if self.schedule.phase(self.steps_done) == "active" and not profiler_is_on():
            self._displaced = True

    def _write_trace(self, profiler: profile) -> None:
        if self._displaced:
            return
        with self._interrupts.busy():
            name = rundir.trace_name(self._worker, len(self.traces))
            rundir.write_trace(self.run_dir / name, profiler.export_chrome_trace)
            self.traces.append(name)
            self._refresh()
            self._save(_UNFINISHED)

    def _refresh(self) -> None:
        """Look again at what comes and goes inside the block: subgroups, the default group, the model."""
        model = self._subject.model() if self._subject.model else None
        groups = parallel.process_groups() or self._facts.process_groups
        modes = {mode: facts_of(model) for mode, facts_of in FACTS.items()} if model is not None else {}
        found: dict[str, Any] = {mode: facts for mode, facts in modes.items() if facts}
        self._facts = replace(self._facts, process_groups=groups, **found)

    def _save(self, reason: str | None) -> None:
        facts = replace(
            self._facts,
            **self._probe.facts(),
            complete=reason is None,
            reason=reason,
            steps=self.step_times(),
            traces=self.traces,
        )
        rundir.write_json(self.run_dir / rundir.meta_name(self._worker), facts)

    def _probe_again(self, error: BaseException | None) -> None:
        """The clocks at the end, of a block that ended normally: else peers may be gone."""
        if self.interrupted_by is not None:
            self._probe.skip_end(f"the block was ended by {self.interrupted_by.name}")
        elif error is not None:
            self._probe.skip_end(f"the block was ended by {type(error).__name__}")
        else:
            self._probe.at_end(stopped=lambda: self.interrupted_by is not None)
        self._save(self._why_incomplete(error))

    def _why_incomplete(self, error: BaseException | None) -> str | None:
        if self._displaced:
            return "another profiler was started inside the traced steps, and ended this one"
        if self._all_traced:
            return None  # whatever ended the block later
        scheduled = self.schedule.total_steps
        done = f"after {min(self.steps_done, scheduled)} of {scheduled} scheduled steps"
        if self.interrupted_by is not None:
            return f"{self.interrupted_by.name} {done}"
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            if parallel.lost_peer(error):
                return f"another rank ended first, and broke a collective {done}"
            message = str(error).strip().partition("\n")[0]
            return f"{type(error).__name__}: {message} ({done})"
        return f"the loop ended {done}"

    def _free_blocked(self) -> None:
        """Let the main thread go on that waits for other ranks, with an error."""
        if self._recorder is not None:
            self._recorder.keep()
        parallel.abort_process_groups()

    def _leave_blocked(self, signum: Signals) -> None:
        """End a process whose main thread is blocked for good, with what can still be written."""
        lost = f"{signum.name} while blocked, in step {self.steps_done}; the trace of that cycle is lost"
        try:
            self._save(None if self._all_traced else lost)
        finally:
            os._exit(128 + signum)


def capture(
    out: str | os.PathLike[str],
    *,
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    repeat: int = 1,
    with_stack: bool = False,
    profile_memory: bool = False,
    device: torch.device | str | None = None,
    model: nn.Module | None = None,
    batch_size: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> Session:
    """Capture a training loop into the run directory `out`, which must be new or empty.

        with capture("traces/mine", model=model) as session:
            for images, labels in loader:
                ...                # one training step
                session.step()     # the step is over

    The profiler waits for `wait` steps, warms up for `warmup`, and traces `active` steps, `repeat` times; tensor shapes
    are always recorded, source lines and allocations on request. DDP rebuilds its buckets before its second iteration:
    there keep wait + warmup >= 2, with FSDP and pipelines >= 1. `device` is the current CUDA device where there is one.
    `model` adds parameter counts, DDP's buckets and FSDP2's groups to the side files, `batch_size` is per rank,
    `config` is kept as it is. What happens where the block ends early, and with several ranks: see `Session`.

    Raises UsageError for a schedule that cannot be; on entering, RunDirError when `out` has files in it, and
    CaptureError when another profiler is running in this process.
    """
    where = torch.device(device) if device is not None else parallel.current_device()
    held = weakref.ref(model) if model is not None else None
    subject = Subject(model=held, batch_size=batch_size, config=config, command=sys.argv)
    options = SessionOptions(with_stack, profile_memory)
    return Session(Path(out), Schedule(wait, warmup, active, repeat), where, subject, options)
