"""What a real terminal shows of a command, and how wide that is."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.cells import cell_len

ROOT = Path(__file__).resolve().parents[2]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Names that a trace may hold: wide, combined of several characters, with escapes or markup.
HOSTILE = ["通信" * 40, "e\u0301" * 90, "\x1b[31mred\x1b[0m", "[bold]x[/bold]" * 9, "a b " * 40, "", "-" * 200]


def widest(text: str) -> int:
    return max(cell_len(line) for line in text.splitlines())


def on_a_terminal(columns: int, *arguments: str, **environment: str) -> str:
    """What the command writes to a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    clean = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-m", "commtrace", *arguments]
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=clean | {"TERM": "xterm"} | environment,
    ) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            written += more
    os.close(ours)
    assert process.returncode == 0
    return written.decode().replace("\r\n", "\n")
