"""A few mutants; `python tests/support/fuzz_reader.py --seconds 600` runs longer."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "support/fuzz_reader.py"


@pytest.mark.slow
@pytest.mark.parametrize("mutants", [80])
def test_mutants_of_real_traces(mutants):
    # In a process of its own, whose memory is its own.
    command = [sys.executable, "-Wignore", str(PROGRAM), "--seconds", "600", "--mutants", str(mutants), "--seed", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    counts = {
        what: int(count) for count, what in (part.split(" ", 1) for part in done.stdout.split(";")[0].split(", "))
    }
    assert counts["seeds"] >= 2
    assert counts["valid"] > mutants // 20
    assert counts["kept in part"] > mutants // 20
    # Otherwise a reader that refuses everything would pass.
    assert counts.get("valid but refused", 0) < counts["valid"] / 2
