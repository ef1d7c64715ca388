"""`make gpu-check`, rehearsed on CPUs."""

import subprocess
import sys
from pathlib import Path

import pytest
from capturing import ROOT, environment

pytest.importorskip("torch")
CHECK = ROOT / "tests" / "gpu" / "check.py"


def checked(*args: object, timeout_s: float = 300) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(CHECK), *map(str, args)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False)


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(CHECK)], env=environment() | {"CUDA_VISIBLE_DEVICES": ""}, cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "finds no GPU here; --device cpu rehearses the checks" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("only", ["run, 2 cycles", "straggler", "SIGINT"])
def test_a_rehearsal_writes_the_table(tmp_path: Path, only: str) -> None:
    done = checked("--device", "cpu", "--only", only, "--output", tmp_path / "table.md")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0] == "| check | | seen | s |"
    assert len(lines) == 3
    assert "| ok |" in lines[2]
