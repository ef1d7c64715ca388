"""Run a script from checked options to its end. Imports torch only after the script does."""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..base import run_directory as rundir
from ..base.console.notices import say
from ..base.flight_recorder import record_calls
from ..base.tied_process import tied_program
from ..errors import ProfilingError, RunDirError, TargetError, UnwritableError, UsageError
from ..ranks import nccl_log
from ..ranks.places import local_place, one_of_several, speaks_for_all
from . import main_module
from .config import RunConfig, StepOn
from .on_import import after_import
from .returns import Returns

if TYPE_CHECKING:
    from .watch.observer import Observer

# The signals for which our handlers raise SystemExit, where Python's own would have ended the process.
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def run_script(
    config: RunConfig,
    workers: int | None,
    args: Sequence[str],
    failed: Callable[[ProfilingError], int],
) -> int:
    """Run the script here or as `workers` ranks; return the exit code, unless the script raises."""
    launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    _ignore_requests()
    try:
        _check(config, workers, launched=launched)
        if workers is not None and not launched:
            from ..ranks import launch

            return launch.launch(tied_program(args), workers)
    except ProfilingError as err:
        return _report_once(err, failed)
    try:
        return _run_here(config, ["commtrace", *args])
    except TargetError as err:
        return _report_once(err, failed)


def run_again(args: Sequence[str]) -> int:
    """Run one more rank of a script that starts its own: `args` are config and command line as JSON."""
    config, command = map(json.loads, args)
    _ignore_requests()
    try:
        return _run_here(RunConfig.from_json(config), command)
    except TargetError as err:
        say(f"error: {err}")
        return err.exit_code


def _ignore_requests() -> None:
    """A request for a capture that comes before somebody listens must not end the process, as SIGUSR2 does."""
    if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _report_once(error: ProfilingError, failed: Callable[[ProfilingError], int]) -> int:
    """Report the error on the first rank of a host only; return its exit code."""
    if one_of_several() and local_place():
        return error.exit_code
    return failed(error)


def _check(config: RunConfig, workers: int | None, *, launched: bool) -> None:
    """Check what is known before the script starts. Raises ProfilingError."""
    main_module.check(config.target)
    if launched and workers not in (None, int(os.environ["WORLD_SIZE"])):
        raise UsageError(f"--workers {workers}: torchrun started {os.environ['WORLD_SIZE']} ranks; leave --workers out")
    if config.run_name is not None and speaks_for_all():
        rundir.check_free(config.out / config.run_name)
    tells = not local_place() and not (launched and workers is not None)  # else another rank does, or the launcher
    if tells or config.strict:
        try:
            rundir.check_writable(config.out)
        except UnwritableError as err:
            if config.strict:
                raise
            say(f"error: {err}; the script goes on, and there will be no trace of it (--strict ends it here)")


class _Watch:
    """The observer of this process, made once torch is imported."""

    def __init__(self, config: RunConfig, command: Sequence[str]) -> None:
        self._given = (config, command)
        self._pid = os.getpid()
        self.observer: Observer | None = None

    def begin(self) -> None:
        """Make the observer: torch has been imported."""
        if os.getpid() != self._pid:
            return
        from .watch.children import wrap_spawned
        from .watch.observer import Observer
        from .watch.reruns import RerunWatch

        watches = partial(wrap_spawned, *self._given), partial(RerunWatch, *self._given)
        self.observer = Observer(*self._given, start_watches=watches)
        self.observer.attach()

    def end_step(self) -> None:
        """End a step: the function of `--step-on` has returned."""
        if self.observer is not None:
            self.observer.end_step()

    def finish(self, error: BaseException | None) -> None:
        """Finish the observer: the script has ended."""
        if os.getpid() != self._pid:
            return
        try:
            if self.observer is None:
                say("nothing was captured: the script did not import torch")
            else:
                self.observer.finish(error)
        finally:
            nccl_log.tidy()


def _run_here(config: RunConfig, command: Sequence[str]) -> int:
    """Run the script in this process; return 0, or raise what it raises. Raises TargetError."""
    if config.flight_recorder:
        record_calls()
    watch = _Watch(config, command)
    try:
        nccl_log.redirect(config.out, config.detail.nccl_debug)
    except RunDirError as err:
        say(f"error: {err}; NCCL logs where it usually does")
    after_import("torch", watch.begin)
    error: BaseException | None = None
    try:
        main_module.execute(config.target, _watched_returns(config, watch))
    except TargetError:
        nccl_log.tidy()
        raise
    except BaseException as err:  # noqa: BLE001  (raised again below)
        error = err
    try:
        watch.finish(error)
    except (KeyboardInterrupt, SystemExit) as err:  # a signal came meanwhile
        error = err
    if error is None:
        return 0
    _end_by_signal(watch, error)
    main_module.hide_our_frames()
    raise error


def _watched_returns(config: RunConfig, watch: _Watch) -> Returns | None:
    """Have the returns of the function of `--step-on` watched; return what watches one of the script itself."""
    if config.step_on is None:
        return None
    of = StepOn.parsed(config.step_on)
    returns = Returns(of, watch.end_step)
    returns.watch(config.target)
    return returns if of.is_of(config.target) else None


def _end_by_signal(watch: _Watch, error: BaseException) -> None:
    """End by the signal as the script would have, if our handler made an exception of it."""
    signum = watch.observer.stopped_by if watch.observer else None
    if signum in _ENDING and isinstance(error, SystemExit) and error.code == 128 + signum:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
