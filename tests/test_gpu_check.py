"""`make gpu-check`, rehearsed on CPUs."""

import importlib.util
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


@pytest.mark.slow
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(CHECK)], env=environment() | {"CUDA_VISIBLE_DEVICES": ""}, cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "finds no GPU here; --device cpu rehearses the checks" in done.stderr
    assert list(tmp_path.iterdir()) == []


OF_NCCL_TESTS = """\
# nThread 1 nGpus 8 minBytes 8 maxBytes 268435456 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    10.50    0.00    0.00      0    10.00    0.00    0.00      0
   134217728      33554432     float     sum      -1    980.0  136.96  239.68      0   1000.0  134.22  234.88      0
# Out of bounds values : 0 OK
"""


@pytest.mark.parametrize(
    ("ours_us", "ok"),
    [
        ({8: 9.1, 134217728: 1050.0}, True),
        ({8: 17.0, 134217728: 1000.0}, False),
        ({8: 10.0, 134217728: 1110.0}, False),
        ({32: 10.0}, None),
    ],
)
def test_our_times_beside_those_of_nccl_tests(ours_us, ok) -> None:
    spec = importlib.util.spec_from_file_location("gpu_check", CHECK)
    check = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = check
    spec.loader.exec_module(check)
    seen = check.beside_nccl_tests(ours_us, OF_NCCL_TESTS)
    assert (None if seen is None else seen.ok) == ok


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("--only", "on demand"), ("--only", "straggler", "--share", 2), ("--only", "SIGINT", "--share", 2)],
    ids=lambda options: options[1],
)
def test_a_rehearsal_writes_the_table(tmp_path: Path, options: tuple[object, ...]) -> None:
    done = checked("--device", "cpu", *options, "--output", tmp_path / "table.md")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0] == "| check | | seen | s |"
    assert len(lines) == 3
    assert "| ok |" in lines[2]
