"""What people read, and what happens where they do not."""

import os
import pty
import subprocess
import sys

import pytest
from capturing import ROOT, environment

IMPORTS = """
from commtrace.profiling.sweep.progress import SweepReporter
from commtrace.profiling.base.console.messages import tell
"""


def told(code: str, **streams: int) -> int:
    """The exit code of a program that talks; negative after a signal."""
    command = [sys.executable, "-c", IMPORTS + code]
    return subprocess.run(command, cwd=ROOT, env=environment(), check=False, timeout=60, **streams).returncode


@pytest.mark.slow_cases("stdout-tell('x' * 10000)\\ntell('x' * 10000)\\ntell('x' * 10000)\\n")
@pytest.mark.parametrize(
    ("stream", "code"), [("stdout", "tell('x' * 10000)\n" * 3), ("stderr", "SweepReporter().say('x' * 10000)\n" * 3)]
)
def test_what_nobody_reads_ends_nothing(stream, code) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert told(code, **{stream: writing}) == 0
    finally:
        os.close(writing)


@pytest.mark.quick_cases("SIGKILL")
@pytest.mark.parametrize("signum", ["SIGTERM", "SIGQUIT", "SIGKILL"])
def test_no_signal_takes_the_cursor_away(signum) -> None:
    ours, theirs = pty.openpty()
    code = (
        "import resource, signal, time\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        f"with SweepReporter():\n    time.sleep(0.3)\n    signal.raise_signal(signal.{signum})"
    )
    try:
        assert told(code, stderr=theirs) < 0
        shown = os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"cell" in shown
    assert b"\x1b[?25l" not in shown
