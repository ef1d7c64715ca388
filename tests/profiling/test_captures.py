"""`train --captures`: one capture after the other, each by processes of its own."""

from pathlib import Path

import pytest

from commtrace.cli import main
from commtrace.profiling.train import captures


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What is run for each capture; one whose name ends in `codes` ends with that exit code."""
    found: list[list[str]] = []
    codes: dict[str, int] = {}

    def run_apart(arguments):
        found.append(list(arguments))
        return codes.get(arguments[-1], 0)

    monkeypatch.setattr(captures, "run_apart", run_apart)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.chdir(tmp_path)
    return found, codes


@pytest.mark.parametrize("named", [("--run-name", "x"), ("--run-name=x",)])
def test_each_capture_is_a_run_of_its_own(started, capsys, named):
    found, _ = started
    assert main(["train", "--captures", "3", *named, "--batch-size", "4"]) == 0
    assert found == [["train", "--batch-size", "4", "--run-name", f"x-{number}"] for number in (1, 2, 3)]
    captured = capsys.readouterr()
    assert "compare traces/x-1 traces/x-2 traces/x-3 --against OTHER-*" in captured.out
    assert "capture 2 of 3: traces/x-2" in captured.err


def test_without_a_name_they_are_named_after_what_they_are_and_the_time(started):
    found, _ = started
    assert main(["train", "--captures=2"]) == 0
    names = [arguments[-1] for arguments in found]
    assert [name[-2:] for name in names] == ["-1", "-2"]
    assert len({name[:-2] for name in names}) == 1
    assert names[0].startswith("resnet18-ddp-2")


@pytest.mark.parametrize(("code", "told"), [(3, 3), (-15, 143)])
def test_the_first_that_fails_ends_it(started, code, told):
    found, codes = started
    codes["x-2"] = code
    assert main(["train", "--captures", "3", "--run-name", "x"]) == told
    assert len(found) == 2


def test_a_name_that_is_taken_is_refused_before_any_starts(started, capsys):
    found, _ = started
    Path("traces/x-3").mkdir(parents=True)
    Path("traces/x-3/run.json").touch()
    assert main(["train", "--captures", "3", "--run-name", "x"]) == 1
    assert "x-3: expected a new or empty run directory" in capsys.readouterr().err
    assert not found


def test_another_launcher_has_to_start_each_itself(started, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert main(["train", "--captures", "2"]) == 2
    assert "start it once for each, with --run-name NAME-1" in capsys.readouterr().err
