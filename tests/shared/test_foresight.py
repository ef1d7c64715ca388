"""Runs simulated elsewhere without their cause, and a real one that sleeps, predicted without it."""

from __future__ import annotations

import pytest
from beside_checkout import SHARED, TRACES

from commtrace import analyse
from commtrace.analysis.replay.scenarios.usual import without_stragglers

FORESIGHT = SHARED / "foresight"
pytestmark = pytest.mark.skipif(not FORESIGHT.exists(), reason="no shared runs beside the checkout")
WITHOUT_US = [
    ("tp_stall_before_collective", (5,), 7_707),
    ("ddp_two_culprits", (2, 5), 7_972),
    ("pp_two_hosts", (5,), 10_567),
    ("ddp_hidden_straggler", (5,), 11_396),
    ("ddp_checkpoint_once", (0,), 7_985),
]


@pytest.mark.slow
@pytest.mark.parametrize(("run", "ranks", "true_us"), WITHOUT_US)
def test_without_its_culprits_a_run_is_as_simulated_without_them(
    run: str, ranks: tuple[int, ...], true_us: float
) -> None:
    [row] = analyse(FORESIGHT / run, details=True).predict(without_stragglers(ranks)).to_dict("records")
    assert row["step_ns"] / 1e3 == pytest.approx(true_us, rel=0.005)


@pytest.mark.slow
def test_a_rank_that_sleeps_in_python_delays_all() -> None:
    """A second in each step, while the other ranks wait for it in a collective, their CPUs as well."""
    found = analyse(TRACES / "torchrec-a2a-063", details=True)
    [row] = found.predict(without_stragglers([2])).to_dict("records")
    assert row["gain_ns"] / 1e6 == pytest.approx(995, rel=0.03)
