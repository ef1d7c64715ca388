"""Each change has one gain, wherever it stands, and what is said first of a run is what gains most."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from beside_checkout import SHARED, needs_shared

from commtrace import analyse
from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import NotPredictable

_QUICK = ("ddp-a100-r0of2", "dlrm-v100-w8", "tp_slow_group", "straggler-hidden-host-wait", "h_cpu_sync")
_ROOTS = ("traces", "truth", "foresight", "field")

pytestmark = needs_shared


def _runs() -> list[object]:
    folders = [path for root in _ROOTS for path in sorted((SHARED / root).glob("*")) if path.is_dir()]
    runs = [path for path in folders if path.name not in ("holes", "interleaved-file")]
    return [pytest.param(path, id=path.name, marks=[] if path.name in _QUICK else [pytest.mark.slow]) for path in runs]


@pytest.mark.parametrize("path", _runs())
def test_one_gain_of_each_change(path: Path) -> None:
    run = analyse(path, details=True)
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


def test_what_holds_up_the_others_cpus_as_well_may_be_all_that_they_wait() -> None:
    """Rank 3 sleeps for 40 ms, and in each step the others' CPUs wait for it in a socket: 41 ms are to be had."""
    run = analyse(SHARED / "field" / "straggler-hidden-host-wait", details=True)
    assert run.prices is not None
    gain = run.prices.gains["no_straggler"]
    assert gain.low_ns < 5e6
    assert 35e6 < gain.high_ns < 45e6
    assert run.verdicts["headline"].iloc[0].startswith("Rank 3 costs 4.0 to 40.0 ms of every")


def test_what_happens_once_is_an_event() -> None:
    """Rank 0 copies for 120 ms in one of six steps: no change of a typical step gains as much."""
    run = analyse(SHARED / "foresight" / "ddp_checkpoint_once", details=True)
    verdict = run.verdicts.iloc[0]
    assert verdict["verdict"] == "event-bound"
    assert "120.0 of the 168.0 ms that were traced" in verdict["headline"]
    assert "for rank 0" in verdict["why"]
