"""A month of somebody else's pipelined training, as traces: replayed as its authors replay it."""

import json

import numpy as np
import pandas as pd
import pytest
from beside_checkout import SHARED
from operation_table import write_traces

from analysis import analyse
from analysis.replay.scenarios.usual import no_jitter
from analysis.results.analysis import Analysis

TABLE, EXPECTED = SHARED / "simulation" / "ST.csv.gz", SHARED / "simulation" / "ST.expected.json"
pytestmark = pytest.mark.skipif(not TABLE.exists(), reason="no shared table of operations beside the checkout")


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    folder = tmp_path_factory.mktemp("traces") / "st"
    write_traces(pd.read_csv(TABLE), folder)
    return analyse(folder, details=True)


def test_steps_are_those_of_their_replay(replayed: Analysis) -> None:
    """With delays, and without them. Their steps begin at 0, ours with the first activity; the last has no next one."""
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    steps = replayed.replay().set_index("step").iloc[:-1]
    for key, column in (("replay_with_launch_delay_s", "with_delays_ns"), ("replay_s", "replayed_ns")):
        theirs = np.array([expected[key][str(step)] for step in steps.index])
        ours = steps[column].to_numpy() / 1e9
        assert ours == pytest.approx(theirs, rel=0.01)
        assert ours.mean() == pytest.approx(theirs.mean(), rel=0.005)


def test_the_slowdown_is_theirs(replayed: Analysis) -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    [row] = replayed.predict(no_jitter()).to_dict("records")
    mean = replayed.replay()["replayed_ns"].mean()
    assert mean / (mean - row["gain_ns"]) == pytest.approx(expected["slowdown"], rel=0.01)


@pytest.mark.slow
def test_the_slowdown_of_each_stage_is_theirs(replayed: Analysis) -> None:
    """Stages 1 and 2 call the same collectives, and are one part here."""
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))["slowdown_by_stage"]
    table = replayed.attribution
    found = dict(zip(table["part"], table["slowdown_frac"], strict=True))
    stages = pd.read_csv(TABLE).groupby("stage")["rank"].unique()
    for stage in (0, 3):
        ranks = " ".join(map(str, sorted(stages[stage])))
        assert 1 + found[ranks] == pytest.approx(expected[str(stage)], rel=0.01)
    programs = table[table["of"] == "program"]
    assert programs["part"].iloc[0] == " ".join(map(str, sorted(stages[3])))
