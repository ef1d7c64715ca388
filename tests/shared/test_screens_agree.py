"""What is said of real and of simulated runs: no two numbers contradict each other, or the tables.

Each change has one gain, wherever it stands, and what is said first of a run is what gains most.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from beside_checkout import SHARED, needs_shared
from reading_screens import contradictions

from commtrace import analyse
from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import NotPredictable
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.render.screen import Screen
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse_with
from commtrace.analysis.show.overview import overview

_QUICK = (
    "ddp-a100-r0of2", "dlrm-v100-w8", "tracelens-bert-h100", "ddp_checkpoint_once", "h_cpu_sync", "k_hang",
    "pipeline-even",
)  # fmt: skip
_ROOTS = ("traces", "truth", "foresight")
_WIDTH = 80


def _runs() -> list[Path]:
    folders = [path for root in _ROOTS for path in sorted((SHARED / root).glob("*")) if path.is_dir()]
    return [path for path in folders if path.name != "holes"] + sorted((SHARED / "traces" / "holes").glob("*"))


def _param(path: Path) -> object:
    marks = [] if path.name in _QUICK else [pytest.mark.slow]
    return pytest.param(path, id=path.name, marks=marks)


pytestmark = needs_shared


def assert_one_gain_of_each_change(run: Analysis) -> None:
    """It is the same in remedies, predictions and the headline."""
    if run.prices is None:
        assert run.remedies["gain_ns"].isna().all()
        return
    try:
        predicted = {row["scenario"]: row for row in records(run.predictions)}
    except NotPredictable:
        pytest.fail("remedies are priced, and nothing is predicted")
    step_ns = run.prices.step_ns  # on the common clock; own clocks run at other speeds, or jump
    assert step_ns == pytest.approx(run.typical_step.parts["window_ns"], rel=1e-2)
    for row in records(run.remedies):
        if row["gain_ns"] and row["what"] in predicted:
            same = predicted[row["what"]]
            assert same["gain_ns"] == row["gain_ns"]
            assert same["step_ns"] == pytest.approx(step_ns - row["gain_ns"], abs=2)
            assert same["low_ns"] == pytest.approx(max(step_ns - row["gain_high_ns"], 0), abs=2)
            assert same["high_ns"] == pytest.approx(step_ns - row["gain_low_ns"], abs=2)
    verdict = run.verdicts.iloc[0]
    first = run.prices.changes[0] if run.prices.changes else None
    named = re.match(r"(Rank|Ranks|Host|Links) .* costs? ", verdict["headline"])
    if named and verdict["verdict"] in ("skew-bound", "link-bound"):
        assert first is not None
        assert first.remedy in ("no_straggler", "slow_links")
        assert f"{first.gain.ns / 1e6:,.1f}" in verdict["headline"] or " us " in verdict["headline"]


@pytest.mark.quick_cases("tracelens-bert-h100")
@pytest.mark.parametrize("path", [_param(path) for path in _runs()])
def test_no_two_numbers_contradict_each_other(path: Path) -> None:
    run = analyse_with(path, ReadOptions(details_if_recorded=True))
    screen = overview(run, Screen(width=_WIDTH))
    assert not contradictions(run, screen, _WIDTH), screen
    assert_one_gain_of_each_change(run)


def _files(path: Path) -> list[Path]:
    return sorted(
        file
        for file in path.iterdir()
        if file.name.endswith((".json", ".json.gz")) and not file.name.startswith(".") and "meta" not in file.name
    )


_OF_SEVERAL = [path for path in _runs() if path.is_dir() and len(_files(path)) > 1]


@pytest.mark.slow
@pytest.mark.parametrize("path", [_param(path) for path in _OF_SEVERAL[::3]])
def test_nor_do_they_where_a_rank_has_no_trace(path: Path) -> None:
    """Sizes are those of the ranks seen, and the screen says that there are others."""
    run = analyse_with(_files(path)[1:], ReadOptions(details_if_recorded=True))
    screen = overview(run, Screen(width=_WIDTH))
    assert not contradictions(run, screen, _WIDTH), screen
    if run.run.missing_ranks and not len(run.hangs):
        assert f"Only {len(run.run.ranks)} of {run.run.world_size} ranks" in " ".join(screen.split()), screen


_FIELD = [path for path in sorted((SHARED / "field").glob("*")) if path.is_dir() and path.name != "interleaved-file"]


@pytest.mark.slow
@pytest.mark.parametrize("path", [_param(path) for path in _FIELD])
def test_one_gain_of_each_change(path: Path) -> None:
    assert_one_gain_of_each_change(analyse(path, details=True))


@pytest.mark.slow
def test_what_holds_up_the_others_cpus_as_well_may_be_all_that_they_wait() -> None:
    """Rank 3 sleeps for 40 ms, and in each step the others' CPUs wait for it in a socket: 41 ms are to be had."""
    run = analyse(SHARED / "field" / "straggler-hidden-host-wait", details=True)
    assert run.prices is not None
    gain = run.prices.gains["no_straggler"]
    assert gain.low_ns < 5e6
    assert 35e6 < gain.high_ns < 45e6
    assert run.verdicts["headline"].iloc[0].startswith("Rank 3 costs 3.0 to 40.0 ms of every")


@pytest.mark.slow
def test_what_happens_once_is_an_event() -> None:
    """Rank 0 copies for 120 ms in one of six steps: no change of a typical step gains as much."""
    run = analyse(SHARED / "foresight" / "ddp_checkpoint_once", details=True)
    verdict = run.verdicts.iloc[0]
    assert verdict["verdict"] == "event-bound"
    assert verdict["headline"].endswith(": the CPU of rank 0 is in `aten::copy_` for 120.0 ms")
    assert "120.0 of the 168.0 ms that were traced" in verdict["why"]
