"""Sweeps that are started, killed and looked at by tests."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from capturing import ROOT, environment

from commtrace.profiling.sweep import directory as sweep_dir

TINY = ["--device", "cpu", "--image-size", "8", "--steps-per-epoch", "3", "--active", "1"]
GRID = ["--batch-size", "2,4", "--workers", "1,2"]
CELLS = [f"resnet18-ddp-w{workers}-b{batch}" for workers in (1, 2) for batch in (2, 4)]


def start(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "commtrace", "sweep", *TINY, *GRID]
    return subprocess.Popen(
        [*command, "--out", str(folder.parent), "--run-name", folder.name],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def statuses(folder: Path) -> dict[str, str]:
    found = sweep_dir.read(folder)
    assert found is not None
    return {one.run: one.status for one in found.cells}


def wait_for_ranks(folder: Path, run: str, workers: int) -> list[int]:
    """The pids of the ranks of a cell, once all of them have begun their run directory."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = [json.loads(path.read_text())["pid"] for path in (folder / run).glob("*.meta.json")]
        if len(found) == workers:
            return found
        time.sleep(0.02)
    pytest.fail(f"{run} did not begin")


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # nobody may have waited for an orphan yet
