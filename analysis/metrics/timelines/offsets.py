"""Offset between two clocks, from the calls of process groups with ranks on both.

The right offset is the one at which ends coincide. Where calls repeat, others come near: any other offset that fits a
part of the calls equally well is a rival. Only an offset without rivals is believed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..clocks.ends import COINCIDE_NS
from ..clocks.frame import Flags, Floats, Ints
from ..clocks.medians import trend
from .entries import CALL_KINDS, Entries, missed_by, same_kind_at

# Fewer ends may coincide by chance.
LEAST_COINCIDING = 4
_CHUNK = 48
_CLOSE_NS = 20_000
_CANDIDATES, _CLOSE_CANDIDATES = 12, 40
_FEW = 4_000
_LEAST_SHARE = 0.2
_LEAST_SPREAD_NS = 1_000
_TIGHTER, _TIGHTER_OF_FEW = 2.0, 4.1
_ROUNDS = 6
_MOST_LOST_NATS = 3.0
# Of calls that belong together hardly any miss each other, by more than clocks of GPUs differ from their host's.
_MISSED_NS, _MOST_MISSED = 20_000, 0.1


class Lane(NamedTuple):
    """What two sides show of one process group, each on its own clock."""

    ours: Entries
    theirs: Entries


def offset_at(lanes: Sequence[Lane], compatible: Flags, level_ns: float, origin_ns: int) -> Offset | None:
    """The fit of ends at, or near, a given offset; None if no ends coincide."""
    usable = [lane for ours, theirs in lanes if (lane := _usable_calls(_by_end(ours), _by_end(theirs))) is not None]
    return _fit(usable, compatible, level_ns, origin_ns) if usable else None


class _UsableCalls(NamedTuple):
    """The calls of a lane that say something about clocks, by end, with numbers of their kinds; 0 if any is unknown."""

    ours: Entries
    theirs: Entries
    our_kind: Ints
    their_kind: Ints


class Offset(NamedTuple):
    """Offset of our clock from theirs, level + slope x (t - level - origin), and how well ends coincide at it.

    The origin is a time on their clock. `spread_ns` is the standard deviation of the differences, `unmatched` the
    number of ends without a partner although both show that time. `missed` is the part of the coinciding calls of which
    one had ended before the other began: they cannot be the same. `unique` says that no other offset is nearly as good.
    """

    level_ns: float
    slope: float
    origin_ns: int
    coinciding: int
    unmatched: int
    spread_ns: float
    same_step: float
    missed: float = 0.0
    unique: bool = False

    def ahead(self, times_ns: Ints) -> Ints:
        """How far our clock is ahead when it shows these times, in ns."""
        return _ahead(times_ns, self.level_ns, self.slope, self.origin_ns)


def offset(
    lanes: Sequence[Lane], compatible: Flags, origin_ns: int, expected: tuple[float, float] | None = None
) -> Offset | None:
    """The best offset; None if nothing can be aligned.

    `origin_ns` is a time on their clock. If another witness `expected` an offset, with some uncertainty, only that is
    tried.
    """
    usable = [lane for ours, theirs in lanes if (lane := _usable_calls(_by_end(ours), _by_end(theirs))) is not None]
    tried = _peaks(usable, compatible, COINCIDE_NS, _CANDIDATES)
    if sum(len(lane.ours) + len(lane.theirs) for lane in usable) <= _FEW:
        # In a dense loop the right offset may stand beside one at which more ends come near, but none coincides.
        close = _peaks(usable, compatible, _CLOSE_NS, _CLOSE_CANDIDATES)
        tried += [t for t in close if all(abs(t - known) > _CLOSE_NS for known in tried)]
    if expected is not None:
        tried = [t for t in tried if abs(t - expected[0]) <= expected[1] + COINCIDE_NS] or tried
    offsets = [o for t in tried if (o := _fit(usable, compatible, t, origin_ns)) is not None]
    if not offsets:
        return None
    lost_nats = _lost_nats(offsets)
    best = max(offsets, key=lambda o: (round(o.same_step, 1), _evidence(o, lost_nats)))
    distinct = [o for o in offsets if abs(o.level_ns - best.level_ns) > 2 * COINCIDE_NS]
    enough = best.coinciding >= LEAST_COINCIDING and best.same_step >= 0.5 and best.missed <= _MOST_MISSED
    unique = enough and not any(_rivals(o, best, lost_nats) for o in distinct)
    return best._replace(unique=unique)


def _by_end(entries: Entries) -> Entries:
    """The calls that say something about clocks, by end; on CPUs, calls do not end in the order of issue."""
    telling = np.flatnonzero(entries.synchronising)
    return entries.take(telling[np.argsort(entries.end[telling], kind="stable")])


def _usable_calls(ours: Entries, theirs: Entries) -> _UsableCalls | None:
    if not len(ours) or not len(theirs):
        return None
    columns = [np.concatenate([getattr(ours, name), getattr(theirs, name)]) for name in _KINDS]
    kind = np.zeros(len(ours) + len(theirs), dtype=np.int64)
    if all((column >= 0).all() or (column < 0).all() for column in columns[1:]) and columns[0].max() < len(CALL_KINDS):
        for column in columns:
            kind = np.unique(kind * (int(column.max()) + 2) + column, return_inverse=True)[1]
    return _UsableCalls(ours, theirs, kind[: len(ours)], kind[len(ours) :])


_KINDS = ("kind", "dtype", "size", "name")


def _lost_nats(offsets: Iterable[Offset]) -> float:
    """Penalty for a call without a partner, in nats: small if many calls have none at any offset."""
    paired = max(2 * o.coinciding / (2 * o.coinciding + o.unmatched) for o in offsets)
    return float(np.clip(-np.log(max(1 - paired, 1e-9)), 0.0, _MOST_LOST_NATS))


def _evidence(fitted: Offset, lost_nats: float) -> float:
    """How much better than chance the offset is, in nats: tight coincidences minus calls that lack a partner."""
    return fitted.coinciding * math.log(2 * COINCIDE_NS / fitted.spread_ns) - lost_nats * fitted.unmatched


def _rivals(other: Offset, best: Offset, lost_nats: float) -> bool:
    """Whether the other offset may be the right one, too.

    A spread is the median distance of n ends from a line fitted through them. Few ends tell it only to a factor of
    about exp(1.16 / sqrt(n - 2)), for each of the two offsets. Where windows repeat, the tightest of many offsets may
    be so by chance: a spread excludes the others only if they exceed it by 2.5 such errors.
    """
    enough = other.coinciding >= max(LEAST_COINCIDING - 1, best.coinciding / 4)
    more_lost = lost_nats / _MOST_LOST_NATS * (other.unmatched - best.unmatched)
    # One range of lost records may hold as many calls as few ends that coincide.
    may_be_lost = best.coinciding if best.coinciding < 2 * LEAST_COINCIDING else 0.15 * other.coinciding
    explains = more_lost <= max(2.0, may_be_lost)
    tighter = _tighter(min(other.coinciding, best.coinciding))
    tight = other.spread_ns < tighter * best.spread_ns + 2 * _LEAST_SPREAD_NS
    fewer = best.coinciding < 2 * LEAST_COINCIDING and 2 * other.coinciding >= best.coinciding
    same_step = other.same_step >= best.same_step - 0.3
    # What has no partner may be lost, but so many ends do not coincide so much more closely by chance.
    many = other.coinciding >= LEAST_COINCIDING and 2 * other.coinciding >= best.coinciding
    closer = many and other.missed <= _MOST_MISSED and tighter * other.spread_ns < best.spread_ns
    explained = explains and ((enough and tight) or (fewer and other.spread_ns < 4 * best.spread_ns + 10_000))
    return same_step and (explained or closer)


def _tighter(count: int) -> float:
    """How many times closer `count` ends must coincide to exclude another offset."""
    return max(_TIGHTER, math.exp(_TIGHTER_OF_FEW / math.sqrt(max(count - 2, 1))))


def _peaks(lanes: Iterable[_UsableCalls], compatible: Flags, within_ns: int, most: int) -> list[float]:
    """Offsets at which many pairs of ends coincide to within `within_ns`, the most frequent first."""
    counted: list[tuple[int, float]] = []
    apart_of: dict[int, list[Floats]] = {}
    for ours, theirs, *_ in lanes:
        for part, begin in enumerate(_begins(len(ours))):
            apart_of.setdefault(part, []).append(_apart(ours.take(slice(begin, begin + _CHUNK)), theirs, compatible))
    for parts in apart_of.values():
        apart = np.sort(np.concatenate(parts))
        upto = np.searchsorted(apart, apart + within_ns, side="right")
        counts = upto - np.arange(len(apart))
        for _ in range(most):
            if not len(counts) or counts.max() <= 0:
                break
            start = int(counts.argmax())
            middle = float(np.median(apart[start : upto[start]]))
            counted.append((int(counts[start]), middle))
            counts[np.abs(apart - middle) <= within_ns] = 0
    counted.sort(key=lambda pair: -pair[0])
    distinct: list[float] = []
    # Others coincide too seldom to be rivals.
    for count, middle in counted:
        if count < counted[0][0] * _LEAST_SHARE:
            break
        if all(abs(middle - known) > within_ns for known in distinct):
            distinct.append(middle)
    return distinct[:most]


def _begins(count: int) -> list[int]:
    """Where the chunks for the search begin: in the middle, at the beginning and at the end of the calls."""
    if count <= 2 * _CHUNK:
        return [max(0, (count - _CHUNK) // 2), *([0, count - _CHUNK] if count > _CHUNK else [])]
    return [(count - _CHUNK) // 2, 0, count - _CHUNK]


def _apart(ours: Entries, theirs: Entries, compatible: Flags) -> Floats:
    """Difference of ends, ours minus theirs, of all pairs that could match."""
    every_i, every_j = np.arange(len(ours))[:, None], np.arange(len(theirs))[None, :]
    i, j = np.nonzero(same_kind_at(ours, every_i, theirs, every_j, compatible))
    result: Floats = (ours.end[i] - theirs.end[j]).astype(np.float64)
    return result


class _Pairs(NamedTuple):
    """Coinciding ends: time in ns since the origin, how much later ours is; how many share a step or are alone."""

    since: Ints
    apart: Floats
    same_step: float
    unmatched: int
    missed: float


def _fit(lanes: Sequence[_UsableCalls], compatible: Flags, level_ns: float, origin_ns: int) -> Offset | None:
    """Fit the offset near this one: start where most ends coincide, then extend to both sides as a drift allows."""
    slope = 0.0
    centre = reach = None
    pairs = None
    for _ in range(_ROUNDS):
        pairs = _pairs(lanes, compatible, level_ns, slope, origin_ns)
        if not len(pairs.apart):
            return None
        if centre is None:
            centre = float(np.median(pairs.since))
            reach = max(float(np.ptp(pairs.since)) / 8, 1.0)
        near = np.abs(pairs.since - centre) <= reach
        if near.sum() < LEAST_COINCIDING:
            near = np.ones(len(pairs.since), dtype=bool)
        line = trend(pairs.since[near], pairs.apart[near])
        follows = line is not None and line.significant  # else the slope may be chance
        level_ns += line.level_ns if line is not None and follows else float(np.median(pairs.apart[near]))
        slope += line.slope if line is not None and follows else 0.0
        assert reach is not None
        if near.all() and not follows:
            break
        reach *= 4
    pairs = _pairs(lanes, compatible, level_ns, slope, origin_ns)
    if not len(pairs.apart):
        return None
    spread = 1.4826 * float(np.median(np.abs(pairs.apart - np.median(pairs.apart))))
    return Offset(
        level_ns,
        slope,
        origin_ns,
        len(pairs.apart),
        pairs.unmatched,
        max(spread, _LEAST_SPREAD_NS),
        pairs.same_step,
        pairs.missed,
    )


def _pairs(lanes: Sequence[_UsableCalls], compatible: Flags, level_ns: float, slope: float, origin_ns: int) -> _Pairs:
    since, apart, steps, missed, unmatched = [], [], [], [], 0
    for lane in lanes:
        ours, theirs = lane.ours, lane.theirs
        moved = ours.ahead(_ahead(ours.end, level_ns, slope, origin_ns))
        i, j = _mutual(lane, moved, compatible)
        since.append(moved.end[i] - origin_ns)
        apart.append((moved.end[i] - theirs.end[j]).astype(np.float64))
        known = (ours.step[i] >= 0) & (theirs.step[j] >= 0)
        steps.append((ours.step[i] == theirs.step[j])[known])
        missed.append(missed_by(moved, i, theirs, j) > _MISSED_NS)
        unmatched += _within(moved, theirs) + _within(theirs, moved) - 2 * len(i)
    agree = np.concatenate(steps)
    same_step = float(agree.mean()) if len(agree) else 1.0
    gone = float(np.concatenate(missed).mean()) if sum(map(len, missed)) else 0.0
    return _Pairs(np.concatenate(since), np.concatenate(apart), same_step, max(unmatched, 0), gone)


def _ahead(times_ns: Ints, level_ns: float, slope: float, origin_ns: int) -> Ints:
    level = round(level_ns)
    ahead: Ints = level + np.rint(level_ns - level + slope * (times_ns - level - origin_ns)).astype(np.int64)
    return ahead


def _within(ours: Entries, theirs: Entries) -> int:
    """Number of our calls that end within the windows of the other side."""
    return int(theirs.cover(ours.end, after_ns=COINCIDE_NS).sum())


def _mutual(lane: _UsableCalls, moved: Entries, compatible: Flags) -> tuple[Ints, Ints]:
    """Pairs of calls that are each other's nearest of their kind and could be the same; ours are `moved`."""
    since = min(moved.end[0], lane.theirs.end[0])
    apart = 2 * int(max(moved.end[-1], lane.theirs.end[-1]) - since) + 1
    ours, theirs = moved.end - since + apart * lane.our_kind, lane.theirs.end - since + apart * lane.their_kind
    to_theirs, to_ours = _nearest(ours, theirs), _nearest(theirs, ours)
    i = np.flatnonzero(to_ours[to_theirs] == np.arange(len(ours)))
    j = to_theirs[i]
    close = np.abs(moved.end[i] - lane.theirs.end[j]) <= COINCIDE_NS
    i, j = i[close], j[close]
    arrived = np.maximum(moved.last_start[i], lane.theirs.last_start[j])
    left = np.minimum(moved.first_end[i], lane.theirs.first_end[j])
    good = same_kind_at(moved, i, lane.theirs, j, compatible) & (arrived <= left + COINCIDE_NS)
    return i[good], j[good]


def _nearest(values: Ints, others: Ints) -> Ints:
    """Index of the nearest of `others` to each value."""
    order = np.argsort(others, kind="stable")
    ordered = others[order]
    after = np.searchsorted(ordered, values).clip(0, len(ordered) - 1)
    before = np.maximum(after - 1, 0)
    nearer = np.abs(ordered[before] - values) < np.abs(ordered[after] - values)
    result: Ints = order[np.where(nearer, before, after)]
    return result
