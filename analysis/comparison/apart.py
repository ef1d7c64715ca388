"""Runs that stand apart from others of their configuration, and steps that come before a run has warmed up.

Both are named and left out: one cold run among several would widen the spread of all, and hide what changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..core.student import student_p_value
from .significance import pooled_spread
from .step_values import Values

_LEVEL = 0.001
"""How often a run is said to stand apart that does not."""
_LEAST_APART = 0.01
"""Of a step: runs that are this near to each other do not stand apart, however alike all others are."""
_OTHERS = 2
"""Runs that a side must keep: of two that differ, nobody can say which stands apart."""
_MOST_OF_ALL = 3
"""One run in this many may stand apart at most: of more, they are what the others stand apart from."""
_STEADY_STEPS = 4
_WARMING = 6.0
"""Spreads of the other steps by which a first step exceeds their median, if it belongs to the start."""
_LEAST_WARMING = 0.03
"""Of a step: what first steps exceed the others by at least, however steady these are."""


def apart(groups: Sequence[Values]) -> list[tuple[int, int]]:
    """The runs that stand apart from their own group, as numbers of a group and of a run in it.

    `groups` are logarithms of lengths, each of one configuration; all are taken to spread alike. Several may hide each
    other: so the one that is farthest is taken out, again and again, and the last one that stood apart decides.
    Source: Rosner, Percentage Points for a Generalized ESD Many-Outlier Procedure, Technometrics 25 (1983); of several
    groups, with externally studentized residuals in place of his statistic.
    """
    left = [dict(enumerate(map(float, group))) for group in groups]
    count = sum(map(len, left))
    taken: list[tuple[int, int]] = []
    apart_until = 0
    for _ in range(count // _MOST_OF_ALL):
        found = [_residual(left, group, run) for group, runs in enumerate(left) if len(runs) > _OTHERS for run in runs]
        if not found:
            break
        p_value, far, group, run = min(found, key=lambda each: (each[0], -each[1]))
        remaining = sum(map(len, left))
        del left[group][run]
        taken.append((group, run))
        if p_value * remaining <= _LEVEL and far >= _LEAST_APART:
            apart_until = len(taken)
    return taken[:apart_until]


def _residual(groups: Sequence[dict[int, float]], group: int, run: int) -> tuple[float, float, int, int]:
    """The probability that a run is as far from the others of its group by chance, and how far it is."""
    others = [value for other, value in groups[group].items() if other != run]
    samples = [np.array(list(values.values()) if number != group else others) for number, values in enumerate(groups)]
    far = abs(groups[group][run] - float(np.mean(others)))
    freedom = sum(max(len(sample) - 1, 0) for sample in samples)
    error = pooled_spread(*samples) * math.sqrt(1 + 1 / len(others))
    return student_p_value(far / error if error else math.inf if far else 0.0, freedom), far, group, run


def warming_steps(steps: Values) -> int:
    """How many of the first steps take so much longer than all later ones that the run had not warmed up.

    At most half of them; at least four steps are left.
    """
    most = min(len(steps) // 2, len(steps) - _STEADY_STEPS)
    for count in range(most, 0, -1):
        later = steps[count:]
        usual = float(np.median(later))
        spread = max(float(np.median(np.abs(later - usual))) * 1.4826, _LEAST_WARMING / _WARMING * usual)
        limit = max(usual + _WARMING * spread, float(later.max()))
        if float(steps[:count].min()) > limit:
            return count
    return 0
