"""Test whether two sides differ, each a few captures of many steps.

Steps of one capture are not independent: they drift together with whatever else the machine does, so a test that treats
them as independent finds differences between equal captures. Captures are independent. If one side has several, they
are compared by Student's test. If neither has, other captures of the same program on the same machine say how much two
differ (`SpreadOfRuns`). Without those, that is assumed, and each capture is cut into blocks and considered as uncertain
as one block: what drifts from block to block drifts at least as much from capture to capture.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ..core.student import student_p_value, student_quantile
from .step_values import Values, midmean

LEVEL = 0.01
POWER = 0.9
"""How often a change is seen that is called large enough to be seen."""
_NORMAL_POWER = NormalDist().inv_cdf(POWER)
_MOST_BLOCKS = 5
_LEAST_BLOCK = 2
STEPS_NEEDED = 2
"""Steps that a capture must have to be compared with one other capture."""
STEPS_PREFERRED = 2 * _LEAST_BLOCK
"""Steps from which on they say more than those of a source that is better, but has fewer."""


class SpreadOfRuns(NamedTuple):
    """By how much runs of one configuration differ, as a standard deviation; assumed where `freedom` is 0.

    `error` is the standard error that the steps of those runs gave each of them, which is a part of the deviation.
    """

    deviation: float
    freedom: int = 0
    error: float = 0.0


class Error(NamedTuple):
    """A standard error, and with how many degrees of freedom it is known."""

    size: float
    freedom: int


class Shift(NamedTuple):
    """How much larger the second side is: 99 % interval, p-value of no difference, and detectable sizes.

    A true shift of `seen` has a p-value of at most `LEVEL` in nine of ten such comparisons. The true shift is at most
    `most` in nine of ten.
    """

    middle: float
    low: float
    high: float
    p_value: float
    seen: float
    most: float


def between_captures(a: Values, b: Values, runs: SpreadOfRuns, same: Sequence[Error] = ()) -> Shift | None:
    """Shift of the mean from `a` to `b`, a value per run: Student's test with pooled variance.

    Both sides are assumed to spread alike, so one of them may have a single run. None if both have only one, and
    nothing else is known. What is known of other runs counts as more of these. A spread that is only assumed takes the
    place of the measured one where that is smaller, but rests on so few runs that it says less. `same` are errors that
    all captures of a side share, which their spread does not show.
    Source: Student, The Probable Error of a Mean, Biometrika 6 (1908); pooled as in any textbook.
    """
    measured = len(a) + len(b) - 2
    if measured < 1 or not len(a) or not len(b):
        return None
    spread, middle = pooled_spread(a, b), float(b.mean() - a.mean())
    of_means = math.sqrt(1 / len(a) + 1 / len(b))
    freedom = measured + runs.freedom
    if runs.freedom:
        spread = math.sqrt((measured * spread**2 + runs.freedom * runs.deviation**2) / freedom)
    by_spread = _by_errors(middle, [Error(spread * of_means, freedom), *same])
    if runs.freedom or spread > runs.deviation:
        return by_spread
    assumed = _by_errors(middle, [Error(0.0, freedom), *same], runs.deviation * of_means)
    return min(by_spread, assumed, key=lambda each: each.high - each.low)


def between_cycles(a: Values, b: Values, runs: SpreadOfRuns) -> Shift | None:
    """Shift of the mean from `a` to `b`, a value per cycle of one run each; None if both have only one."""
    freedom = len(a) + len(b) - 2
    if freedom < 1 or not len(a) or not len(b):
        return None
    spread, middle = pooled_spread(a, b), float(b.mean() - a.mean())
    if runs.freedom:
        return _beyond_runs(middle, [Error(spread / math.sqrt(len(side)), freedom) for side in (a, b)], runs)
    error = spread * math.sqrt(1 / len(a) + 1 / len(b))
    return _shift(middle, error, freedom, runs.deviation * math.sqrt(2))


def between_two(a: Values, b: Values, runs: SpreadOfRuns) -> Shift | None:
    """Shift of the midmean from `a` to `b`, steps of one capture each; None if either has too few."""
    if min(len(a), len(b)) < STEPS_NEEDED:
        return None
    blocks, middle = (block_medians(a), block_medians(b)), midmean(b) - midmean(a)
    if runs.freedom:
        return _beyond_runs(middle, [error_of_steps(side) for side in (a, b)], runs)
    freedom = sum(map(len, blocks)) - 2
    return _shift(middle, pooled_spread(*blocks) * math.sqrt(2), freedom, runs.deviation * math.sqrt(2))


def between_pairs(a: Values, b: Values, runs: SpreadOfRuns) -> Shift:
    """Shift of the mean between at least four paired steps: the n-th of `a` did the same work as that of `b`."""
    blocks, middle = block_medians(b - a), midmean(b - a)
    if runs.freedom:
        size, freedom = error_of_steps(b - a)
        return _beyond_runs(middle, [Error(size / math.sqrt(2), freedom)] * 2, runs)
    return _shift(middle, pooled_spread(blocks), len(blocks) - 1, runs.deviation * math.sqrt(2))


def captures_needed(change: float, spread: float, most: int) -> int | None:
    """Captures of each of two sides that show this change in nine of ten comparisons; None if more than `most`."""
    for count in range(2, most + 1):
        freedom = 2 * count - 2
        if _seen(student_quantile(freedom, LEVEL), freedom) * spread * math.sqrt(2 / count) <= abs(change):
            return count
    return None


def error_of_steps(steps: Values) -> Error:
    """Error of the midmean of these steps, by how much blocks of them differ."""
    blocks = block_medians(steps)
    return Error(pooled_spread(blocks) / math.sqrt(len(blocks)), len(blocks) - 1)


def _beyond_runs(middle: float, errors: Sequence[Error], runs: SpreadOfRuns) -> Shift:
    """The shift between two captures whose steps say how far off each is.

    What steps do to a capture is in the known spread already. Where these steps are fewer or less steady than those of
    the known captures, what exceeds that comes on top.
    """
    more = [Error(math.sqrt(max(size**2 - runs.error**2, 0.0)), freedom) for size, freedom in errors]
    return _by_errors(middle, [Error(math.sqrt(2) * runs.deviation, runs.freedom), *more])


def _by_errors(middle: float, errors: Sequence[Error], least: float = 0.0) -> Shift:
    """The shift where independent errors add up; degrees of freedom are Satterthwaite's. `least`: see `_shift`.

    Source: Satterthwaite, An Approximate Distribution of Estimates of Variance Components, Biometrics 2 (1946).
    """
    whole = sum(size**2 for size, _ in errors)
    squares = sum(size**4 / freedom for size, freedom in errors if size)
    freedom = max(math.floor(whole**2 / squares + 1e-9), 1) if squares else max(errors[0].freedom, 1)
    return _shift(middle, math.sqrt(whole), freedom, least)


def block_medians(steps: Values) -> Values:
    """Medians of up to five blocks of consecutive steps, of nearly equal length, at least two steps each.

    Of fewer than four steps, each is a block.
    """
    return np.array([np.median(block) for block in np.array_split(steps, blocks_of(len(steps))) if len(block)])


def blocks_of(steps: int) -> int:
    """The number of blocks that this number of steps is cut into."""
    return max(steps if steps < 2 * _LEAST_BLOCK else min(_MOST_BLOCKS, steps // _LEAST_BLOCK), 1)


def pooled_spread(*samples: Values) -> float:
    """Standard deviation within the samples around their own means; 0 if none has two values."""
    freedom = sum(max(len(sample) - 1, 0) for sample in samples)
    squares = sum(float(((sample - sample.mean()) ** 2).sum()) for sample in samples if len(sample))
    return math.sqrt(squares / freedom) if freedom else 0.0


def corrected(p_values: Sequence[float]) -> list[float]:
    """Holm's p-values: if nothing differs, the probability that any of them is at most p is at most p.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scand. J. Stat. 6 (1979), 65.
    """
    result = [0.0] * len(p_values)
    reached = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        reached = max(reached, min(1.0, (len(p_values) - place) * p_values[index]))
        result[index] = reached
    return result


def _shift(difference: float, error: float, freedom: int, least: float) -> Shift:
    """The shift for a difference with this standard error and `freedom` degrees of freedom.

    `least` is another standard error of it besides, which was not measured: the half-widths of both add up as
    independent errors do.
    """
    student, normal = student_quantile(freedom, LEVEL), NormalDist().inv_cdf(1 - LEVEL / 2)
    half = math.hypot(student * error, normal * least)
    seen = math.hypot(_seen(student, freedom) * error, (normal + _NORMAL_POWER) * least)
    most = difference + math.hypot(student_quantile(freedom, 2 * (1 - POWER)) * error, _NORMAL_POWER * least)
    p_value = _p_value(abs(difference), error, freedom, least)
    return Shift(difference, difference - half, difference + half, p_value, seen, most)


def _p_value(difference: float, error: float, freedom: int, least: float) -> float:
    """The level whose interval in `_shift` ends at 0."""
    if not error:
        return math.erfc(_ratio(difference, least) / math.sqrt(2))
    low, high = 0.0, difference / error
    for _ in range(60 if least else 0):
        t = (low + high) / 2
        z = -NormalDist().inv_cdf(max(student_p_value(t, freedom), sys.float_info.min) / 2)
        low, high = (low, t) if math.hypot(t * error, z * least) > difference else (t, high)
    return student_p_value(high, freedom)


def _seen(limit: float, freedom: int) -> float:
    """The true t that exceeds the limit with a probability of `POWER`.

    Source: the normal approximation of the noncentral t, Abramowitz and Stegun 26.7.10 (as above).
    """
    return limit * (1 - 1 / (4 * freedom)) + _NORMAL_POWER * math.sqrt(1 + limit**2 / (2 * freedom))


def _ratio(difference: float, error: float) -> float:
    """The difference in units of its error: 0 / 0 is 0, any other difference without error infinite."""
    return difference / error if error else math.inf if difference else 0.0
