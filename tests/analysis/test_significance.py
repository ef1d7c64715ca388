"""Student's test against tables and quadrature; false alarms and power on captures whose steps drift."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace.analysis.comparison.differences import Allowance, compared, judged
from commtrace.analysis.comparison.pairing import paired
from commtrace.analysis.comparison.significance import (
    LEVEL,
    STEPS_NEEDED,
    SpreadOfRuns,
    between_captures,
    between_pairs,
    between_two,
    block_medians,
    corrected,
    pooled_spread,
)
from commtrace.analysis.comparison.step_values import Capture

PAIRS = 400
STEP_NS = 100e6
NOTHING = SpreadOfRuns(math.inf)
"""Of how much runs differ, nothing is known but what they show."""
ALIKE = SpreadOfRuns(0.0)


def captures(seed: int, count: int, steps: int, *, drift: float, memory: float, offset: float) -> np.ndarray:
    """Step times of `count` captures, one per row: an offset of each, an AR(1) drift, and slow steps; all relative."""
    chance = np.random.default_rng(seed)
    level = np.empty((count, steps))
    level[:, 0] = chance.normal(scale=drift, size=count)
    for step in range(1, steps):
        level[:, step] = memory * level[:, step - 1] + chance.normal(scale=drift * math.sqrt(1 - memory**2), size=count)
    slow = np.abs(chance.normal(scale=0.05, size=(count, steps)))
    return STEP_NS * (1 + chance.normal(scale=offset, size=(count, 1))) * (1 + level + slow)


# --- false alarms and power ------------------------------------------------------------------------------------------

# Steps, and how they drift: quickly, as slowly as a capture is long, and as a busy machine does.
DRIFTS = [
    pytest.param(12, {"drift": 0.05, "memory": 0.5, "offset": 0.05}, id="quick"),
    pytest.param(12, {"drift": 0.10, "memory": 0.9, "offset": 0.05}, id="slow"),
    pytest.param(40, {"drift": 0.10, "memory": 0.98, "offset": 0.05}, id="as long as a capture"),
    pytest.param(40, {"drift": 0.30, "memory": 0.9, "offset": 0.10}, id="busy"),
]


def alarms_alone(steps: int, how: dict[str, float], factor: float) -> float:
    """How often one capture each of two configurations, the second `factor` times as slow, are told apart."""
    found = 0
    for a, b in zip(captures(1, PAIRS, steps, **how), factor * captures(2, PAIRS, steps, **how), strict=True):
        shift = between_two(a, b, SpreadOfRuns(0.1 * max(np.median(a), np.median(b))))
        found += shift is not None and shift.p_value <= LEVEL
    return found / PAIRS


def alarms_together(count_a: int, count_b: int, steps: int, how: dict[str, float], factor: float) -> float:
    """The same of several captures."""
    of_a, of_b = (
        np.median(captures(seed, PAIRS * count, steps, **how), axis=1).reshape(PAIRS, count)
        for seed, count in ((3, count_a), (4, count_b))
    )
    found = 0
    for a, b in zip(of_a, factor * of_b, strict=True):
        shift = between_captures(a, b, NOTHING)
        found += shift is not None and shift.p_value <= LEVEL
    return found / PAIRS


@pytest.mark.parametrize(("steps", "how"), DRIFTS)
def test_single_captures_of_one_configuration_hardly_ever_differ(steps, how):
    assert alarms_alone(steps, how, 1.0) <= 0.05


@pytest.mark.parametrize(("steps", "how"), DRIFTS)
@pytest.mark.parametrize("counts", [(3, 3), (5, 5), (4, 1)], ids=str)
def test_several_captures_of_one_configuration_hardly_ever_differ(counts, steps, how):
    assert alarms_together(*counts, steps, how, 1.0) <= 0.03


@pytest.mark.quick_cases("6")
@pytest.mark.parametrize("steps", [6, 12])
def test_what_a_capture_shows_adds_to_what_it_does_not(steps):
    """Runs that spread as assumed, of steps that do, too: by neither alone are such captures told apart too often."""
    how, found = {"drift": 0.05, "memory": 0.0, "offset": 0.1}, 0
    pairs = zip(*(np.log(captures(seed, 2000, steps, **how)) for seed in (5, 6)), strict=True)
    for a, b in pairs:
        found += between_two(a, b, SpreadOfRuns(0.1)).p_value <= LEVEL
    assert found / 2000 <= 0.01


def test_steps_taken_as_independent_would_differ_often():
    """Why it is done so: the test of Welch on the steps of two equal captures."""
    steps, how = 40, {"drift": 0.10, "memory": 0.98, "offset": 0.05}
    far = 0
    for a, b in zip(captures(1, PAIRS, steps, **how), captures(2, PAIRS, steps, **how), strict=True):
        error = math.sqrt(a.var(ddof=1) / steps + b.var(ddof=1) / steps)
        far += abs(b.mean() - a.mean()) > 2.7 * error
    assert far / PAIRS > 0.5


@pytest.mark.parametrize(("steps", "how"), DRIFTS[:3])
def test_a_large_difference_is_seen_by_one_capture_each(steps, how):
    assert alarms_alone(steps, how, 3.0) >= 0.95


def test_a_smaller_difference_is_seen_by_several_captures():
    steps, how = DRIFTS[1].values
    assert alarms_together(5, 5, steps, how, 1.5) >= 0.95
    assert alarms_alone(steps, how, 1.2) <= 0.05


@pytest.mark.parametrize("count", [3, 5, 10])
def test_a_change_that_is_called_large_enough_is_seen_nine_times_in_ten(count):
    """The average of what single comparisons call so; each knows the spread from its few captures only."""
    spread, chance = 0.03, np.random.default_rng(count)
    pairs = chance.normal(scale=spread, size=(PAIRS, 2, count))
    seen = float(np.mean([between_captures(a, b, NOTHING).seen for a, b in pairs]))
    found = np.mean([between_captures(a, b + seen, NOTHING).p_value <= LEVEL for a, b in pairs])
    assert 0.85 <= found <= 0.99


# --- steps that pair -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_captures_of_other_steps_than_those_of_the_other_side_differ_by_these_too():
    """Data that are the same in every capture of a side, but others on the other side, are no change."""
    alarms = found = 0
    for seed in range(200):
        a, b = (work(2 * seed + side, 3, 10, alike=True) for side in (0, 1))
        b = [Capture(one.steps + 100, one.values) for one in b]
        level = Allowance(NOTHING, separate=True, part=1.0)  # values are logarithms already
        alarms += judged([compared(a, b, level)])[0]["significant"]
        b = [Capture(one.steps, one.values + 3) for one in b]
        found += judged([compared(a, b, level)])[0]["significant"]
    assert alarms <= 6
    assert found >= 190


@pytest.mark.slow
def test_data_that_are_the_same_in_the_captures_of_one_side_only_are_no_change():
    """One side was seeded, the other was not, and both have steps of the same numbers."""
    alarms = 0
    for seed in range(400):
        a, b = (work(2 * seed + side, 3, 10, alike=bool(side)) for side in (0, 1))
        alarms += judged([compared(a, b, Allowance(NOTHING, separate=True, part=1.0))])[0]["significant"]
    assert alarms <= 12


@pytest.mark.parametrize(("runs", "spreads"), [(3, 21.5), (6, 8.4), (12, 6.5), (50, 5.6)])
def test_what_a_history_shows_nine_times_in_ten(runs, spreads):
    """The table of docs/metrics/comparison.md: with so many runs, a change of so many times their spread."""
    steady, chance = np.zeros(8), np.random.default_rng(runs)
    assert between_two(steady, steady, SpreadOfRuns(1.0, runs - 1)).seen == pytest.approx(spreads, abs=0.05)
    found = 0
    for known in chance.normal(size=(1000, runs + 2)):
        a, b = known[0], known[1] + spreads
        shift = between_two(steady + a, steady + b, SpreadOfRuns(pooled_spread(known[2:]), runs - 1))
        found += shift.p_value <= LEVEL
    assert found / 1000 == pytest.approx(0.9, abs=0.03)


def steps_of(values: np.ndarray) -> Capture:
    return Capture(np.arange(len(values)), values)


def work(seed: int, count: int, steps: int, *, alike: bool) -> list[Capture]:
    """Logarithms of captures whose steps differ by 30 % because of their data, the same data in all if `alike`."""
    chance = np.random.default_rng(seed)
    own = chance.normal(scale=0.3, size=(1 if alike else count, steps))
    return [steps_of(values) for values in own + chance.normal(scale=0.01, size=(count, steps))]


def test_steps_pair_only_where_their_number_explains_them():
    assert all(paired(*[[one] for one in work(seed, 2, 10, alike=True)]) for seed in range(100))
    assert sum(paired(*[[one] for one in work(seed, 2, 10, alike=False)]) is not None for seed in range(400)) <= 4
    of_a, of_b = work(0, 2, 10, alike=True)
    assert paired([of_a], [Capture(of_b.steps + 100, of_b.values)]) is None
    assert paired([of_a], []) is None


def test_paired_steps_show_a_change_that_their_work_hides():
    alone = together = 0
    for seed in range(100):
        a, b = work(seed, 2, 20, alike=True)
        b = Capture(b.steps, b.values + 0.05)
        (of_a,), (of_b,) = paired([a], [b]) or ([], [])
        alone += between_two(a.values, b.values, ALIKE).p_value <= LEVEL
        together += between_pairs(of_a, of_b, ALIKE).p_value <= LEVEL
    assert (alone, together) == (pytest.approx(0, abs=2), pytest.approx(100, abs=10))


def test_pairing_makes_no_false_alarms():
    alarms = 0
    for seed in range(PAIRS):
        captures_alike = work(seed, 6, 12, alike=True)
        of_a, of_b = paired(captures_alike[:3], captures_alike[3:])
        medians = [np.array([np.median(values) for values in side]) for side in (of_a, of_b)]
        alarms += between_captures(*medians, NOTHING).p_value <= LEVEL
    assert alarms / PAIRS <= 0.02


# --- the parts -------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    st.lists(st.integers(0, 1000), min_size=2, max_size=6),
    st.integers(0, 50),
)
def test_the_sides_can_be_turned_and_the_interval_goes_with_the_test(a, b, assumed):
    one, other = (
        between_captures(np.array(x, float), np.array(y, float), SpreadOfRuns(assumed)) for x, y in ((a, b), (b, a))
    )
    assert (one.low, one.middle, one.high) == pytest.approx((-other.high, -other.middle, -other.low))
    assert one[3:5] == pytest.approx(other[3:5])
    if abs(one.p_value - LEVEL) > 1e-9:
        assert (one.p_value <= LEVEL) == (one.low > 0 or one.high < 0)


def test_nothing_can_be_told_of_too_little():
    one = np.array([5.0])
    assert between_captures(one, one, NOTHING) is None
    assert between_captures(np.array([]), np.array([1.0, 2.0]), NOTHING) is None
    assert between_two(np.arange(STEPS_NEEDED - 1.0), np.arange(50.0), SpreadOfRuns(1.0)) is None
    assert between_two(np.arange(STEPS_NEEDED * 1.0), np.arange(50.0), SpreadOfRuns(1.0)) is not None


def test_what_does_not_spread_differs_by_anything():
    same, more = np.full(8, 7.0), np.full(8, 8.0)
    assert between_two(same, same, ALIKE) == (0, 0, 0, 1, 0, 0)
    assert between_two(same, more, ALIKE) == (1, 1, 1, 0, 0, 1)
    # Unless runs are taken to spread: 2.576 x sqrt(2) x 0.3 = 1.09 > 1.
    _, low, high, p_value, seen, _ = between_two(same, more, SpreadOfRuns(0.3))
    assert (low, high) == pytest.approx((1 - 1.0928, 1 + 1.0928), abs=1e-3)
    assert p_value > LEVEL
    assert seen == pytest.approx((2.5758 + 1.2816) * math.sqrt(2) * 0.3, abs=1e-3)


def test_blocks_are_consecutive_and_bear_a_slow_step():
    assert block_medians(np.arange(4.0)).tolist() == [0.5, 2.5]
    assert len(block_medians(np.arange(9.0))) == 4
    assert block_medians(np.array([1, 1, 99, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5.0])).tolist() == [1, 2, 3, 4, 5]
    assert block_medians(np.array([3.0])).tolist() == [3]


def test_the_pooled_spread_is_that_within_the_samples():
    assert pooled_spread(np.array([1.0, 3.0]), np.array([10.0, 12.0])) == pytest.approx(math.sqrt(2))
    assert pooled_spread(np.array([1.0, 3.0]), np.array([100.0])) == pytest.approx(math.sqrt(2))
    assert pooled_spread(np.array([1.0]), np.array([100.0])) == 0


def test_holm():
    # Worked by hand: 4 x 0.005, 3 x 0.01, 2 x 0.03, and what is larger than its successor holds it up.
    assert corrected([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert corrected([0.9, 0.8]) == [1.0, 1.0]
    assert corrected([]) == []
