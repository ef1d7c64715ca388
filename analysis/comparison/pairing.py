"""Pair steps by number, where each number does the same work in every capture, as with seeded data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from ..core.student import PAIRS_NEEDED
from .step_values import Capture, Values, midmean

# Two captures of ten steps without anything in common come below this once in 400 times (simulated).
_SAME_WORK_FRAC = 0.25


def shared_steps(captures: Sequence[Capture]) -> NDArray[np.int64]:
    """Numbers of the steps that all captures have."""
    return reduce(np.intersect1d, (capture.steps for capture in captures))


def paired(a: Sequence[Capture], b: Sequence[Capture]) -> tuple[list[Values], list[Values]] | None:
    """Steps that all captures have, without the effect of the step's number; None if steps do not pair.

    They pair if, once each capture is taken relative to its midmean, most of the variance goes with the number.
    """
    captures = [*a, *b]
    shared = shared_steps(captures)
    if len(captures) < 2 or len(shared) < PAIRS_NEEDED:
        return None
    steps = np.array([capture.only(shared).values for capture in captures])
    alone = steps - np.array([[midmean(each)] for each in steps])
    by_number = alone.mean(axis=0)
    left = float(((alone - by_number) ** 2).sum()) * len(captures) / (len(captures) - 1)
    if left >= _SAME_WORK_FRAC * float(((alone - alone.mean()) ** 2).sum()):
        return None
    without = list(steps - (by_number - midmean(by_number)))
    return without[: len(a)], without[len(a) :]
