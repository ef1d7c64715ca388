"""A few tries of each attack on what is read and written; by hand there are thousands (docs/reliability.md)."""

import subprocess
import sys
from pathlib import Path

import pytest

ATTACKS = Path(__file__).parent / "attacks"


@pytest.mark.parametrize(
    ("name", "tries"),
    [
        *(("side_files", 8), ("caches", 6), ("outputs", 6), ("faults", 20), ("damaged_traces", 20)),
        *(("kills_of_analysis", 2), ("kills_of_training", 1), ("ports", 1)),
    ],
    ids=lambda value: str(value),
)
def test_attack(name, tries):
    command = [sys.executable, str(ATTACKS / f"{name}.py"), "--tries", str(tries), "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", failed 0 (" in done.stdout
