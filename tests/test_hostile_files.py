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
        [
            ("side_files", 2),
            ("caches", 2),
            ("outputs", 2),
            ("faults", 2),
            ("damaged_traces", 3),
            *(("memory", 3), ("recordings_changed", 10)),
        ],
        [
            *(("side_files", 20), ("caches", 10), ("outputs", 10), ("faults", 30), ("damaged_traces", 30)),
            *(("memory", 20), ("recordings_changed", 60)),
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
