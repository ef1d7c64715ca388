"""Errors of the program itself."""

import re
from pathlib import Path

import pytest

from commtrace.analysis.show import overview
from commtrace.cli import main

RUN = str(Path(__file__).parents[1] / "data/gloo-training")


@pytest.fixture
def broken(monkeypatch, tmp_path):
    def fail(*_args):
        raise ValueError("assignment destination is read-only")

    monkeypatch.setattr(overview, "overview", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_bug_is_one_line_and_the_traceback_is_in_a_file(broken, capsys):
    assert main([RUN]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError at test_bugs.py" in line
    assert f"commtrace summary {RUN}" not in line  # as it was typed
    assert f"`commtrace {RUN}`" in line
    (file,) = re.findall(r"traceback in (\S+)", line)
    text = Path(file).read_text(encoding="utf-8")
    assert "Traceback" in text
    assert "assignment destination is read-only" in text
    assert Path(file).stat().st_mode & 0o077 == 0


def test_options_stay_as_they_were_typed(broken, capsys):
    assert main(["summary", "--comm-kernel", "my reduce", RUN]) == 70
    assert f"`commtrace summary --comm-kernel 'my reduce' {RUN}`" in capsys.readouterr().err


def test_verbose_shows_it_too(broken, capsys):
    assert main(["summary", "--verbose", RUN]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_without_a_folder_for_files_it_is_still_one_line(broken, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    assert main([RUN]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert "what --verbose shows" in line
