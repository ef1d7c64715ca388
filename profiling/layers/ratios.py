"""How much longer the passes of one model take than those of another. Knows no torch."""

import statistics
from collections.abc import Sequence
from math import comb

from ...contract.single import TimeRatio

_COVERED = 0.95


def time_ratio(passes: str, first_ns: Sequence[int], second_ns: Sequence[int]) -> TimeRatio:
    """The median of second / first over pairs that ran one right after the other, with its interval.

    The interval assumes no distribution, so that a pair that something else disturbed does not widen it: of n ratios in
    order, the k-th from below and from above have the true median between them unless k - 1 or fewer of them lie on one
    side of it, which has the chance 2 (C(n, 0) + ... + C(n, k - 1)) / 2^n. Below 6 pairs there is none of 95 %.

    Source: the sign test; H. A. David and H. N. Nagaraja, Order Statistics, section 7.1.
    """
    ratios = sorted(second / first for first, second in zip(first_ns, second_ns, strict=True))
    count, place = len(ratios), 0
    while 1 - 2 * sum(comb(count, below) for below in range(place + 1)) / 2**count >= _COVERED:
        place += 1
    low, high = (ratios[place - 1], ratios[count - place]) if place else (None, None)
    return TimeRatio(passes=passes, pairs=count, ratio=statistics.median(ratios), low=low, high=high)
