"""Exact algebra on sets of time intervals, as pairs of int64 arrays.

A `Spans` is *merged*: half-open intervals [start, end), sorted, disjoint, none empty, none touching.
Every function returns merged spans and expects them, except `union`, which makes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from .frames import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Times: TypeAlias = "NDArray[np.int64]"

_MIN, _MAX = -(1 << 63), (1 << 63) - 1


class Spans(NamedTuple):
    """Intervals [starts[i], ends[i]), int64 nanoseconds, both of shape (n,)."""

    starts: Times
    ends: Times


def spans(starts: Times, ends: Times) -> Spans:
    """Union of intervals that may overlap, touch, be empty, and be in any order."""
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return Spans(starts, ends)
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Spans(starts[first], reach[last])


def union(*sets: Spans) -> Spans:
    """Time covered by at least one of the sets."""
    return spans(np.concatenate([s.starts for s in sets]), np.concatenate([s.ends for s in sets]))


def intersect(a: Spans, b: Spans) -> Spans:
    """Time covered by both."""
    low = np.searchsorted(b.ends, a.starts, side="right")
    high = np.searchsorted(b.starts, a.ends, side="left")
    counts = np.maximum(high - low, 0)
    in_a = np.repeat(np.arange(len(a.starts)), counts)
    # Position in b: the first overlapping one of its a, plus how many of that a came before.
    in_b = np.arange(len(in_a)) - np.repeat(np.cumsum(counts) - counts, counts) + low[in_a]
    return Spans(np.maximum(a.starts[in_a], b.starts[in_b]), np.minimum(a.ends[in_a], b.ends[in_b]))


def complement(a: Spans) -> Spans:
    """All of time outside `a`."""
    bounds = np.array([_MIN], dtype=np.int64), np.array([_MAX], dtype=np.int64)
    return Spans(np.concatenate((bounds[0], a.ends)), np.concatenate((a.starts, bounds[1])))


def subtract(a: Spans, b: Spans) -> Spans:
    """Time covered by `a` and not by `b`."""
    return intersect(a, complement(b))


def clip(a: Spans, start: int, end: int) -> Spans:
    """The part of `a` within [start, end)."""
    if end <= start:
        return Spans(a.starts[:0], a.ends[:0])
    return intersect(a, Spans(np.array([start], dtype=np.int64), np.array([end], dtype=np.int64)))


def last(a: Spans, length: int) -> Spans:
    """The last `length` of `a`; all of it if that is shorter."""
    before = total(a) - length
    behind = np.cumsum(a.ends - a.starts)
    starts = np.maximum(a.starts, a.ends - np.maximum(behind - before, 0))
    return Spans(starts[starts < a.ends], a.ends[starts < a.ends])


def covered(a: Spans, starts: Times, ends: Times) -> Times:
    """How much of each interval [starts[i], ends[i]) is covered by `a`; all of shape (n,)."""
    return _until(a, ends) - _until(a, starts)


def _until(a: Spans, times: Times) -> Times:
    """Length of the part of `a` before each time."""
    if not len(a.starts):
        return np.zeros(len(times), dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(a.ends - a.starts)))
    index = np.searchsorted(a.starts, times, side="right")
    last = np.maximum(index - 1, 0)
    beyond = np.where(index > 0, np.maximum(a.ends[last] - times, 0), 0)
    result: Times = before[index] - beyond
    return result


def total(a: Spans) -> int:
    """Length of `a`, in the unit of its times."""
    return int((a.ends - a.starts).sum())
