"""Causes that are planted in a real training of two ranks: the first screen says what it was, and how long it took."""

import re
from pathlib import Path

import pytest
from capturing import SCRIPTS, python, torchrun

from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse

pytestmark = pytest.mark.slow

TRIES = 3
"""On a machine that does other things as well, counters may leave it open what a thread did; never are they wrong."""
IN_WORDS = {
    "sleep": r"is (mostly )?blocked in Python, outside of any operator,",
    "sync": r"is (mostly )?blocked in Python, outside of any operator,",
    "compute": r"(mostly )?computes in Python, outside of any operator,",
    "collect": r"(mostly )?collects garbage",
    "loader": r"waits for its data loader",
}
OPEN = r"is in Python, outside of any operator,|mostly waits for a CPU, outside of any operator,"
DOES = {"sleep": "blocked", "sync": "blocked", "compute": "computing", "collect": "collecting garbage"}


def captured(folder: Path, cause: str) -> tuple[Analysis, float]:
    """The run, and how long rank 1 took for the cause in each traced step, in ms, by its own clock."""
    folder.mkdir()
    done = torchrun(2, SCRIPTS / "causes.py", folder, cause, 60)
    assert done.returncode == 0, done.stderr
    planted = re.search(r"planted ([0-9.]+) ms", done.stdout)
    assert planted is not None
    return analyse(folder / "run"), float(planted[1])


@pytest.mark.parametrize("cause", IN_WORDS)
def test_what_was_planted_is_what_is_said(tmp_path: Path, cause: str) -> None:
    for attempt in range(TRIES):
        found, planted_ms = captured(tmp_path / str(attempt), cause)
        screen = " ".join(found.summary().split())
        if re.search(rf"(It|Rank 1|which) {IN_WORDS[cause]} [0-9.]+ ms (per step )?longer than the others", screen):
            break
        assert re.search(OPEN, screen), screen
    else:
        pytest.skip("other processes take so much of the CPUs that it stays open what the thread did")
    assert set(found.ranks.loc[found.ranks["caused_wait_frac"] > 0.5, "rank"]) == {1}
    table = found.late_work
    parts = table[(table["kind"] == "python") & (table["rank"] == 1)]
    in_python = parts.groupby("what")["extra_ns"].sum() / parts["step"].nunique() / 1e6
    if cause in DOES:
        assert in_python.idxmax() == DOES[cause]
        assert in_python.sum() == pytest.approx(planted_ms, rel=0.25)


EVALUATING = """
import sys
import torch
from commtrace import capture

model, batch = torch.nn.Linear(400, 400), torch.ones(400, 400)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
with capture(sys.argv[1], wait=1, warmup=1, active=5) as session:
    for step in range(7):
        for _ in range(5):
            model(batch).sum().backward()
        optimizer.step()
        if step == 4:
            model.eval()
            with torch.no_grad():
                for _ in range(60):
                    model(batch)
            model.train()
        session.step()
"""


def test_a_step_with_an_evaluation_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(EVALUATING)
    done = python(tmp_path / "script.py", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    found = analyse(tmp_path / "run")
    steps = found.steps.set_index("step")
    assert steps["kind"].dropna().to_dict() == {4: "eval"}
    assert steps.loc[4, "left_out"] == "kind"
    assert "An eval step takes" in found.summary()
