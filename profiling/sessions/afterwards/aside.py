"""Run the analysis beside training, in a process that gives way to it. This one imports none of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

from ....common.processes import calling

_LOW_PRIORITY = "profiling.sessions.afterwards.low_priority"
_POLL_S = 0.05
_GRACE_S = 2.0
_TOO_LONG = "it took too long, and was ended"
# Libraries of the analysis need no threads: nothing there multiplies matrices.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
_NO_COLOURS = {"NO_COLOR": "1"}
# What is said to Python about the script: where it finds modules holds for the analysis as well, this does not.
_OF_THE_SCRIPT = (
    *("PYTHONINSPECT", "PYTHONWARNINGS", "PYTHONSTARTUP", "PYTHONVERBOSE", "PYTHONPROFILEIMPORTTIME"),
    *("FORCE_COLOR", "CLICOLOR_FORCE"),
)


@dataclass(frozen=True)
class Printed:
    """The output of the analysis, and why it is incomplete, in one line."""

    out: str = ""
    why: str | None = None


def run_aside(arguments: Sequence[str], is_over: Callable[[], bool] = lambda: False) -> Printed:
    """Run `commtrace ARGUMENTS`, and end it when `is_over` says so.

    The thread that calls this must not end before this does: the process ends with it, on Linux.
    """
    try:
        # Files, not pipes: a process that the script forks meanwhile would keep a pipe open.
        with TemporaryFile() as out, TemporaryFile() as said:
            code = _run(arguments, is_over, _environment(), (out, said))
            return Printed(_text(out), _TOO_LONG if code is None else _last_error(code, _text(said)))
    except (OSError, ValueError) as err:
        return Printed(why=f"no process could be started for it: {err}")


def _run(
    arguments: Sequence[str], is_over: Callable[[], bool], env: Mapping[str, str], streams: tuple[IO[bytes], IO[bytes]]
) -> int | None:
    """Run it; return the exit code, or None if it was ended. Raises OSError."""
    # Python starts it by vfork: that takes no longer for a process that has much memory.
    process = subprocess.Popen(  # noqa: S603  (our own program)
        [sys.executable, *calling(_LOW_PRIORITY, "analyse_tied", [str(os.getpid()), *arguments])],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=streams[0],
        stderr=streams[1],
        start_new_session=True,  # Ctrl-C is for the training
    )
    try:
        while not is_over():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
        return None
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End it cleanly if it still runs."""
    for end in (process.terminate, process.kill):
        if process.poll() is None:
            end()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _OF_THE_SCRIPT}
    return kept | _ONE_THREAD | _NO_COLOURS | {"PYTHONIOENCODING": _encoding()}


def _encoding() -> str:
    """Encoding of its output, which is shown where this process prints."""
    ours = getattr(sys.__stderr__, "encoding", None) or "ascii"
    return "utf-8" if ours.lower().startswith("utf") else "ascii"


def _last_error(code: int, said: str) -> str | None:
    """The last error in its output; None if all went well."""
    if code == 0:
        return None
    if code < 0:
        return f"its process was killed by signal {-code} ({signal.strsignal(-code)})"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"exit code {code}"])[-1]
