"""One command and one import, in a checkout. Installed: test_distribution.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from samples import a_sample

import commtrace
from commtrace.analysis.cli.app import commands
from commtrace.cli import CAPTURING, main
from commtrace.profiling.cli import app as capturing

ROOT = Path(__file__).resolve().parents[1]


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


def test_everything_is_there_and_in_dir() -> None:
    assert set(commtrace.__all__) <= set(dir(commtrace))
    for name in commtrace.__all__:
        assert getattr(commtrace, name) is not None
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = commtrace.no_such_thing


def test_nothing_is_imported_before_it_is_used() -> None:
    code = "import sys; from commtrace import capture; sys.exit(bool({'torch', 'pandas', 'typer'} & {*sys.modules}))"
    assert python("-c", code).returncode == 0


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    [written] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert commtrace.__version__ == written
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"commtrace {written}\n"


def test_help_lists_every_command_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    shown = capsys.readouterr().out
    headings = [
        "Overview",
        "Look at it",
        "Where time goes",
        "Communication",
        "Who waits",
        "What if",
        "Across runs",
        "Many ranks",
        "Capture",
    ]
    assert re.findall(r"^([A-Z][a-z ]+):$", shown, re.MULTILINE)[1:] == headings
    listed = re.findall(r"^  ([a-z][\w-]+) ", shown.partition("Overview:")[2], re.MULTILINE)
    assert listed == [*commands(), *CAPTURING]


def test_every_command_that_captures_is_listed() -> None:
    assert {command.name or command.callback.__name__ for command in capturing.registered_commands} == set(CAPTURING)


@pytest.mark.parametrize("command", [*CAPTURING, "kernels"])
def test_help_of_a_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "-h"]) == 0
    shown = capsys.readouterr().out
    assert f" {command} " in shown
    assert "{prog}" not in shown


@pytest.mark.parametrize("command", CAPTURING)
def test_without_torch_a_line_says_what_to_install(command: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; from commtrace.cli import main; sys.exit(main([{command!r}]))"
    done = python("-c", code)
    assert done.returncode == 2
    assert done.stderr == 'error: capturing needs torch, which is not installed: pip install "commtrace[profiling]"\n'


@pytest.mark.parametrize(("typed", "command"), [("brekdown", "breakdown"), ("trian", "train"), ("Calls", "calls")])
def test_a_mistyped_command(capsys: pytest.CaptureFixture[str], typed: str, command: str) -> None:
    assert main([typed, "run"]) == 2
    assert capsys.readouterr().err == f"error: no such command or folder: {typed}; did you mean {command}?\n"


@pytest.mark.parametrize("path", ["traces/brekdown", "./brekdown", "my-first-run", "xyzzy"])
def test_a_mistyped_path(capsys: pytest.CaptureFixture[str], path: str) -> None:
    assert main([path]) == 1
    assert "no such file or directory; expected a run directory" in capsys.readouterr().err


def test_a_folder_that_exists_is_no_mistyped_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brekdown").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["brekdown"]) == 1
    assert "holds no Kineto trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["lat"], {"late_work", "lateness"}),
        (["tra"], {"traffic", "train", "training"}),
        (["kernels", "--to"], {"--top"}),
    ],
)
def test_a_shell_completes_commands_and_options(words: list[str], found: set[str]) -> None:
    code = "from commtrace.cli import main; main([])"
    asked = {"COMP_WORDS": "\n".join(["commtrace", *words]), "COMP_CWORD": str(len(words))}
    done = python("-c", code, _COMMTRACE_COMPLETE="complete_bash", **asked)
    assert set(done.stdout.split()) == found, done.stderr


@pytest.mark.parametrize("command", a_sample(CAPTURING, 2))
def test_help_has_one_name_for_the_command(command: str) -> None:
    pytest.importorskip("torch")
    shown = " ".join(python("-m", "commtrace", command, "--help").stdout.split())
    assert f"Usage: commtrace {command}" in shown
    assert "python -m" not in shown


def test_both_spellings_are_taken() -> None:
    for name in ("analyse", "analyse_sweep", "analyse_training", "analyse_cycles"):
        assert getattr(commtrace, name.replace("analyse", "analyze")) is getattr(commtrace, name)
    with pytest.raises(AttributeError, match="'analyzer'"):
        commtrace.analyzer  # noqa: B018 - whether it is there
