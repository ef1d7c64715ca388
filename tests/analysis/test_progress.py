"""What is said of reading while it lasts: on a terminal only, and only where it takes its time."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from builders import Collective, write_run

COMMAND = """
import sys
from analysis import cli, cli_common
cli_common._QUIET_S = float(sys.argv.pop(1))
sys.exit(cli.main())
"""


@pytest.fixture
def run_dir(tmp_path):
    return write_run(tmp_path / "run", 3, [Collective((0, 0, 0))])


def on_a_terminal(*arguments: object, table: Path) -> str:
    """What a command says on a terminal, whose control sequences are left out; its table goes into a file."""
    screen, terminal = pty.openpty()
    with table.open("wb") as stdout:
        command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        process = subprocess.Popen(command, stdout=stdout, stderr=terminal, env=environment)
    os.close(terminal)
    said = b""
    try:
        while data := os.read(screen, 4096):
            said += data
    except OSError:  # so Linux tells that nobody has the terminal open any more
        pass
    finally:
        os.close(screen)
    process.wait()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode("utf-8"))


@pytest.mark.parametrize("workers", [1, 2])
def test_bytes_and_files_and_the_time_left(run_dir, tmp_path, workers):
    said = on_a_terminal(0, "breakdown", run_dir, "--workers", workers, table=tmp_path / "table.txt")
    size = sum(path.stat().st_size for path in run_dir.glob("*.json*"))
    assert re.search(rf"reading ━+ {size / 1000:.1f}/{size / 1000:.1f} kB 3/3 files 0:00:00 left", said)
    assert "reading" not in (tmp_path / "table.txt").read_text(encoding="utf-8")


def test_a_file_that_is_left_out_is_counted(run_dir, tmp_path):
    (run_dir / "node_9.0001.pt.trace.json").write_bytes(b"{}")
    said = on_a_terminal(0, "breakdown", run_dir, "--keep-going", table=tmp_path / "table.txt")
    assert "4/4 files" in said
    assert re.search(r"[\r\n]error: \S+node_9\S+ is JSON but no Kineto trace", said)


def test_nothing_is_said_of_what_is_read_at_once(run_dir, tmp_path):
    assert on_a_terminal(60, "breakdown", run_dir, table=tmp_path / "table.txt") == ""
    assert (tmp_path / "table.txt").stat().st_size


def test_nothing_is_said_into_a_pipe(run_dir):
    command = [sys.executable, "-c", COMMAND, "0", "breakdown", str(run_dir)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout
