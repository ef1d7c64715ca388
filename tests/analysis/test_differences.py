"""Rows of a comparison, of made-up steps whose truth is known."""

import math

import numpy as np
import pytest

from commtrace.analysis.comparison.differences import Allowance, compared, judged, surely_within
from commtrace.analysis.comparison.significance import SpreadOfRuns
from commtrace.analysis.comparison.step_values import Capture, midmean

STEP_NS = 100e6
MEASURED, QUIET = Allowance(SpreadOfRuns(0.1), separate=True), Allowance(SpreadOfRuns(0.01))


def capture(values: np.ndarray, start: int = 2) -> Capture:
    return Capture(np.arange(start, start + len(values)), np.round(values))


def row(a: list[Capture], b: list[Capture], allowance: Allowance = MEASURED) -> dict:
    (found,) = judged([compared(a, b, allowance)])
    return found


# --- steps that pair -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "allowance"), [(3, MEASURED), (1, QUIET)])
def test_only_steps_that_both_have_are_compared_where_steps_pair(count, allowance):
    """Steps grow sixfold, and B, which stopped after the first twelve, takes a tenth longer for each."""
    chance = np.random.default_rng(1)
    work = STEP_NS * np.exp(np.linspace(0, 2, 40))
    a, b = (
        [capture(factor * work[:steps] * chance.normal(1, 0.003, steps)) for _ in range(count)]
        for factor, steps in ((1.0, 40), (1.1, 12))
    )
    found = row(a, b, allowance)
    assert found["note"] == "paired by number"
    assert (found["steps_a"], found["steps_b"]) == (12 * count, 12 * count)
    assert found["change_low_frac"] <= found["change_frac"] <= found["change_high_frac"]
    assert found["change_frac"] == pytest.approx(0.1, abs=0.01)
    assert found["difference_ns"] / found["a_ns"] == pytest.approx(0.1, abs=0.01)
    assert found["significant"]


def test_a_change_of_paired_steps_counts_beside_what_is_left_of_their_spread():
    """Steps differ by 30 % because of their data, which hides no change of a tenth where the data are the same."""
    chance = np.random.default_rng(2)
    found = 0
    for _ in range(50):
        work = STEP_NS * chance.lognormal(0, 0.3, 20)
        a, b = (capture(factor * work * chance.normal(1, 0.005, 20)) for factor in (1.0, 1.1))
        pair = row([a], [b], QUIET)
        assert pair["seen_frac"] < 0.1
        found += pair["significant"]
    assert found >= 45


@pytest.mark.slow
def test_the_change_of_paired_steps_lies_in_its_interval():
    chance = np.random.default_rng(3)
    for _ in range(200):
        work = STEP_NS * chance.lognormal(0, 0.3, 12)
        sides = [[capture(work * chance.normal(1, 0.02, 12)) for _ in range(count)] for count in (1, 2)]
        for a, b in (sides, sides[::-1], (sides[0], sides[1][:1])):
            pair = row(a, b, Allowance(SpreadOfRuns(0.0), separate=True))
            assert pair["change_low_frac"] <= pair["change_frac"] <= pair["change_high_frac"]


# --- what stands for the steps of a capture --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "middle"),
    [([7], 7), ([1, 2], 1.5), ([3, 1, 200], 3), ([4, 1, 3, 99], 3.5), ([0, 9, 2, 3, 4], 3)],
)
def test_the_middle_half_of_steps(values, middle):
    assert midmean(np.array(values, dtype=float)) == pytest.approx(middle)
    assert midmean(np.full(len(values), 0.1)) == 0.1


@pytest.mark.parametrize("steps", [8, 9, 19])
def test_a_change_of_every_second_step_is_found(steps):
    """The median of an odd number of steps would be one of those that did not change."""
    chance = np.random.default_rng(steps)
    found = 0
    for _ in range(50):
        a, b = ([STEP_NS * chance.normal(1, 0.006, steps) * chance.normal(1, 0.002) for _ in range(3)] for _ in "ab")
        for values in b:
            values[1::2] *= 1.05
        found += row(list(map(capture, a)), list(map(capture, b)))["significant"]
    assert found >= 45


# --- odd values ------------------------------------------------------------------------------------------------------


def test_bounds_that_no_number_holds_are_numbers():
    """Two captures of A of which one is 10,000 times as long: with one degree of freedom nothing is out of reach."""
    steps = np.full(4, STEP_NS)
    found = row([capture(steps), capture(1e4 * steps)], [capture(100 * steps)])
    assert math.isfinite(found["change_high_frac"])
    assert math.isfinite(found["seen_frac"])
    assert found["change_low_frac"] == pytest.approx(-1)
    assert not found["significant"]


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases("1.1-(5, 5)")
@pytest.mark.parametrize("counts", [(1, 2), (2, 2), (1, 5), (3, 3), (5, 5)], ids=str)
@pytest.mark.parametrize("over", [1.001, 1.1, 1.3])
def test_a_slowdown_beyond_the_limit_seldom_passes(counts, over):
    """Of a normal spread of 1 %, whatever the limit is beside what these captures show."""
    chance, limit = np.random.default_rng(4), 0.1
    slower = np.repeat([0, math.log1p(over * limit)], counts)
    sides = np.exp(slower + chance.normal(0, 0.01, (300, sum(counts))))
    passed = 0
    for one in sides:
        values = [capture(STEP_NS * np.full(4, value)) for value in one]
        passed += surely_within(compared(values[: counts[0]], values[counts[0] :], MEASURED), limit)
    assert passed / 300 <= 0.14  # three standard deviations above a tenth


@pytest.mark.slow
def test_a_slowdown_beyond_the_limit_seldom_passes_of_one_capture_each():
    chance, limit, passed = np.random.default_rng(5), 0.8, 0
    for _ in range(400):
        a, b = (
            capture(STEP_NS * factor * chance.lognormal(0, 0.1) * chance.lognormal(0, 0.02, 12))
            for factor in (1.0, 1.801)
        )
        passed += surely_within(compared([a], [b], Allowance(SpreadOfRuns(0.1))), limit)
    assert 0.02 <= passed / 400 <= 0.14


def test_equal_captures_pass_a_limit_that_they_would_show():
    chance, limit, passed = np.random.default_rng(6), 0.1, 0
    for _ in range(200):
        a, b = ([capture(STEP_NS * chance.lognormal(0, 0.01, 4)) for _ in range(4)] for _ in "ab")
        found = compared(a, b, MEASURED)
        passed += surely_within(found, limit) == (found["seen_frac"] <= limit)
    assert passed >= 198


# --- what would be seen ----------------------------------------------------------------------------------------------


@pytest.mark.quick_cases("(3, 3)", "(1, 5)")
@pytest.mark.parametrize("counts", [(3, 3), (5, 5), (1, 5), (20, 20), (40, 40)], ids=str)
def test_what_is_said_to_be_seen_is_significant_nine_times_in_ten(counts):
    """Of many captures the difference must exceed their spread besides, which is the greater demand."""
    chance, found = np.random.default_rng(7), 0
    sides = np.exp(chance.normal(0, 0.03, (200, sum(counts))))
    for one in sides:
        a, b = ([capture(STEP_NS * np.full(4, v)) for v in side] for side in np.split(one, counts[:1]))
        seen = compared(a, b, MEASURED)["seen_frac"]
        slower = [capture(step.values * (1 + seen)) for step in b]
        found += row(a, slower)["significant"]
    assert 0.84 <= found / 200 <= 0.97
