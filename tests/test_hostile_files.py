"""A few tries of each attack on what is read and written; by hand there are thousands (docs/reliability.md)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browsing import BROWSER
from samples import with_slow

ATTACKS = Path(__file__).parent / "attacks"


@pytest.mark.parametrize(
    ("name", "tries"),
    with_slow(
        [("side_files", 2)],
        [
            *(("side_files", 20), ("caches", 10), ("outputs", 10), ("faults", 15), ("damaged_traces", 15)),
            *(("dask_local", 2), ("planted_modules", 3), ("viewer", 20), ("urls", 68), ("url_words", 600)),
            *(("memory", 4), ("recordings_changed", 30), ("page_server", 12), ("on_demand", 60), ("clock_jumps", 1)),
            *(("kills_of_analysis", 4), ("kills_of_training", 2), ("ports", 1), ("seams", 4_000), ("rebinding", 2)),
            *(("store_peers", 12), ("watched_folders", 80), ("full_disks", 1)),
        ],
    ),
    ids=lambda value: str(value),
)
def test_attack(name, tries):
    if name == "clock_jumps" and shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    if name == "rebinding" and BROWSER is None:
        pytest.skip("needs Chromium or Chrome: apt-get install chromium")
    command = [sys.executable, str(ATTACKS / f"{name}.py"), "--tries", str(tries), "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", failed 0 (" in done.stdout
