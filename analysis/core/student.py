"""Student's t: how far a mean of a few values is from 0 by chance."""

from __future__ import annotations

import math
from functools import cache

PAIRS_NEEDED = 6
"""Steps in common: of fewer, the differences tell less than the steps themselves."""


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
def student_quantile(freedom: int, level: float) -> float:
    """The t whose `student_p_value` is the level."""
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p_value(middle, freedom) > level else (low, middle)
    return high
