"""Fixtures that tests of both packages share."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A shell ignores it for what it begins in the background, and so would every process that a test begins and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What `gloo_run` captures: 2 traced steps, which are steps 2 and 3.
GLOO_RUN_OPTIONS = [
    *("--workers", "2", "--device", "cpu", "--model", "resnet18", "--batch-size", "4", "--seed", "0"),
    *("--wait", "1", "--warmup", "1", "--active", "2", "--steps", "7"),
]


@pytest.fixture(scope="session")
def gloo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory captured for real: ResNet-18 under DDP in 2 processes, gloo on CPU."""
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("captured")
    command = [sys.executable, "-m", "profiling", "train", *GLOO_RUN_OPTIONS, "--out", str(out), "--run-name", "gloo"]
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return out / "gloo"


@pytest.fixture(scope="session")
def resumed_sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    """A sweep, killed in its second cell, interrupted in its third, and resumed: its folder, its table, what was seen.

    Killed means SIGKILL, after which the very same command is given at once.
    """
    pytest.importorskip("torch")
    from capturing import python
    from sweeping import CELLS, runs, start, statuses, wait_for_ranks

    folder = tmp_path_factory.mktemp("sweeps") / "killed"
    seen: dict[str, Any] = {}
    with start(folder) as process:
        ranks = wait_for_ranks(folder, CELLS[1], 1)
        seen["launched"] = [*ranks, process.pid]
        process.kill()
    seen["after_kill"] = statuses(folder)
    with start(folder) as process:
        wait_for_ranks(folder / "set-aside" / f"{CELLS[1]}.1", ".", 1)  # moved there: the cell begins anew
        with start(folder) as second:
            seen["second"] = (*second.communicate(timeout=120), second.returncode)
        seen["orphans"] = [pid for pid in seen["launched"] if runs(pid)]
        seen["first_cell"] = (folder / CELLS[0] / "run.json").stat().st_mtime_ns
        ranks = wait_for_ranks(folder, CELLS[2], 2)
        process.send_signal(signal.SIGINT)
        seen["interrupted"] = (*process.communicate(timeout=120), process.returncode)
        seen["ranks_left"] = [pid for pid in ranks if runs(pid)]
    seen["after_interrupt"] = statuses(folder)
    done = python("-m", "profiling", "sweep", "--resume", folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, seen
