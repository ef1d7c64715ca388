"""Commands in what is printed work when they are copied into a shell, from the folder where it was printed."""

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from commtrace.analysis.core.escaping import for_shell
from commtrace.cli import main

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests/data/gloo-training"
NAMES = ["plain", "with space", "it's", "ümläut", "-dash", "line\nbreak", '$HOME `x` \\ "', "b\udcffyte"]


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_takes_a_path_back(name, tmp_path):
    (tmp_path / name).touch()
    done = subprocess.run(["bash", "-c", f"ls -- {for_shell(name)}"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert for_shell(name).isprintable()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "with space/ünd 'quotes'"])
def test_the_hint_of_the_first_screen_works(name, tmp_path, monkeypatch, capsys):
    shutil.copytree(RUN, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert main([name]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Everything: "))
    command = line.removeprefix("Everything: commtrace")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shell = f"{shlex.quote(sys.executable)} -m commtrace{command}"
    done = subprocess.run(["bash", "-c", shell], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_several_paths_stay_as_they_were_given(monkeypatch, capsys):
    monkeypatch.chdir(RUN)
    files = sorted(path.name for path in RUN.glob("*.json.gz"))
    assert main(files) == 0
    assert f"summary --all {' '.join(files)}\n" in capsys.readouterr().out


@pytest.mark.quick_cases("False-zip")
@pytest.mark.parametrize("end", ["zip", "tar", "tgz", "tar.gz"])
@pytest.mark.parametrize("whole", [True, False])
def test_an_archive_is_refused_with_commands_that_read_it(end, whole, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = Path("my runs")
    folder.mkdir()
    archive = folder / f"it's.{end}"
    if end == "zip":
        shutil.make_archive("made", "zip", RUN.parent, RUN.name if whole else f"{RUN.name}/vm_0.0000.pt.trace.json.gz")
        Path("made.zip").rename(archive)
    else:
        with tarfile.open(archive, "w:gz" if end.endswith("gz") else "w") as tar:
            tar.add(RUN, "." if whole else RUN.name)
    for given in (archive, folder):
        assert main([str(given)]) == 1
        said = capsys.readouterr().err
        unpack, _, read = said.partition("unpack it: ")[2].strip().partition("; then: commtrace ")
        assert str(archive) in said
    assert subprocess.run(["bash", "-c", unpack], check=False).returncode == 0
    (new,) = shlex.split(read)
    assert main([new]) == 0 or "did you mean" in capsys.readouterr().err


def test_a_hidden_folder_is_no_suggestion(tmp_path, capsys):
    for name in (".git", "b", "a"):
        (tmp_path / name).mkdir()
    assert main([str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert ".git" not in said
    assert "(a, b)" in said


@pytest.mark.slow
def test_a_folder_above_runs_lists_each(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(RUN, "above/deep er/good")
    shutil.copytree(RUN, "above/.hidden")
    shutil.copytree(RUN, "above/broken")
    for file in Path("above/broken").glob("*.json.gz"):
        file.write_bytes(b"{")
    assert main(["above"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 runs")
    assert lines[2].startswith("broken        error: ")
    assert lines[3].startswith("deep er/good  ")
    shutil.rmtree("above/broken")
    assert main(["above"]) == 0  # the only one is the run
    assert "summary --all 'above/deep er/good'" in capsys.readouterr().out
