"""Test whether two sides differ, each a few captures of many steps.

Steps of one capture are not independent: they drift together with whatever else the machine does, so a test that treats
them as independent finds differences between equal captures. Captures are independent. If one side has several, they
are compared by Student's test; if neither has, each capture is cut into blocks, and is considered as uncertain as one
block: what drifts from block to block drifts at least as much from capture to capture.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from .step_values import Values

LEVEL = 0.01
POWER = 0.9
"""How often a change is seen that is called large enough to be seen."""
_NORMAL_POWER = NormalDist().inv_cdf(POWER)
_MOST_BLOCKS = 5
_LEAST_BLOCK = 2
STEPS_NEEDED = 2 * _LEAST_BLOCK
"""Steps that a capture must have to be compared with one other capture."""


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


def between_captures(a: Values, b: Values, assumed: float = 0.0) -> Shift | None:
    """Shift of the mean from `a` to `b`, a value per capture: Student's test with pooled variance.

    Both sides are assumed to spread alike, so one of them may have a single capture. None if both have only one.
    `assumed`: see `_shift`.
    Source: Student, The Probable Error of a Mean, Biometrika 6 (1908); pooled as in any textbook.
    """
    freedom = len(a) + len(b) - 2
    if freedom < 1 or not len(a) or not len(b):
        return None
    error = pooled_spread(a, b) * math.sqrt(1 / len(a) + 1 / len(b))
    return _shift(float(b.mean() - a.mean()), error, freedom, assumed)


def between_two(a: Values, b: Values, assumed: float) -> Shift | None:
    """Shift of the median from `a` to `b`, steps of one capture each; None if either has too few.

    Each capture may be off by as much as its blocks differ from each other. `assumed`: see `_shift`.
    """
    if min(len(a), len(b)) < STEPS_NEEDED:
        return None
    blocks = block_medians(a), block_medians(b)
    error = pooled_spread(*blocks) * math.sqrt(2)
    freedom = sum(map(len, blocks)) - 2
    return _shift(float(np.median(b) - np.median(a)), error, freedom, assumed)


def between_pairs(a: Values, b: Values, assumed: float) -> Shift:
    """Shift of the mean between at least four paired steps: the n-th of `a` did the same work as that of `b`."""
    blocks = block_medians(b - a)
    return _shift(float(np.median(b - a)), pooled_spread(blocks), len(blocks) - 1, assumed)


def block_medians(steps: Values) -> Values:
    """Medians of up to five blocks of consecutive steps, of nearly equal length, at least two steps each."""
    count = max(1, min(_MOST_BLOCKS, len(steps) // _LEAST_BLOCK))
    return np.array([np.median(block) for block in np.array_split(steps, count) if len(block)])


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


def student_p_value(t: float, freedom: int) -> float:
    """Probability that Student's t is at least this far from 0.

    Source: Abramowitz, Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    if math.isinf(t):
        return 0.0
    angle = math.atan(abs(t) / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    term, series = 1.0, 1.0
    for k in range(2 + freedom % 2, freedom - 1, 2):
        term *= square * (k - 1) / k
        series += term
    if freedom % 2 == 0:
        return max(0.0, 1 - math.sin(angle) * series)
    more = math.sin(angle) * math.cos(angle) * series if freedom > 1 else 0.0
    return max(0.0, 1 - 2 / math.pi * (angle + more))


@cache
def student_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t whose `student_p_value` is the level."""
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p_value(middle, freedom) > level else (low, middle)
    return high


def _shift(difference: float, error: float, freedom: int, assumed: float) -> Shift:
    """The shift for a difference with this standard error and `freedom` degrees of freedom.

    The captures of each side are assumed to spread by at least `assumed` besides, a standard deviation that was not
    measured: the half-widths of both add up as independent errors do.
    """
    least = assumed * math.sqrt(2)
    student, normal = student_quantile(freedom), NormalDist().inv_cdf(1 - LEVEL / 2)
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
