"""One window for every table: sums over the steps that count, or over all that was recorded."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from builders import MS, US, Trace, analysed

from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

DATA = Path(__file__).parents[1] / "data"
PARTS = ("compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns", "window_ns")
UNUSUAL = 7


def drawn(seed: int) -> Trace:
    """Steps of equal length but one, on drawn streams, with work from before the recording that runs in the first."""
    rng = random.Random(seed)
    trace, now = Trace(world=1), 1 * MS
    steps = rng.randint(4, 7)
    unusual = rng.randrange(1, steps - 1)
    for number in range(steps):
        length = (UNUSUAL if number == unusual else 1) * 10 * MS
        trace.step(number, now, now + length)
        if number == 0:
            trace.kernel("left over", now + 1 * MS, rng.randint(1, 400) * US, launch=None)
        for _ in range(rng.randint(2, 6)):
            trace.kernel(f"k{rng.randrange(3)}", now + rng.randint(0, 8) * MS, rng.randint(1, 900) * US, launch=now)
        trace.kernel("first", now, 10 * US, launch=now).memcpy("HtoD", now + 9 * MS, 50 * US, launch=now)
        now += length
    return trace


def counted(found: Analysis) -> list[int]:
    steps = found.steps
    return list(steps["step"][steps["left_out"].isna()])


@pytest.mark.parametrize("seed", range(12))
def test_the_breakdown_is_the_sum_of_the_steps_that_count(tmp_path: Path, seed: int) -> None:
    found = analysed(tmp_path, drawn(seed))
    steps = counted(found)
    assert 0 < len(steps) < len(found.steps)
    by_step = found.breakdown_steps
    own = by_step[by_step["step"].isin(steps)]
    (row,) = found.breakdown.to_dict("records")
    assert row["steps"] == len(steps)
    assert {part: row[part] for part in PARTS} == own[list(PARTS)].sum().to_dict()
    assert row["compute_ns"] + row["exposed_comm_ns"] + row["exposed_memory_ns"] + row["idle_ns"] == row["window_ns"]
    assert row["window_ns"] / len(steps) == found.typical_step.parts["window_ns"]


@pytest.mark.slow_cases("10", "7")
@pytest.mark.parametrize("seed", range(12))
def test_kernels_and_idle_time_are_of_the_same_window(tmp_path: Path, seed: int) -> None:
    """The oracle: each activity is in the step that launched it; what nobody launched, in that in which it begins."""
    trace = drawn(seed)
    trace.write(tmp_path)
    found = analyse(tmp_path, details=True)
    ran, steps = found.run.activities, counted(found)
    assert ran["step"].isna().sum() == 1  # what was launched before the recording runs in the first step
    launched = ran["step"].fillna(0).astype("int64")
    wanted = ran[launched.isin(steps)].groupby("name")["dur_ns"].agg(["size", "sum"])
    kernels = found.kernels.set_index("name")
    copies = wanted.index.str.startswith("Mem")
    pd.testing.assert_series_equal(
        kernels["total_ns"].sort_index(), wanted["sum"][~copies], check_names=False, check_index_type=False
    )
    assert kernels["calls"].sort_index().tolist() == wanted["size"][~copies].tolist()
    assert found.copies["copies"].sum() == wanted["size"][copies].sum()
    assert found.launches["activities"].sum() == wanted["size"].sum()
    assert found.idle["idle_ns"].tolist() == found.breakdown["idle_ns"].tolist()
    assert found.account["window_ns"].tolist() == found.breakdown["window_ns"].tolist()
    assert found.mfu["window_ns"].tolist() == found.breakdown["window_ns"].tolist()
    assert set(found.gaps["step"].dropna()) <= set(steps)


@pytest.mark.parametrize("seed", range(3))
def test_all_that_was_recorded_if_asked_for(tmp_path: Path, seed: int) -> None:
    found = replace(analysed(tmp_path, drawn(seed)), whole=True)
    ran = found.run.activities
    (row,) = found.breakdown.to_dict("records")
    assert pd.isna(row["steps"])
    assert row["window_ns"] == (ran["start_ns"] + ran["dur_ns"]).max() - ran["start_ns"].min()
    assert found.kernels["calls"].sum() == (ran["kind"] == "compute").sum()


@pytest.mark.quick_cases("gloo-training")
@pytest.mark.parametrize("run", ["nccl-straggler", "nccl-hang", "gloo-training"])
def test_ranks_wait_in_the_steps_that_count(run: str) -> None:
    found = analyse(DATA / run, details=True)
    steps, calls = counted(found), found.calls
    inside = found.participation["call_id"].isin(calls["call_id"][calls["step"].isin(steps)])
    waited = found.participation[inside].groupby("rank")["wait_ns"].sum()
    assert found.ranks.set_index("rank")["wait_ns"].to_dict() == waited.to_dict()
    assert found.waits["wait_ns"].sum() == waited.sum()
    whole = replace(found, whole=True)
    assert whole.ranks["wait_ns"].sum() == found.participation["wait_ns"].sum()


def test_a_table_says_which_steps_it_is_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn(0).write(tmp_path)
    assert main(["breakdown", str(tmp_path)]) == 0
    first = capsys.readouterr().err
    assert "note: of steps 0" in first
    assert "--whole: of all that was recorded" in first
    assert main(["breakdown", "--whole", str(tmp_path)]) == 0
    assert "note: of steps" not in capsys.readouterr().err


def test_without_steps_it_is_all(tmp_path: Path) -> None:
    (row,) = analysed(tmp_path, Trace(world=1).kernel("a", 0, 2 * MS).kernel("b", 4 * MS, 1 * MS)).breakdown.to_dict(
        "records"
    )
    assert (row["window_ns"], row["idle_ns"]) == (5 * MS, 2 * MS)
    assert pd.isna(row["steps"])
