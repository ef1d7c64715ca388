"""Assign slices to lanes so that none overlap."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from ..core.intervals import Times

_Numbers = NDArray[np.int64]


def lanes(start_ns: Times, end_ns: Times) -> _Numbers:
    """Lane of each slice from 0, as few as possible; all of shape (n,), starts ascending.

    On a lane every slice begins when the one before it has ended, or later. A slice takes the lowest free lane.
    """
    numbers = np.zeros(len(start_ns), dtype=np.int64)
    if len(start_ns) < 2:
        return numbers
    begins = np.flatnonzero(start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1]) + 1
    bounds = np.concatenate(([0], begins, [len(start_ns)]))
    for bunch in np.flatnonzero(np.diff(bounds) > 1).tolist():
        these = slice(int(bounds[bunch]), int(bounds[bunch + 1]))
        numbers[these] = _shared(start_ns[these].tolist(), end_ns[these].tolist())
    return numbers


def _shared(starts: list[int], ends: list[int]) -> list[int]:
    """Lanes of slices that all hang together."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes_of_slices = []
    for start, end in zip(starts, ends, strict=True):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        lane = heappop(free) if free else len(busy)
        heappush(busy, (end, lane))
        lanes_of_slices.append(lane)
    return lanes_of_slices


def nesting_lanes(start_ns: Times, end_ns: Times) -> _Numbers:
    """Lane of each slice from 0; on a lane, slices lie within each other or do not overlap. All of shape (n,).

    Starts ascend, and of slices that start together the longest comes first. A slice takes the lowest lane it fits on.
    """
    numbers = []
    around: list[list[int]] = []
    for start, end in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
        lane = 0
        while lane < len(around) and not _fits(around[lane], start, end):
            lane += 1
        if lane == len(around):
            around.append([])
        around[lane].append(end)
        numbers.append(lane)
    return np.array(numbers, dtype=np.int64)


def _fits(ends: list[int], start: int, end: int) -> bool:
    """Whether a slice fits into those of a lane that still run, the innermost last. Drops those that have ended."""
    while ends and ends[-1] <= start:
        ends.pop()
    return not ends or ends[-1] >= end


def outermost(start_ns: Times, end_ns: Times) -> int:
    """Number of slices not nested in another; sorted, nested or disjoint slices."""
    return int((start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1]).sum()) + min(len(start_ns), 1)


def event_order(start_ns: Times, end_ns: Times) -> tuple[_Numbers, _Numbers]:
    """Places of the begin and end of each slice among all 2n events, by time; all of shape (n,).

    Slices nest or do not overlap, and stand in order: by start, of those that start together the longest first. What
    ends at the moment at which another begins comes before it, and what lies within another ends before that does.
    """
    count = len(start_ns)
    number = np.arange(count)
    if (start_ns[1:] >= end_ns[:-1]).all():
        return 2 * number, 2 * number + 1
    begun = np.maximum(np.searchsorted(start_ns, end_ns, side="left"), number + 1)
    order = np.lexsort((-number, begun))
    rank = np.empty(count, dtype=np.int64)
    rank[order] = number
    ended = np.concatenate(([0], np.cumsum(np.bincount(begun, minlength=count + 1))))
    return number + ended[number + 1], begun + rank
