"""The package as pip installed it, without torch: its program, and every table of recorded runs without a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("commtrace")
VERSION = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
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


def test_one_import_has_everything(tmp_path):
    code = (
        "import sys, commtrace; from commtrace import capture; assert not {'torch', 'pandas'} & {*sys.modules}; "
        f"print(len(commtrace.analyse({str(RUNS[0])!r}).calls), commtrace.__version__, commtrace.__path__)"
    )
    done = ran([sys.executable, "-c", code], tmp_path)
    calls, version, *folders = done.stdout.split(maxsplit=2)
    assert int(calls) > 0, done.stderr
    assert version == VERSION
    assert str(folders).count("commtrace") == 1  # nothing else of the environment is to be found within it
    done = ran([sys.executable, "-c", "import commtrace; commtrace.capture('run')"], tmp_path)
    assert "needs it: pip install " in done.stderr


def test_one_command_lists_everything_and_helps_without_torch(tmp_path):
    assert ran([sys.executable, "-c", "import torch"], tmp_path).returncode == 1
    shown = ran([str(PROGRAM), "--help"], tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "Usage: commtrace [OPTIONS]" in shown.stdout
    assert "  train  " in shown.stdout
    assert "--install-completion" in shown.stdout
    for command in ("train", "run", "sweep", "comms", "gemm", "layers", "capacity", "lab"):
        assert ran([str(PROGRAM), command, "--help"], tmp_path).returncode == 0
    assert ran([str(PROGRAM), "--version"], tmp_path).stdout == f"commtrace {VERSION}\n"


def test_a_shell_completes_the_command():
    code = 'eval "$(./commtrace --show-completion)"; complete -p commtrace; '
    code += "COMP_WORDS=(./commtrace table lat); COMP_CWORD=2; "
    code += '_commtrace_completion ./commtrace; echo "${COMPREPLY[@]}"'
    done = ran(["bash", "-c", code], PROGRAM.parent)
    assert done.stdout.split("\n")[-2:] == ["lateness late-work", ""], done.stdout + done.stderr
