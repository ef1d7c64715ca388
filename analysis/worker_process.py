"""Processes that read trace files for this one: copies of it where that is safe, else new interpreters.

A copy is there at once; a new interpreter takes a tenth of a second of a core to import what it needs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

from .read_worker import main, serve


class Worker(Protocol):
    """A process that serves tasks, see `read_worker`; `returncode` is None until it was waited for."""

    pid: int
    returncode: int | None

    @property
    def stdin(self) -> IO[bytes] | None:
        """Where its tasks go."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """Where its answers come from."""

    def kill(self) -> None:
        """End it at once, whatever it does."""

    def wait(self) -> int:
        """Its exit code, once it has ended."""


def start_worker(others: Sequence[Worker]) -> Worker:
    """A new worker beside `others`, which are all that were started before and are not waited for."""
    return _Copy(others) if _has_one_thread() else _new_interpreter()


def _has_one_thread() -> bool:
    """Only a process of one thread can be copied: of others, the locks stay as they are at that moment."""
    try:
        return len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:  # no Linux
        return False


class _Copy:
    """A copy of this process, which goes on as a worker."""

    def __init__(self, others: Sequence[Worker]) -> None:
        tasks, self_stdin = os.pipe()
        self_stdout, answers = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            # A pipe ends when its last writer closes it, and the copy has a hand on all of them.
            inherited = [
                stream.fileno() for o in others for stream in (o.stdin, o.stdout) if stream and not stream.closed
            ]
            for end in (self_stdin, self_stdout, *inherited):
                os.close(end)
            _serve_and_exit(tasks, answers)
        os.close(tasks)
        os.close(answers)
        self.stdin: IO[bytes] | None = os.fdopen(self_stdin, "wb")
        self.stdout: IO[bytes] | None = os.fdopen(self_stdout, "rb")

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)  # which is there until it is waited for

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _serve_and_exit(tasks: int, answers: int) -> None:
    """Never returns, nor lets anything of the process that was copied run to its end."""
    code = 1
    source, sink = os.fdopen(tasks, "rb"), os.fdopen(answers, "wb")
    try:
        serve(source, sink)
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def _new_interpreter() -> Worker:
    module = main.__module__
    root = Path(__file__).resolve().parents[module.count(".")]
    begin = f"import sys; sys.path.insert(0, {str(root)!r}); from {module} import main; main()"
    command = [sys.executable, "-c", begin]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")  # noqa: S603
