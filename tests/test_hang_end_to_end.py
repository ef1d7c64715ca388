"""Real hangs, made here with gloo: each is told apart by its dumps."""

from __future__ import annotations

from pathlib import Path

import pytest
import warm_python
from capturing import SCRIPTS, environment, python

from commtrace import analyse
from commtrace.analysis.hang.analysis import Hang, find_hang

SCRIPT = Path(__file__).parent / "support/gloo_hang.py"


def hang_by(fault: str, tmp_path: Path) -> Hang:
    folder = tmp_path / "dumps"
    folder.mkdir()
    done = warm_python.run([str(SCRIPT), fault, str(folder)], cwd=tmp_path, env=environment(SCRIPT.parents[1]))
    assert done.returncode == 0, done.stderr
    return find_hang(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why", "said"),
    [
        ("sleep", "missing", "Rank 1 is missing from all_reduce number 4 of group 0 (default_pg, ranks 0-2)."),
        ("exit", "missing", "Rank 1 is missing from all_reduce number 4 of group 0 (default_pg, ranks 0-2)."),
        ("collective", "mismatch", "rank 1 called broadcast float32 8 elements"),
        ("shape", "mismatch", "rank 1 called all_reduce float32 5 elements"),
    ],
)
def test_a_real_hang_is_told_apart(fault: str, why: str, said: str, tmp_path: Path) -> None:
    hang = hang_by(fault, tmp_path)
    assert [(origin.ranks, origin.why.value) for origin in hang.origins] == [((1,), why)]
    assert said in hang.answer[0]
    assert "train_step (" in hang.answer[0] or "misbehave (" in hang.answer[0]


@pytest.mark.slow
def test_a_real_job_that_ended_does_not_hang(tmp_path: Path) -> None:
    assert not hang_by("none", tmp_path).found


@pytest.mark.slow
def test_a_run_directory_keeps_the_dumps(tmp_path: Path) -> None:
    users = SCRIPTS / "users"
    done = python(
        *("-m", "commtrace", "run", "--workers", 2, "--flight-recorder", "--out", tmp_path, "--run-name", "run"),
        *(users / "ddp.py", "finish"),
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    assert sorted(path.name for path in run.glob("flight*")) == ["flight_recorder_rank_0", "flight_recorder_rank_1"]
    hang = find_hang(run)
    assert sorted(hang.dumps.by_rank) == [0, 1]
    assert hang.dumps.by_rank[0].records > 3
    assert not hang.found
    assert len(analyse(run).run.ranks) == 2  # no reader of traces takes them for one
