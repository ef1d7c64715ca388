"""Fixtures that tests of both packages share."""

import os
import signal
import subprocess
import sys
from pathlib import Path

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
