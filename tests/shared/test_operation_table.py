"""Months of somebody else's pipelined training, as traces: replayed as its authors replay it.

Of one table a worker was slowed on purpose, and of two ranks are missing: one stands for its tensor-parallel group.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from beside_checkout import SHARED
from operation_table import write_traces

from commtrace import analyse
from commtrace.analysis.results.analysis import Analysis

TABLES = SHARED / "simulation"
pytestmark = pytest.mark.skipif(not TABLES.exists(), reason="no shared tables of operations beside the checkout")
NAMES = ["ST", pytest.param("AR", marks=pytest.mark.slow), pytest.param("SE", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def replayed(name: str, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    folder: Path = tmp_path_factory.mktemp("traces") / name
    write_traces(pd.read_csv(TABLES / f"{name}.csv.gz"), folder)
    return analyse(folder, details=True)


@pytest.fixture(scope="module")
def expected(name: str) -> dict[str, Any]:
    return json.loads((TABLES / f"{name}.expected.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_steps_are_those_of_their_replay(replayed: Analysis, expected: dict[str, Any]) -> None:
    """With delays, and without them. Their steps begin at 0, ours with the first activity."""
    steps = replayed.replay_steps.set_index("step")
    for key, column in (("replay_with_launch_delay_s", "with_delays_ns"), ("replay_s", "replayed_ns")):
        theirs = np.array([expected[key][str(step)] for step in steps.index])
        ours = steps[column].to_numpy() / 1e9
        assert ours == pytest.approx(theirs, rel=0.01)
        assert ours.mean() == pytest.approx(theirs.mean(), rel=0.005)


@pytest.mark.slow
def test_the_slowdown_is_theirs(replayed: Analysis, expected: dict[str, Any]) -> None:
    """And the step without any jitter."""
    [row] = replayed.predict({"no_jitter": True}).to_dict("records")
    mean = replayed.replay_steps["replayed_ns"].mean()
    assert mean / (mean - row["gain_ns"]) == pytest.approx(expected["slowdown"], rel=0.01)
    assert (mean - row["gain_ns"]) / 1e9 == pytest.approx(np.mean(list(expected["ideal_s"].values())), rel=0.01)


@pytest.mark.slow
def test_the_slowdown_of_each_stage_is_theirs(name: str, replayed: Analysis, expected: dict[str, Any]) -> None:
    """Stages between the first and the last call the same collectives, and are one part here."""
    table = replayed.attribution
    slowdown = dict(zip(table["part"], table["slowdown_frac"], strict=True))
    ranks = pd.read_csv(TABLES / f"{name}.csv.gz").groupby("stage")["rank"].unique()
    named = {stage: " ".join(map(str, sorted(of_stage))) for stage, of_stage in ranks.items()}
    for stage in (0, max(named)):
        assert 1 + slowdown[named[stage]] == pytest.approx(expected["slowdown_by_stage"][str(stage)], rel=0.03)
    worst = max(expected["slowdown_by_stage"], key=expected["slowdown_by_stage"].get)
    assert table[table["of"] == "program"]["part"].iloc[0] == named[int(worst)]


@pytest.mark.slow
def test_the_slowdown_of_each_replica_is_theirs(name: str, replayed: Analysis, expected: dict[str, Any]) -> None:
    """A replica is all ranks at one place of their data-parallel groups."""
    groups = pd.read_csv(TABLES / f"{name}.csv.gz").groupby("stage")["rank"].unique()
    like = " ".join(map(str, sorted(groups[0])))
    table = replayed.attribution.set_index("part")["slowdown_frac"]
    for place, theirs in expected["slowdown_by_dp_rank"].items():
        ours = table[f"{place} of {len(groups[0])} in groups like {like}"]
        assert 1 + ours == pytest.approx(theirs, rel=0.03)
