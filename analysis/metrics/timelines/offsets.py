"""The offset between two clocks, from the ends of collectives that both show.

All ranks end a collective at nearly the same time. So at the right offset ends coincide, though it is not known which
calls belong together: that is why this comes before matching by time. Offsets at which many ends come near each other
are tried (`_peaks`), each is fitted to the pairs of calls that it makes (`_fit`), and the one with most evidence wins.

In a loop the calls of the next iteration come near as well. So another offset that explains the calls about as well is
a rival (`_rivals`), and only an offset without rivals may link clocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ...core.arrays import Flags, Floats, Ints
from ..clocks.ends import COINCIDE_NS
from ..clocks.medians import median, trend
from .entries import CALL_KINDS, Entries, gap_ns, same_kind_at

# Fewer ends may coincide by chance.
LEAST_COINCIDING = 4
# So many of our calls at a time are compared with all of theirs, to find differences that are frequent.
_CHUNK = 48
# Offsets are tried at which ends come within COINCIDE_NS; among few calls also those at which they come this close.
_CLOSE_NS = 20_000
_CANDIDATES, _CLOSE_CANDIDATES = 12, 40
_FEW = 4_000
# Where ends come near less often than in this part of the best case, the offset is no rival.
_LEAST_SHARE = 0.2
_LEAST_SPREAD_NS = 1_000
_TIGHTER, _TIGHTER_OF_FEW = 2.0, 4.1
_ROUNDS = 6
# The largest penalty for a call without a partner, where nearly all calls have one.
_MOST_LOST_NATS = 3.0
# Calls that belong together overlap, to within what clocks of GPUs differ from their host's.
_DISJOINT_NS, _MOST_DISJOINT = 20_000, 0.1


class Lane(NamedTuple):
    """One process group as two sides show it, each on its own clock. A side is a rank, a host, or linked clocks."""

    ours: Entries
    theirs: Entries


def offset_at(lanes: Sequence[Lane], compatible: Flags, level_ns: float, origin_ns: int) -> Offset | None:
    """How well ends coincide at, or near, an offset of `level_ns`; None if none do. Arguments as of `offset`."""
    usable = [lane for ours, theirs in lanes if (lane := _usable_calls(_by_end(ours), _by_end(theirs))) is not None]
    return _fit(usable, compatible, level_ns, origin_ns) if usable else None


class _UsableCalls(NamedTuple):
    """The synchronising calls of a lane, sorted by end.

    `our_kind` and `their_kind` number combinations of kind, dtype, size and kernel; all are 0 if some are not known.
    """

    ours: Entries
    theirs: Entries
    our_kind: Ints
    their_kind: Ints


class Offset(NamedTuple):
    """How far our clock is ahead of theirs when it shows t: level + slope x (t - level - origin), in ns.

    The origin is a time on their clock. The rest says how well ends coincide at this offset: `coinciding` is the number
    of pairs of calls whose ends do, `spread_ns` the standard deviation of their differences, and `unmatched` the number
    of calls without a partner at times that both sides show. `same_step_frac` is the part of the pairs, with known
    steps, that are of one step; `disjoint_frac` is the part of which one call had ended before the other began, so
    that they cannot be one collective. `unique` says that no other offset is nearly as good.
    """

    level_ns: float
    slope: float
    origin_ns: int
    coinciding: int
    unmatched: int
    spread_ns: float
    same_step_frac: float
    disjoint_frac: float = 0.0
    unique: bool = False

    def ahead(self, times_ns: Ints) -> Ints:
        """How far our clock is ahead when it shows these times, in ns; shape of `times_ns`."""
        return _ahead(times_ns, self.level_ns, self.slope, self.origin_ns)


def offset(
    lanes: Sequence[Lane], compatible: Flags, origin_ns: int, expected: tuple[float, float] | None = None
) -> Offset | None:
    """The offset with most evidence, by all process groups together; None if no ends coincide at any.

    Arguments as of `offsets`.
    """
    return best_of(offsets(lanes, compatible, origin_ns, expected))


def offsets(
    lanes: Sequence[Lane], compatible: Flags, origin_ns: int, expected: tuple[float, float] | None = None
) -> list[Offset]:
    """The offsets at which many ends coincide, by all process groups together, none of them `unique`.

    `compatible` says which kinds may be the same collective, `origin_ns` is a time on their clock. `expected` is an
    offset and its uncertainty in ns, by other evidence such as a clock probe: only offsets that agree with it are
    tried, if there are any.
    """
    usable = [lane for ours, theirs in lanes if (lane := _usable_calls(_by_end(ours), _by_end(theirs))) is not None]
    apart = _apart_by_part(usable, compatible)
    tried = _peaks(apart, COINCIDE_NS, _CANDIDATES)
    if sum(len(lane.ours) + len(lane.theirs) for lane in usable) <= _FEW:
        # In a dense loop the right offset may stand beside one at which more ends come near, but none coincides.
        close = _peaks(apart, _CLOSE_NS, _CLOSE_CANDIDATES)
        tried += [t for t in close if all(abs(t - known) > _CLOSE_NS for known in tried)]
    if expected is not None:
        tried = [t for t in tried if abs(t - expected[0]) <= expected[1] + COINCIDE_NS] or tried
    return [o for t in tried if (o := _fit(usable, compatible, t, origin_ns)) is not None]


def best_of(offsets: Sequence[Offset]) -> Offset | None:
    """The one with most evidence, and whether it is `unique` among these; None if there are none."""
    if not offsets:
        return None
    lost_nats = _lost_nats(offsets)
    best = max(offsets, key=lambda o: (round(o.same_step_frac, 1), _evidence(o, lost_nats)))
    distinct = [o for o in offsets if abs(o.level_ns - best.level_ns) > 2 * COINCIDE_NS]
    enough = best.coinciding >= LEAST_COINCIDING and best.same_step_frac >= 0.5 and best.disjoint_frac <= _MOST_DISJOINT
    unique = enough and not any(_rivals(o, best, lost_nats) for o in distinct)
    return best._replace(unique=unique)


def _by_end(entries: Entries) -> Entries:
    """The synchronising calls, of which ends coincide, sorted by end; on CPUs entries are sorted by time of issue."""
    synchronising = np.flatnonzero(entries.synchronising)
    return entries.take(synchronising[np.argsort(entries.end[synchronising], kind="stable")])


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
    """How much better than chance an offset explains the ends, in nats: close coincidences, less lost partners."""
    return fitted.coinciding * math.log(2 * COINCIDE_NS / fitted.spread_ns) - lost_nats * fitted.unmatched


def _rivals(other: Offset, best: Offset, lost_nats: float) -> bool:
    """Whether the other offset may be the right one as well.

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
    same_steps = other.same_step_frac >= best.same_step_frac - 0.3
    # What has no partner may be lost, but so many ends do not coincide so much more closely by chance.
    many = other.coinciding >= LEAST_COINCIDING and 2 * other.coinciding >= best.coinciding
    closer = many and other.disjoint_frac <= _MOST_DISJOINT and tighter * other.spread_ns < best.spread_ns
    explained = explains and ((enough and tight) or (fewer and other.spread_ns < 4 * best.spread_ns + 10_000))
    return same_steps and (explained or closer)


