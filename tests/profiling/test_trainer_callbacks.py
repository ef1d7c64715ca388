"""The callbacks of trainers: what they trace, and that a training ends as it would without them."""

import re
import subprocess
from pathlib import Path

import pytest
from capturing import SCRIPTS, fresh_python, metas, trace, traced_steps

from commtrace.profiling.base.schedule import Schedule
from commtrace.profiling.errors import UsageError
from commtrace.profiling.trainer import TrainerCapture, fitted

USERS = SCRIPTS / "users"


# --- real trainers, two ranks with gloo; test_trainer_logs.py has whole ones ------------------------------------------


def transformers(folder: Path, how: str, *out: Path) -> "subprocess.CompletedProcess[str]":
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    return fresh_python(*launch, USERS / "transformers_callback.py", folder / "theirs", how, *out)


def lightning(folder: Path, how: str, *out: Path) -> "subprocess.CompletedProcess[str]":
    return fresh_python(USERS / "lightning_callback.py", how, *out)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [transformers, lightning])
def test_a_training_that_fails_does_so_and_leaves_what_was_traced(tmp_path: Path, trainer) -> None:
    run = tmp_path / "run"
    done = trainer(tmp_path, "fails", run)
    assert done.returncode == 1 if trainer is transformers else done.returncode  # Lightning's rank 1 may kill rank 0
    assert "RuntimeError: of the script" in done.stderr
    assert "Exception ignored" not in done.stderr
    meta = metas(run)[0]
    assert not meta["complete"]
    assert "RuntimeError: of the script" in meta["reason"]
    assert traced_steps(trace(run / meta["traces"][0]))[:2] == [10, 11]
    assert not (run / "summary.txt").exists()


@pytest.mark.slow
def test_a_folder_that_is_taken_costs_the_capture_and_not_the_training(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "mine.txt").touch()
    done = transformers(tmp_path, "with", run)
    assert (done.returncode, done.stdout.count("losses [")) == (0, 1), done.stderr
    (only,) = (line for line in done.stderr.splitlines() if line.startswith("commtrace: "))
    assert only.startswith(f"commtrace: the training goes on without a capture: {run}: ")
    assert [path.name for path in run.iterdir()] == ["mine.txt"]


# --- one process -----------------------------------------------------------------------------------------------------


def train(capture: TrainerCapture, steps: int, planned: int | None = None) -> int:
    """A training of so many steps; return how many it made."""
    torch = pytest.importorskip("torch")
    capture.begin(steps=planned or steps, device=torch.device("cpu"), model=torch.nn.Linear(2, 1))
    made = 0
    for _ in range(steps):
        torch.ones(4, 4) @ torch.ones(4, 4)
        made += 1
        capture.step()
    capture.end()
    return made


def test_a_short_training_is_traced_where_it_can_be(tmp_path: Path, capfd) -> None:
    assert train(TrainerCapture("mine", tmp_path / "run", analyse=False), 6) == 6
    (meta,) = metas(tmp_path / "run").values()
    assert (meta["complete"], traced_steps(trace(tmp_path / "run" / meta["traces"][0]))) == (True, [2, 3, 4, 5])
    assert capfd.readouterr().err.startswith("commtrace: done: 1 rank traced in ")


def test_steps_long_after_the_traced_ones_are_not_timed(tmp_path: Path) -> None:
    train(TrainerCapture("mine", tmp_path / "run", from_step=2, active=1, analyse=False), 60)
    (meta,) = metas(tmp_path / "run").values()
    assert (meta["complete"], len(meta["steps"])) == (True, 23)


def test_the_second_training_of_a_trainer_is_not_captured(tmp_path: Path, capfd) -> None:
    capture = TrainerCapture("mine", tmp_path / "run", analyse=False)
    train(capture, 4)
    capfd.readouterr()
    assert train(capture, 4) == 4
    assert capfd.readouterr().err == ""


def test_without_a_folder_there_is_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(TrainerCapture("mine", analyse=False), 4)
    (run,) = (tmp_path / "traces").iterdir()
    assert re.fullmatch(r"mine-w1-\d{8}T\d{6}Z", run.name)
    assert metas(run)[0]["complete"]


@pytest.mark.parametrize("broken", ["write_trace", "write_json"])
def test_whatever_fails_is_one_line(tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    from commtrace.profiling.base import run_directory

    def fail(*_: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(run_directory, broken, fail)
    assert train(TrainerCapture("mine", tmp_path / "run", from_step=2, active=1, analyse=False), 8) == 8
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("commtrace: ")
    assert "ZeroDivisionError: of ours" in line


def test_another_profiler_costs_the_capture(tmp_path: Path, capfd) -> None:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert train(TrainerCapture("mine", tmp_path / "run", analyse=False), 8) == 8
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("commtrace: the training goes on without a capture: ")
    assert "profiler" in line


@pytest.mark.parametrize("options", [{"from_step": 1}, {"active": 0}, {"analyse_max_seconds": 0}, {"keep": "all"}])
def test_options_that_cannot_be_are_refused_at_once(tmp_path: Path, options) -> None:
    with pytest.raises(UsageError):
        TrainerCapture("mine", tmp_path, **options)


@pytest.mark.parametrize(
    ("steps", "wait", "active"), [(None, 9, 5), (15, 9, 5), (14, 8, 5), (7, 1, 5), (4, 1, 2), (3, 1, 1), (1, 1, 1)]
)
def test_the_schedule_of_a_short_training(steps: int | None, wait: int, active: int) -> None:
    assert fitted(Schedule(9, 1, 5), steps) == Schedule(wait, 1, active)


def test_nothing_is_imported_before_it_is_used() -> None:
    code = "import sys, commtrace.integrations, commtrace.profiling.trainer; print(*sys.modules)"
    done = fresh_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "transformers", "lightning"} & {*done.stdout.split()}
