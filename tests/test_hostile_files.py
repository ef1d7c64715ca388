"""A few tries of each attack on what is read and written; by hand there are thousands (docs/reliability.md)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browsing import BROWSER
from samples import with_slow

ATTACKS = Path(__file__).parent / "attacks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tries"),
    with_slow(
        [("side_files", 2)],
        [
            *(("side_files", 8), ("caches", 5), ("outputs", 5), ("faults", 8), ("damaged_traces", 6)),
            *(("dask_local", 1), ("planted_modules", 1), ("viewer", 8), ("urls", 20), ("url_words", 200)),
            *(("memory", 2), ("recordings_changed", 15), ("page_server", 6), ("on_demand", 20), ("clock_jumps", 1)),
            *(("kills_of_analysis", 2), ("kills_of_training", 1), ("ports", 1), ("seams", 800), ("rebinding", 2)),
            *(("store_peers", 4), ("watched_folders", 20), ("full_disks", 1)),
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
