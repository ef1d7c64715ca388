"""Commands in what is printed work when they are copied into a shell, from the folder where it was printed."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.cli.app import main
from analysis.core.escaping import for_shell

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests/data/gloo-training"
NAMES = ["plain", "with space", "it's", "ümläut", "-dash", "line\nbreak", '$HOME `x` \\ "', "b\udcffyte"]


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_takes_a_path_back(name, tmp_path):
    (tmp_path / name).touch()
    done = subprocess.run(["bash", "-c", f"ls -- {for_shell(name)}"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert for_shell(name).isprintable()


@pytest.mark.parametrize("name", ["plain", "with space/ünd 'quotes'"])
def test_the_hint_of_the_first_screen_works(name, tmp_path, monkeypatch, capsys):
    shutil.copytree(RUN, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert main([name], program="python -m analysis") == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("More: "))
    command = line.removeprefix("More: python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shell = f"{shlex.quote(sys.executable)}{command}"
    done = subprocess.run(["bash", "-c", shell], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_several_paths_stay_as_they_were_given(monkeypatch, capsys):
    monkeypatch.chdir(RUN)
    files = sorted(path.name for path in RUN.glob("*.json.gz"))
    assert main(files) == 0
    assert f"summary --all {' '.join(files)}\n" in capsys.readouterr().out