def _tighter(count: int) -> float:
    """How many times closer `count` ends must coincide to exclude another offset."""
    return max(_TIGHTER, math.exp(_TIGHTER_OF_FEW / math.sqrt(max(count - 2, 1))))


def _apart_by_part(lanes: Iterable[_UsableCalls], compatible: Flags) -> list[Floats]:
    """The differences of ends in the middle, at the beginning and at the end of all lanes, ascending, in ns."""
    apart_of: dict[int, list[Floats]] = {}
    for ours, theirs, *_ in lanes:
        for part, begin in enumerate(_chunk_starts(len(ours))):
            apart_of.setdefault(part, []).append(_apart(ours.take(slice(begin, begin + _CHUNK)), theirs, compatible))
    return [np.sort(np.concatenate(parts)) for parts in apart_of.values()]


def _peaks(apart_by_part: list[Floats], within_ns: int, most: int) -> list[float]:
    """At most `most` offsets in ns at which many ends are within `within_ns` of each other, the most frequent first."""
    counted: list[tuple[int, float]] = []
    for apart in apart_by_part:
        upto = np.searchsorted(apart, apart + within_ns, side="right")
        counts = upto - np.arange(len(apart))
        for _ in range(most):
            if not len(counts) or counts.max() <= 0:
                break
            start = int(counts.argmax())
            middle = median(apart[start : upto[start]])
            counted.append((int(counts[start]), middle))
            # The differences are in order: those near the middle are one stretch of them.
            begin = np.searchsorted(apart, middle - within_ns)
            counts[begin : np.searchsorted(apart, middle + within_ns, side="right")] = 0
    counted.sort(key=lambda pair: -pair[0])
    distinct: list[float] = []
    # Others coincide too seldom to be rivals.
    for count, middle in counted:
        if count < counted[0][0] * _LEAST_SHARE:
            break
        if all(abs(middle - known) > within_ns for known in distinct):
            distinct.append(middle)
    return distinct[:most]


