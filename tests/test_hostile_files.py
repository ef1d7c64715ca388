"""A few tries of each attack on what is read and written; by hand there are thousands (docs/reliability.md)."""

import subprocess
import sys
from pathlib import Path

import pytest
from samples import with_slow

ATTACKS = Path(__file__).parent / "attacks"


@pytest.mark.parametrize(
    ("name", "tries"),
    with_slow(
        [("side_files", 4), ("caches", 4), ("outputs", 3), ("faults", 8), ("damaged_traces", 10)],
        [
            *(("side_files", 60), ("caches", 30), ("outputs", 30), ("faults", 100), ("damaged_traces", 100)),
            *(("kills_of_analysis", 4), ("kills_of_training", 2), ("ports", 1)),
        ],
    ),
    ids=lambda value: str(value),
)
def test_attack(name, tries):
    command = [sys.executable, str(ATTACKS / f"{name}.py"), "--tries", str(tries), "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", failed 0 (" in done.stdout
