"""Medians of many groups at once, how far they can be trusted, and lines through medians."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.arrays import Floats, Ints

# The spread of few values is not known: ends of collectives are taken to scatter by 30 us at first.
_ASSUMED_NS = 30_000.0
_OF_NORMAL = 1.4826  # standard deviation / median absolute deviation
_OF_MEDIAN = 1.2533  # standard error of the median / that of the mean
_BINS = 16
LEAST_FOLLOWED = 16
"""With fewer values a drift cannot be distinguished from chance."""
LARGEST_SLOPE = 200e-6
"""Crystals differ by less than that; ends that say more say something else."""
_LEAST_DRIFT_NS = 2_000
_SIGNIFICANT = 5.0


def median(values: Ints | Floats) -> float:
    """The median of some values, of which there is at least one: as `np.median`, but without its checks for NaN.

    Clocks take thousands of medians of few values, of which those checks are most of the time.
    """
    ordered = np.sort(values, axis=None)
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return (float(middle[0]) + float(middle[1])) / 2


def rows_of(number: Ints, count: int) -> list[Ints]:
    """The rows with each number from 0 to `count` - 1, ascending."""
    order = np.argsort(number, kind="stable")
    return np.split(order, np.cumsum(np.bincount(number, minlength=count))[:-1])


def medians(values: Floats, group: Ints, count: int) -> Floats:
    """The median of the values of each group 0 .. `count` - 1, NaN for an empty one. Both arrays have one length."""
    sizes = np.bincount(group, minlength=count)
    if len(values) and sizes.min() == sizes.max():
        # As large as each other, as nearly all collectives are: then rows of a table are sorted, which is faster.
        table = np.sort(values[np.argsort(group, kind="stable")].reshape(count, -1), axis=1)
        return np.asarray((table[:, (sizes[0] - 1) // 2] + table[:, sizes[0] // 2]) / 2)
    ordered = values[np.lexsort((values, group))]
    bounds = np.concatenate(([0], np.cumsum(sizes)))
    middle = np.full(count, np.nan)
    filled = sizes > 0
    low = bounds[:-1][filled] + (sizes[filled] - 1) // 2
    high = bounds[:-1][filled] + sizes[filled] // 2
    middle[filled] = (ordered[low] + ordered[high]) / 2
    return middle


class Centres(NamedTuple):
    """The median of each group, its standard error, and the number of values; all of shape (groups,)."""

    centre: Floats
    error: Floats
    size: Ints


def centres(values: Floats, group: Ints, count: int) -> Centres:
    """Medians of the groups 0 .. `count` - 1 with their standard errors, both NaN for an empty group."""
    centre = medians(values, group, count)
    away = np.abs(values - centre[group])
    spread = _OF_NORMAL * medians(away, group, count)
    size = np.bincount(group, minlength=count)
    # The spread of few values says little; that of all groups together says more.
    at_least = np.fmax(_ASSUMED_NS / np.maximum(size, 1), _OF_NORMAL * median(away) if len(away) else 0.0)
    error = _OF_MEDIAN * np.fmax(spread, at_least) / np.sqrt(np.maximum(size, 1)) * (1 + 2 / np.maximum(size, 1))
    return Centres(centre, np.where(size > 0, error, np.nan), size)


class Trend(NamedTuple):
    """A line through differences over time: its level at the origin in ns, its slope, and how wrong that may be.

    `slope_error` is five standard errors, `span_ns` the time that the differences span.
    """

    level_ns: float
    slope: float
    slope_error: float
    span_ns: float

    @property
    def significant(self) -> bool:
        """Whether the slope is more than chance."""
        return abs(self.slope) * self.span_ns >= _LEAST_DRIFT_NS and abs(self.slope) >= self.slope_error

    @property
    def drifts(self) -> bool:
        """Whether the slope is more than chance, and one that a clock may have."""
        return self.significant and abs(self.slope) <= LARGEST_SLOPE


def trend(since_ns: Ints, apart_ns: Floats) -> Trend | None:
    """The line that the differences follow; None if they are too few, or all at one time.

    `since_ns` is the time of each difference since the origin. The line goes through medians of bins, so that single
    late ends do not count.
    """
    if len(since_ns) < LEAST_FOLLOWED or not np.ptp(since_ns):
        return None
    bins = min(_BINS, len(since_ns) // 2)
    number = np.empty(len(since_ns), dtype=np.int64)
    number[np.argsort(since_ns, kind="stable")] = np.arange(len(since_ns)) * bins // len(since_ns)
    at, middle = _medians(since_ns, number), _medians(apart_ns, number)
    centre = at.mean()
    # Least squares: about their mean time, level and slope do not depend on each other.
    away = at - centre
    spread, level = float(away @ away), float(middle.mean())
    slope = float(away @ middle) / spread
    left = middle - level - slope * away
    error = np.sqrt(float(left @ left) / (bins - 2) / spread)
    return Trend(float(level - slope * centre), slope, _SIGNIFICANT * float(error), float(np.ptp(since_ns)))


def _medians(values: Ints | Floats, number: Ints) -> Floats:
    """The median of the values of each number, from 0; every number has some."""
    ordered = values[np.lexsort((values, number))]
    bounds = np.concatenate(([0], np.cumsum(np.bincount(number))))
    low, high = bounds[:-1] + (np.diff(bounds) - 1) // 2, bounds[:-1] + np.diff(bounds) // 2
    result: Floats = (ordered[low].astype(np.float64) + ordered[high]) / 2
    return result