def _chunk_starts(count: int) -> list[int]:
    """The first call of each chunk in the search: chunks are in the middle, at the beginning and at the end."""
    if count <= 2 * _CHUNK:
        return [max(0, (count - _CHUNK) // 2), *([0, count - _CHUNK] if count > _CHUNK else [])]
    return [(count - _CHUNK) // 2, 0, count - _CHUNK]


def _apart(ours: Entries, theirs: Entries, compatible: Flags) -> Floats:
    """Differences of ends, ours minus theirs, of all pairs of calls that may be the same collective, in ns."""
    every_i, every_j = np.arange(len(ours))[:, None], np.arange(len(theirs))[None, :]
    i, j = np.nonzero(same_kind_at(ours, every_i, theirs, every_j, compatible))
    result: Floats = (ours.end[i] - theirs.end[j]).astype(np.float64)
    return result


class _Pairs(NamedTuple):
    """Pairs of calls whose ends coincide: time since the origin, and how much later ours ends, in ns; shape (pairs,).

    The rest is as in `Offset`.
    """

    since: Ints
    apart: Floats
    same_step_frac: float
    unmatched: int
    disjoint_frac: float


def _fit(lanes: Sequence[_UsableCalls], compatible: Flags, level_ns: float, origin_ns: int) -> Offset | None:
    """Fit an offset to the ends that coincide near `level_ns`; None if none do.

    A drift moves ends apart that are far from the middle. So the fit begins with an eighth of the time, and takes in
    more on both sides in each round, with the slope that it has found by then.
    """
    slope = 0.0
    centre = reach = None
    pairs = None
    for _ in range(_ROUNDS):
        pairs = _pairs(lanes, compatible, level_ns, slope, origin_ns)
        if not len(pairs.apart):
            return None
        if centre is None:
            centre = median(pairs.since)
            reach = max(float(np.ptp(pairs.since)) / 8, 1.0)
        near = np.abs(pairs.since - centre) <= reach
        if near.sum() < LEAST_COINCIDING:
            near = np.ones(len(pairs.since), dtype=bool)
        line = trend(pairs.since[near], pairs.apart[near])
        follows = line is not None and line.significant  # else the slope may be chance
        level_ns += line.level_ns if line is not None and follows else median(pairs.apart[near])
        slope += line.slope if line is not None and follows else 0.0
        assert reach is not None
        if near.all() and not follows:
            break
        reach *= 4
    pairs = _pairs(lanes, compatible, level_ns, slope, origin_ns)
    if not len(pairs.apart):
        return None
    spread = 1.4826 * median(np.abs(pairs.apart - median(pairs.apart)))
    return Offset(
        level_ns,
        slope,
        origin_ns,
        len(pairs.apart),
        pairs.unmatched,
        max(spread, _LEAST_SPREAD_NS),
        pairs.same_step_frac,
        pairs.disjoint_frac,
    )


def _pairs(lanes: Sequence[_UsableCalls], compatible: Flags, level_ns: float, slope: float, origin_ns: int) -> _Pairs:
    since, apart, steps, disjoint, unmatched = [], [], [], [], 0
    for lane in lanes:
        ours, theirs = lane.ours, lane.theirs
        moved = ours.earlier(_ahead(ours.end, level_ns, slope, origin_ns))
        i, j = _mutual_nearest(lane, moved, compatible)
        since.append(moved.end[i] - origin_ns)
        apart.append((moved.end[i] - theirs.end[j]).astype(np.float64))
        known = (ours.step[i] >= 0) & (theirs.step[j] >= 0)
        steps.append((ours.step[i] == theirs.step[j])[known])
        disjoint.append(gap_ns(moved, i, theirs, j) > _DISJOINT_NS)
        unmatched += _covered(moved, theirs) + _covered(theirs, moved) - 2 * len(i)
    agree = np.concatenate(steps)
    same_step_frac = float(agree.mean()) if len(agree) else 1.0
    disjoint_frac = float(np.concatenate(disjoint).mean()) if sum(map(len, disjoint)) else 0.0
    return _Pairs(np.concatenate(since), np.concatenate(apart), same_step_frac, max(unmatched, 0), disjoint_frac)


def _ahead(times_ns: Ints, level_ns: float, slope: float, origin_ns: int) -> Ints:
    level = round(level_ns)
    ahead: Ints = level + np.rint(level_ns - level + slope * (times_ns - level - origin_ns)).astype(np.int64)
    return ahead


def _covered(ours: Entries, theirs: Entries) -> int:
    """Number of our calls that end while the other side was recording."""
    return int(theirs.cover(ours.end, after_ns=COINCIDE_NS).sum())


def _mutual_nearest(lane: _UsableCalls, moved: Entries, compatible: Flags) -> tuple[Ints, Ints]:
    """Positions of ours and theirs in all pairs that may be one collective: each the other's nearest of its kind.

    `moved` are our calls on their clock.
    """
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
