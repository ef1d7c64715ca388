"""What is said of reading while it lasts: on a terminal only, where it takes its time. And streams that are closed."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from builders import Collective, traces_of, write_run
from samples import with_slow
from sweep_builders import Cell, write_sweep

COMMAND = """
import sys
from commtrace import cli
from commtrace.analysis.cli import output
from commtrace.analysis.recording.options import ReadOptions, ReadSizes
output._QUIET_S = float(sys.argv.pop(1))
ReadOptions.__init__.__kwdefaults__["sizes"] = ReadSizes(process_bytes=0)
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


@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("workers", [1, 2])
def test_bytes_and_files_and_the_time_left(run_dir, tmp_path, workers):
    said = on_a_terminal(0, "breakdown", run_dir, "--workers", workers, table=tmp_path / "table.txt")
    size = sum(path.stat().st_size for path in run_dir.glob("*.json*"))
    assert re.search(rf"reading ━+ {size / 1000:.1f}/{size / 1000:.1f} kB 3/3 files 0:00:00 left", said)
    assert "reading" not in (tmp_path / "table.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_what_is_computed_after_the_reading(run_dir, tmp_path):
    said = on_a_terminal(0, "summary", run_dir, table=tmp_path / "table.txt")
    phases = re.findall(r"\ranalysing: ([^\r]*)", said)
    assert phases[0] == "matching 3 calls of 3 ranks"
    assert "looking for why ranks were late" in phases
    assert said.endswith("\r")  # and the line is taken away
    assert "analysing" not in (tmp_path / "table.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_how_many_ranks_are_done(run_dir, tmp_path):
    page = tmp_path / "page.html"
    said = on_a_terminal(0, "report", run_dir, "--dask", "local", "-o", page, table=tmp_path / "table.txt")
    assert "\ranalysing: looking at what each rank did, 3 of 3 ranks\r" in said


@pytest.mark.slow
def test_a_url_that_is_asked_and_its_bytes(run_dir, tmp_path):
    said = on_a_terminal(0, "breakdown", f"local://{run_dir}", "--workers", 1, table=tmp_path / "table.txt")
    assert f"asking for local://{run_dir}" in said
    assert "3/3 files 0:00:00 left" in said


@pytest.mark.slow
def test_a_file_that_is_left_out_is_counted(run_dir, tmp_path):
    (run_dir / "node_9.0001.pt.trace.json").write_bytes(b"{}")
    said = on_a_terminal(0, "breakdown", run_dir, "--keep-going", table=tmp_path / "table.txt")
    assert "4/4 files" in said
    assert re.search(r"[\r\n]error: \S+node_9\S+ is JSON but not a Kineto trace", said)


@pytest.mark.slow
def test_names_of_cells_are_no_markup_and_move_no_cursor(tmp_path):
    cells = [Cell(1, epoch_s=10), Cell(2, epoch_s=6, traced=traces_of(2, [Collective((0, 0))]))]
    sweep = write_sweep(tmp_path / "sweep", cells)
    name = "x\x1b[31m[bold]y\x07"
    listing = sweep / "sweep.json"
    listing.write_text(listing.read_text().replace("resnet18-ddp-w2-b32", json.dumps(name)[1:-1]))
    (sweep / "resnet18-ddp-w2-b32").rename(sweep / name)
    said = on_a_terminal(0, "table", "subtraction", sweep, table=tmp_path / "table.txt")
    assert r"reading 1 of 1: x\x1b[31m[bold]y\x07" in said


@pytest.mark.slow
@pytest.mark.parametrize("number", with_slow(["SIGKILL", "SIGINT"], ["SIGTERM"]))
def test_the_cursor_is_there_after_a_signal(tmp_path, number):
    pipe = tmp_path / "rank0.json"  # which nobody ever writes to
    os.mkfifo(pipe)
    screen, terminal = pty.openpty()
    command = [sys.executable, "-c", COMMAND, "-1", "breakdown", str(pipe)]
    with subprocess.Popen(command, stderr=terminal, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(terminal)
        with pipe.open("wb") as writer:
            writer.write(b'{"traceEvents": [\n' + b" " * (1 << 24))
            writer.flush()
            said = b""
            while b"reading" not in said:
                said += os.read(screen, 4096)
            process.send_signal(signal.Signals[number])
            process.wait()
    os.set_blocking(screen, False)
    with suppress(OSError):
        said += os.read(screen, 1 << 16)
    os.close(screen)
    assert said.rfind(b"\x1b[?25l") <= said.rfind(b"\x1b[?25h")


@pytest.mark.slow
def test_nothing_is_said_of_what_is_read_at_once(run_dir, tmp_path):
    assert on_a_terminal(60, "breakdown", run_dir, table=tmp_path / "table.txt") == ""
    assert (tmp_path / "table.txt").stat().st_size


@pytest.mark.slow
def test_nothing_is_said_into_a_pipe(run_dir):
    command = [sys.executable, "-c", COMMAND, "0", "breakdown", str(run_dir)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("closed", with_slow([">&- 2>&-"], [">&-", "2>&-"]))
def test_a_closed_stream_costs_nothing_but_itself(run_dir, tmp_path, closed):
    table = tmp_path / "table.csv"
    for options in ("", f"-f csv -o {table}"):
        done = shell(f"{sys.executable} -m commtrace breakdown {run_dir} {options} {closed}")
        assert (done.returncode, done.stderr) == (0, "")
    assert table.read_text(encoding="utf-8").startswith("rank,")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_stdout_is_an_error(run_dir):
    done = shell(f"{sys.executable} -m commtrace summary {run_dir} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: stdout: cannot be written: No space left on device\n"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, cwd=root)


@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("workers", [1, 2])
def test_lines_of_the_log_stand_above_the_bar(run_dir, tmp_path, workers):
    said = on_a_terminal(0, "breakdown", run_dir, "--verbose", "--workers", workers, table=tmp_path / "table.txt")
    assert "3/3 files 0:00:00 left" in said
    whole = r"\d\d:\d\d:\d\d commtrace\.reading:\s*'[^'━]*/run/[^'━]*':\s*read as Kineto, \d+ bytes, in [\d.]+ s"
    assert len(re.findall(whole, said.replace("\r\n", ""))) == 3
    assert not any("━" in line and "commtrace" in line for line in re.split(r"[\r\n]+", said))
