"""The package as pip installed it: its own program, and every table of recorded runs, without a warning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("commtrace")
RUNS = [ROOT / "traces/resnet18-ddp-w2", *sorted(path.parent for path in (ROOT / "tests/data").glob("*/run.json"))]
ALL_TABLES = """
import sys, commtrace
from pathlib import Path; assert (Path(commtrace.__file__).parent / "analysis").is_dir()
from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.declaring import InputKind
from commtrace.cli import main
for name in ("summary", *(e.command for e in CATALOG.values() if e.of is InputKind.run and not e.options)):
    sys.stderr.write(f"-- {name}\\n")
    code = main([*name.split(), "--no-cache", sys.argv[1]])
    assert code in (0, 1), code  # 1: there is nothing of this in the run
"""

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="commtrace is not installed in this environment")


def ran(command: list[str], folder: Path) -> subprocess.CompletedProcess:
    warnings = "error,ignore:'click.utils:DeprecationWarning"  # as in pyproject.toml
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONWARNINGS": warnings}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_program_says_what_limits_the_bundled_run(tmp_path):
    done = ran([str(PROGRAM), str(RUNS[0])], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Everything: commtrace summary --all" in done.stdout


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_table_comes_without_a_warning(run, tmp_path):
    done = ran([sys.executable, "-c", ALL_TABLES, str(run)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
