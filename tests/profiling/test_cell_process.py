"""How the end of a cell's process is told, and that its processes do not outlive the sweep."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from capturing import ROOT, environment

from commtrace.profiling.errors import RunDirError
from commtrace.profiling.ranks import apart
from commtrace.profiling.sweep import cell as cell_process
from commtrace.profiling.sweep.cell import verdict
from commtrace.profiling.sweep.grid import Cell

NONE = Path("/nonexistent")
NO_KILLS = (4, 4)
TRACEBACK = """rank 0 failed:
Traceback (most recent call last):
  File "x.py", line 1, in <module>
ValueError: bad luck
rank 1: stopped by SIGTERM
error: rank 0 failed with exit code 1; its own message is above
"""


@pytest.mark.parametrize(
    ("code", "log", "status", "reason"),
    [
        (
            3,
            "error: rank 1: out of memory with X\nerror: rank 1 failed; its own message is above",
            "out_of_memory",
            "X",
        ),
        (4, "error: 50000 images are fewer than one batch", "out_of_data", "50000 images"),
        (2, "error: --workers 2: --parallel single is one process", "skipped", "is one process"),
        (134, "terminate called after throwing an instance of 'std::bad_alloc'\n", "out_of_memory", "std::bad_alloc"),
        (1, TRACEBACK, "failed", "ValueError: bad luck"),
        (1, "error: rank 0: traces/x: cannot be written: No space left on device", "failed", "No space left"),
        (1, "", "failed", "None"),
        (-15, "", "failed", "ended by SIGTERM"),
        (0, "", "failed", "side files cannot be read"),
    ],
)
def test_ends_are_told_apart(code, log, status, reason) -> None:
    found, why = verdict(code, log, NONE, NO_KILLS)
    assert found == status
    assert reason in str(why)


@pytest.mark.parametrize(
    ("kills", "status", "reason"),
    [
        ((4, 6), "out_of_memory", "most likely by the kernel: it killed 2 processes meanwhile"),
        ((None, None), "out_of_memory", "most likely by the kernel"),
        ((4, 4), "failed", "not by the kernel's OOM killer"),
    ],
)
@pytest.mark.parametrize("code", [137, -9])
def test_killed_without_a_word_is_most_likely_memory_if_the_kernel_says_so(code, kills, status, reason) -> None:
    log = "error: rank 0 was killed by SIGKILL; out of memory?; its side file is marked incomplete"
    found, why = verdict(code, log, NONE, kills)
    assert found == status
    assert reason in str(why)


def test_cell_is_done_when_its_files_are_complete(tmp_path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"world_size": 1}))
    meta = {"rank": 0, "complete": True, "epochs": [{"phase": "timed"}], "traces": []}
    (tmp_path / "h_0.meta.json").write_text(json.dumps(meta))
    assert verdict(0, "", tmp_path, NO_KILLS) == ("done", None)


def test_log_that_cannot_be_written_is_named(tmp_path) -> None:
    (tmp_path / "x.log").mkdir()
    with pytest.raises(RunDirError, match=r"x\.log: cannot be written: Is a directory"):
        cell_process.run_cell(Cell("x", "resnet18", "ddp", 1, 2), [], tmp_path, 0)


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_tethered_process_ends_when_its_parent_is_killed(tmp_path) -> None:
    ended = tmp_path / "ended"
    child = (
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "from commtrace.profiling.machine.tether import tie_to_parent\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (Path({str(ended)!r}).touch(), sys.exit()))\n"
        "tie_to_parent(os.getppid())\nprint('tied', flush=True)\ntime.sleep(60)\n"
    )
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "tied\n"
        process.kill()
    wait_until(ended.exists)


def test_a_parent_that_is_gone_already_ends_it_at_once() -> None:
    code = "from commtrace.profiling.machine.tether import tie_to_parent; tie_to_parent(1)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), check=False)
    assert done.returncode == -signal.SIGTERM


def test_a_cell_that_does_not_end_is_killed_at_the_second_signal(monkeypatch) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        process.stdout.readline()
        wait = process.wait

        def interrupted(timeout: float | None = None) -> int:
            if timeout is not None:
                raise KeyboardInterrupt
            return wait()

        monkeypatch.setattr(process, "wait", interrupted)
        apart._end(process)
        assert process.returncode == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
