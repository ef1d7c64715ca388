"""Processes that work for this one: forks of it where that is safe, otherwise new interpreters.

A fork is ready at once; a new interpreter takes a tenth of a second of a core to import what it needs.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from ...common.processes import ANYWHERE, isolated
from .worker import run_worker, serve


class Worker(Protocol):
    """A process that serves calls, see `worker`; `returncode` is None until it has been waited for."""

    pid: int
    returncode: int | None

    @property
    def stdin(self) -> IO[bytes] | None:
        """The pipe that takes its calls."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """Where its answers come from; unbuffered, so that a poll sees whether there are more."""

    def kill(self) -> None:
        """End it at once, whatever it is doing."""

    def wait(self) -> int:
        """Wait for its end, and return the exit code."""


def start_worker(others: Sequence[Worker]) -> Worker:
    """Start a worker beside `others`: all that were started before and not yet waited for. Raises OSError."""
    return _Copy(others) if _has_one_thread() else _new_interpreter()


def _has_one_thread() -> bool:
    """Only a process with one thread can be forked: locks of other threads would stay as they are at that moment."""
    try:
        return len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:  # no Linux
        return False


class _Copy:
    """A fork of this process, which goes on as a worker."""

    def __init__(self, others: Sequence[Worker]) -> None:
        """Raises OSError where no more processes, or open files, are allowed."""
        calls, own_stdin = os.pipe()
        try:
            own_stdout, answers = os.pipe()
        except OSError:
            _close(calls, own_stdin)
            raise
        # A pipe ends when its last writer closes it, and the fork inherits all of them.
        inherited = [stream.fileno() for o in others for stream in (o.stdin, o.stdout) if stream and not stream.closed]
        self.returncode: int | None = None
        # Only this process reacts to Ctrl-C: it must not reach the fork before the fork ignores it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _serve_and_exit((calls, answers), (own_stdin, own_stdout, *inherited), mask)
        except OSError:
            _close(own_stdin, own_stdout)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _close(calls, answers)
        self.stdin: IO[bytes] | None = os.fdopen(own_stdin, "wb", buffering=0)
        self.stdout: IO[bytes] | None = os.fdopen(own_stdout, "rb", buffering=0)

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # where another part of the program waited for it
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.returncode is None:
            try:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:  # as Popen does: SIGCHLD is ignored, so the code is unknown
                self.returncode = 0
        return self.returncode


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _serve_and_exit(pipes: tuple[int, int], not_mine: tuple[int, ...], mask: set[int | signal.Signals]) -> None:
    """Serve calls, then exit without the cleanup of the process that was forked; never return."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _close(*not_mine)
        source, sink = os.fdopen(pipes[0], "rb"), os.fdopen(pipes[1], "wb")
        serve(source, sink)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it ends here
        with suppress(Exception):  # stderr may be gone
            traceback.print_exc()
    finally:
        os._exit(code)


def _new_interpreter() -> Worker:
    level = logging.getLogger("commtrace").getEffectiveLevel()
    command = [sys.executable, *isolated(f"from {run_worker.__module__} import run_worker; run_worker({level})")]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=ANYWHERE)  # noqa: S603
