"""Clocks that do not run straight: that jump while they are traced, or change their rate.

All ranks end a collective at nearly the same time, so between two clocks that run straight the differences of ends
follow a line. A clock that was set steps at once, from one collective to the next, in collectives of every kind, and
stays there; a crystal that warms up bends. Ends scatter by some microseconds, with a long tail, while a clock is set by
hundreds. Four other things look alike, and have to be distinguished:

- *A late end.* One or two collectives say nothing: a jump has to last for three on each side of it, and to be much
  larger than what neighbours differ by.
- *Collectives of another kind or size*, at whose end one rank is always later. They are made level with the others
  before anything is compared, and most kinds have to show a jump by themselves, so a phase of the program is none.
- *Ends that differ by more than the clocks can.* No rank ends before all have begun, on each side of a jump. A short
  collective leaves little room, whatever the ends of long ones say.
- *A link that is slow from then on.* It makes the calls of its ranks longer. A jump makes no call longer, except the
  one that runs just then.

Definitions: docs/metrics/clocks.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...core.arrays import Flags, Floats, Ints
from .ends import Ends, shared_collectives
from .frame import LARGEST_DRIFT, Bends
from .medians import LARGEST_SLOPE, median, medians, rows_of

# A jump exceeds 90 us, 8 standard errors of the medians beside it, and 3 times what eight of ten neighbours differ by:
# on one host the ends of large collectives differ by up to 90 us, differently each time.
_LEAST_JUMP_NS = 90_000
_SIGNIFICANT, _BEYOND_TAIL = 8.0, 3.0
_WIDTHS = (9, 5, 3)
# At the edge of the window one or two collectives have to do: they need more.
_LEAST_EDGE_NS, _BEYOND_TAIL_EDGE = 250_000, 6.0
# A step that is smaller, or not so sure, is not taken out, but clocks of other hosts are uncertain by it.
_LEAST_STEP_NS = 12_000
# So much of both sides has to lie beyond the middle of the jump, and so much of it each kind of collective has to show.
_APART_FRAC, _SHOWN_FRAC = 0.8, 0.5
# Where no kind of collective is on both sides of it, or where a GPU is to jump against its host, whose clock it has:
# ends differ by less.
_LEAST_UNLIKELY_NS = 250_000
# What collectives allow is as right as ends of kernels are converted to the clock of the host.
_ALLOWED_NS = 10_000
# A clock that jumps more often does something else.
_MOST_JUMPS = 8
# Collectives that are rarer than that among alike ones are not used, if enough others are left.
_LEAST_ALIKE, _LEAST_KEPT_FRAC = 6, 0.7
_LEAST_NOISE_NS = 400.0
_OF_NORMAL, _OF_MEDIAN = 1.4826, 1.2533
# Knots of a curve: each is the median of at least that many collectives.
_LEAST_IN_KNOT, _MOST_KNOTS, _LEAST_KNOTS = 4, 32, 5
_LEAST_CURVE_NS = 2_500.0
_SURE = 4.0
_LONG_AGO_NS, _NEVER_NS = 1 << 40, 1 << 62


@dataclass(frozen=True)
class Straightened:
    """The ends as if all clocks ran straight, the `bends` that were taken out, and how wrong these may be.

    `bends` is by clock; they are against the first clock that collectives link, which has none. `extra_ns`, of shape
    (clocks,), is what the bends add to the uncertainty of each clock.
    """

    ends: Ends
    bends: dict[int, Bends]
    extra_ns: Floats

    def following(self, bends: dict[int, Bends], raw: Ends) -> Straightened:
        """Take out only these of the bends; `raw` are the ends with all of them."""
        return Straightened(_without(raw, bends), bends, self.extra_ns)


def straightened(ends: Ends, hosts: Ints, *, shared: Flags, curved: bool = True) -> Straightened:
    """Find the bends of all clocks, and take them out of the ends.

    `hosts` gives the host of each clock, from 0; `shared` says which clocks are exactly those of their hosts. First the
    clocks of each host are compared with each other, as the clock of a GPU may jump alone, then the hosts. Curves are
    looked for between hosts only, and only if `curved`: GPUs of one host are converted to one clock.
    """
    bends: dict[int, Bends] = {}
    extra_ns = np.zeros(len(hosts))
    if not len(ends.collective):
        return Straightened(ends, bends, extra_ns)
    rows = rows_of(hosts[ends.clock], int(hosts.max()) + 1)
    for host in np.unique(hosts[ends.clock[~shared[ends.clock]]]).tolist():
        # The clock of a GPU may jump alone, as each is converted by itself.
        if (hosts == host).sum() > 1:
            of_host = Ends(*(column[rows[host]] for column in ends))
            for clock, bent in _of_host(_units(of_host, np.arange(len(hosts))), is_first=host == hosts[0]).items():
                extra_ns[clock] += bent.extra_ns
                bends |= {} if bent.bends is None else {clock: bent.bends}
    ends = _without(ends, bends)
    of_hosts: dict[int, Bends] = {}
    for host, bent in _each(_units(ends, hosts), of_hosts=True, curved=curved):
        extra_ns[hosts == host] += bent.extra_ns
        if bent.bends is not None:
            of_hosts |= dict.fromkeys(np.flatnonzero(hosts == host).tolist(), bent.bends)
    ends = _without(ends, of_hosts)
    both = {clock: _sum(bends.get(clock), of_hosts.get(clock)) for clock in sorted({*bends, *of_hosts})}
    return Straightened(ends, both, extra_ns)


def _without(ends: Ends, bends: dict[int, Bends]) -> Ends:
    """Take these bends out of the ends, and leave out collectives that any rank ends while its clock jumps.

    A start while the clock jumps is moved to where it bounds nothing.
    """
    start_ns, end_ns = ends.start_ns.copy(), ends.end_ns.copy()
    dropped = np.zeros(ends.collectives, dtype=bool)
    for clock, bent in bends.items():
        of_clock = ends.clock == clock
        unclear = bent.unclear(ends.start_ns[of_clock])
        start_ns[of_clock] -= np.where(unclear, _LONG_AGO_NS, bent.added(ends.start_ns[of_clock]))
        dropped[ends.collective[of_clock][bent.unclear(ends.end_ns[of_clock])]] = True
        end_ns[of_clock] -= bent.added(ends.end_ns[of_clock])
    kept = ~dropped[ends.collective] if not dropped.all() else np.ones(len(ends.collective), dtype=bool)
    number = np.unique(ends.collective[kept], return_inverse=True)[1].ravel()
    return Ends(number, ends.clock[kept], start_ns[kept], end_ns[kept], ends.alike[kept])


def _sum(one: Bends | None, other: Bends | None) -> Bends:
    """Add the bends of a GPU's clock against its host's to those of the host; None for a clock without any."""
    if one is None or other is None:
        bends = one or other
        assert bends is not None
        return bends
    at_ns = np.union1d(one.at_ns, other.at_ns)
    after = at_ns + 1
    return Bends(at_ns, one.added(at_ns) + other.added(at_ns), (one.unclear(after) | other.unclear(after)))


class _Units(NamedTuple):
    """When collectives ran on units, which are hosts or clocks: one row per collective and unit, by collective."""

    collective: Ints
    unit: Ints
    end_ns: Ints
    dur_ns: Floats
    first_end_ns: Ints
    last_start_ns: Ints
    alike: Ints


def _units(ends: Ends, unit_of_clock: Ints) -> _Units:
    """The ends by unit: a host ends a collective when half of its ranks have."""
    unit = unit_of_clock[ends.clock]
    key = ends.collective * (int(unit_of_clock.max()) + 1) + unit
    distinct, first, number = np.unique(key, return_index=True, return_inverse=True)
    number = number.ravel()
    base = ends.end_ns.min()
    end = medians((ends.end_ns - base).astype(np.float64), number, len(distinct))
    dur = medians((ends.end_ns - ends.start_ns).astype(np.float64), number, len(distinct))
    end_ns = base + np.rint(end).astype(np.int64)
    first_end_ns, last_start_ns = np.full_like(end_ns, _NEVER_NS), np.full_like(end_ns, -_NEVER_NS)
    np.minimum.at(first_end_ns, number, ends.end_ns)
    np.maximum.at(last_start_ns, number, ends.start_ns)
    return _Units(ends.collective[first], unit[first], end_ns, dur, first_end_ns, last_start_ns, ends.alike[first])


def _of_host(units: _Units, *, is_first: bool) -> dict[int, _Bent]:
    """How the clocks of a host bend, by clock: against its first one, or if most do, against another one.

    If most clocks bend against the first one, it is the first one that bends. But if the host `is_first`, its first
    clock is what all others are compared with, whatever it does.
    """
    bent = dict(_each(units))
    several = sum(b.bends is not None for b in bent.values())
    if is_first or len(bent) < 2 or 2 * several <= len(bent):
        return bent
    first, *others = np.unique(units.unit).tolist()
    turned = np.where(units.unit == first, others[-1] + 1, units.unit)
    turned_bent = {first if clock == others[-1] + 1 else clock: b for clock, b in _each(units._replace(unit=turned))}
    return turned_bent if sum(b.bends is not None for b in turned_bent.values()) < several else bent


def _each(units: _Units, *, of_hosts: bool = False, curved: bool = False) -> Iterator[tuple[int, _Bent]]:
    """Yield how each unit's clock bends, against the first unit that collectives link with it.

    Units are compared one after another with one that has been straightened: with the first one where it shares enough
    collectives, as each comparison adds an error.
    """
    names, unit = np.unique(units.unit, return_inverse=True)
    rows = rows_of(unit, len(names))
    common = shared_collectives(units.collective, unit, len(names))
    straight_ns = units.end_ns.copy()
    waiting, done = np.ones(len(names), dtype=bool), np.zeros(len(names), dtype=bool)
    root, most = 0, np.zeros(len(names))  # the most that each shares with any that is done
    while waiting.any():
        reached = np.flatnonzero(waiting & (most > 0))
        if not len(reached):
            root = int(waiting.argmax())
            waiting[root], done[:] = False, False
            done[root], most = True, common[root]
            continue
        reached = reached[common[reached, root] == common[reached, root].max()]
        place = int(reached[most[reached].argmax()])
        # Against the first one, unless another one shares many more collectives.
        shares = np.where(done, common[place], -1.0)
        shares[root] *= 4
        parent = int(shares.argmax())
        bent = _bent(units, straight_ns, rows[place], rows[parent], of_hosts=of_hosts, curved=curved)
        if bent.bends is not None:
            straight_ns[rows[place]] -= bent.bends.added(units.end_ns[rows[place]])
        waiting[place], done[place], most = False, True, np.maximum(most, common[place])
        yield int(names[place]), bent


class _Bent(NamedTuple):
    """The bends of one clock against another, None if it runs straight, and how wrong that may be, in ns."""

    bends: Bends | None
    extra_ns: float


class _Series(NamedTuple):
    """The collectives that two clocks share, in order; all of shape (collectives,).

    `at_ns` is when ours ended by our clock, `apart_ns` how much later than theirs, `longer_ns` by how much our call is
    longer. `low_ns` and `high_ns` are the least and the most that our clock can be ahead, as no rank ends before all
    have begun. `alike` is a code for group, kind and size.
    """

    at_ns: Ints
    apart_ns: Floats
    longer_ns: Floats
    low_ns: Floats
    high_ns: Floats
    alike: Ints

    def without(self, by_ns: Floats) -> _Series:
        """The series as it would be if our clock were ahead by `by_ns` less; one value per collective."""
        apart, low, high = self.apart_ns - by_ns, self.low_ns - by_ns, self.high_ns - by_ns
        return self._replace(apart_ns=apart, low_ns=low, high_ns=high)


def _bent(units: _Units, straight_ns: Ints, ours: Ints, theirs: Ints, *, of_hosts: bool, curved: bool) -> _Bent:
    """How our clock bends against theirs, by the rows of both in `units`.

    `straight_ns` are the ends of all rows without the bends that are known already.
    """
    _, i, j = np.intersect1d(units.collective[ours], units.collective[theirs], return_indices=True)
    i, j = np.asarray(ours[i], dtype=np.int64), np.asarray(theirs[j], dtype=np.int64)
    apart = units.end_ns[i] - straight_ns[j]
    if len(i) < 2 * min(_WIDTHS):
        return _Bent(None, 0.0)
    # A clock that is set back shows some times twice: its ends are then not in order, but those of the other one are.
    orders = (np.argsort(units.end_ns[i], kind="stable"), np.argsort(straight_ns[j], kind="stable"))
    order = min(orders, key=lambda tried: int(np.abs(np.diff(apart[tried])).sum()))
    i, j = i[order], j[order]
    middle = int(median(apart))
    level_ns, kept = _level((apart[order] - middle).astype(np.float64), units.alike[i])
    back = units.end_ns[j] - straight_ns[j] - middle
    low = (units.last_start_ns[i] - units.first_end_ns[j] + back).astype(np.float64)
    high = (units.first_end_ns[i] - units.last_start_ns[j] + back).astype(np.float64)
    longer = units.dur_ns[i] - units.dur_ns[j]
    series = _Series(units.end_ns[i][kept], level_ns[kept], longer[kept], low[kept], high[kept], units.alike[i][kept])
    rises = np.maximum.accumulate(series.at_ns)
    since = (rises - rises[0]).astype(np.float64)
    level = series.without(_slope(since, series.apart_ns) * since)
    steps = _jumps(level, of_hosts=of_hosts)
    left_ns = series.apart_ns - steps.total(len(series.at_ns))
    knots = _curve(since, left_ns) if curved else None
    extra_ns = steps.error_ns
    if curved:
        doubted_ns = max(steps.doubted_ns, _small_ns(level.apart_ns, steps))
        extra_ns += doubted_ns + (knots.extra_ns if knots is not None else _off_line_ns(since, left_ns))
    if not steps.jumps and knots is None:
        return _Bent(None, extra_ns)
    return _Bent(_drawn(series.at_ns, steps, knots), extra_ns)


def _level(apart_ns: Floats, alike: Ints) -> tuple[Floats, Flags]:
    """How far apart ends are without what kinds of collectives always differ by; and which kinds are frequent enough.

    The ends of each kind are compared with the nearest ones of other kinds. Only a difference that they always have is
    taken out, so a jump stays.
    """
    kinds, kind, counts = np.unique(alike, return_inverse=True, return_counts=True)
    kind = kind.ravel()
    level_ns, kept = apart_ns.copy(), counts[kind] >= _LEAST_ALIKE
    if kept.mean() < _LEAST_KEPT_FRAC:
        kept = np.ones(len(kind), dtype=bool)
    if len(kinds) == 1:
        return level_ns, kept
    first, *others = [place for place in np.argsort(-counts, kind="stable").tolist() if kept[kind == place].any()]
    known = np.flatnonzero(kind == first)
    for other in others:
        of_kind = np.flatnonzero(kind == other)
        after = np.searchsorted(known, of_kind).clip(0, len(known) - 1)
        before = np.maximum(after - 1, 0)
        nearby = np.column_stack([level_ns[known[before]], level_ns[known[after]]])
        more = (level_ns[of_kind][:, np.newaxis] - nearby).ravel()
        scatter = _OF_NORMAL * median(np.abs(more - median(more))) + _LEAST_NOISE_NS
        if abs(median(more)) > 2 * scatter:
            level_ns[of_kind] -= median(more)
        known = np.sort(np.concatenate([known, of_kind]))
    return level_ns, kept


def _noise_ns(values: Floats) -> float:
    """Standard deviation of values by the differences of neighbours, of which jumps and drift change few, or little."""
    steps = np.abs(np.diff(values))
    return max(_OF_NORMAL * median(steps) / 2**0.5, _LEAST_NOISE_NS)


def _tail_ns(values: Floats) -> float:
    """As `_noise_ns`, but by what eight of ten neighbours differ by at most: larger if there is a long tail."""
    return float(np.quantile(np.abs(np.diff(values)), 0.8, method="lower")) / 2**0.5


def _slope(since: Floats, level_ns: Floats) -> float:
    """A drift, roughly, whatever jumps there are: the median over pairs of collectives some way apart."""
    lag = max(len(since) // 8, 1)
    slopes = (level_ns[lag:] - level_ns[:-lag]) / np.maximum(since[lag:] - since[:-lag], 1)
    return float(np.clip(median(slopes), -LARGEST_SLOPE, LARGEST_SLOPE))


class _Jump(NamedTuple):
    """A jump: the last collective before it, the first one behind it, and by how much the clock is further ahead."""

    before: int
    behind: int
    by_ns: float


class _Steps(NamedTuple):
    """The jumps of a clock, in order.

    `error_ns` is how wrong they may be together, `doubted_ns` the largest step that is not believed to be a jump.
    """

    jumps: list[_Jump]
    error_ns: float
    doubted_ns: float

    def total(self, count: int) -> Floats:
        """How far the clock has jumped up to each of `count` collectives; by half between the two sides of a jump."""
        change = np.zeros(count + 1)
        for jump in self.jumps:
            change[jump.before + 1] += jump.by_ns / 2
            change[jump.behind] += jump.by_ns / 2
        return np.cumsum(change)[:count]


def _jumps(series: _Series, *, of_hosts: bool) -> _Steps:
    """The jumps of a clock; a drift has been taken out of the series, roughly.

    `of_hosts` if the two clocks are those of hosts: the clock of a GPU hardly jumps against that of its host, so that
    needs a proof.
    """
    level_ns, noise_ns, tail_ns = series.apart_ns, _noise_ns(series.apart_ns), _tail_ns(series.apart_ns)
    least_ns = max(_LEAST_JUMP_NS, _BEYOND_TAIL * tail_ns)
    inner = _cuts(level_ns, noise_ns, least_ns)
    after = sorted({*inner, *_at_edges(series, inner, max(_LEAST_EDGE_NS, _BEYOND_TAIL_EDGE * tail_ns))})
    edges = [-1, *after, len(series.at_ns) - 1]
    jumps, errors, doubted_ns = [], [], 0.0
    for before, cut, beyond in zip(edges, after, edges[2:], strict=False):
        left = slice(max(before + 1, cut + 1 - max(_WIDTHS)), cut + 1)
        right = slice(cut + 1, min(beyond + 1, cut + 1 + max(_WIDTHS)))
        low, high = median(level_ns[left]), median(level_ns[right])
        by_ns = high - low
        longer = median(series.longer_ns[right]) - median(series.longer_ns[left])
        count = min(left.stop - left.start, right.stop - right.start)
        # Where calls are longer by as much, they end later, and the clock may be right.
        late = count >= min(_WIDTHS) and abs(longer - by_ns) < abs(by_ns) / 2
        small = abs(by_ns) < least_ns
        shown = _shown_by_all(series, left, right, by_ns) and _allowed(series, before, cut, beyond, by_ns)
        if late or small or not shown:
            doubted_ns = max(doubted_ns, abs(by_ns))
            continue
        if not (of_hosts or abs(by_ns) > _LEAST_UNLIKELY_NS or not _allowed(series, before, cut, beyond, 0.0)):
            errors.append(abs(by_ns) / _SURE)
            continue
        # A host that jumps while its ranks end a collective ends it in between.
        off = max(6 * noise_ns, abs(by_ns) / 20)
        last = cut - int(left.stop - left.start > 1 and abs(level_ns[cut] - low) > off)
        first = cut + 1 + int(right.stop - right.start > 1 and abs(level_ns[cut + 1] - high) > off)
        jumps.append(_Jump(last, first, by_ns))
        errors.append(_OF_MEDIAN * noise_ns * np.sqrt(2 / count) * (1 + 2 / count))
    if len(jumps) > _MOST_JUMPS:
        return _Steps([], 0.0, float(np.ptp(np.cumsum([jump.by_ns for jump in jumps]))))
    return _Steps(jumps, _SURE * float(np.sqrt(np.square(errors).sum())), doubted_ns)


def _small_ns(level_ns: Floats, steps: _Steps) -> float:
    """The largest step in what is left without the jumps: the clock may have moved by that, or the ends; in ns."""
    left_ns = level_ns - steps.total(len(level_ns))
    edges = [0, *(cut + 1 for cut in _cuts(left_ns, _noise_ns(level_ns), _LEAST_STEP_NS)), len(left_ns)]
    middle = [median(left_ns[begin:end]) for begin, end in pairwise(edges)]
    return float(np.abs(np.diff(middle)).max(initial=0.0))


def _cuts(level_ns: Floats, noise_ns: float, least_ns: float) -> list[int]:
    """The positions of the last values before each step of at least `least_ns`, ascending."""
    pieces, cuts = [(0, len(level_ns))], []
    while pieces:
        begin, end = pieces.pop()
        place = _largest_jump(level_ns[begin:end], noise_ns, least_ns)
        if place is not None:
            cuts.append(begin + place)
            pieces += [(begin, begin + place + 1), (begin + place + 1, end)]
    return sorted(cuts)


def _shown_by_all(series: _Series, left: slice, right: slice, by_ns: float) -> bool:
    """Whether nearly all collectives on both sides of a step show it, and nearly all kinds that both sides have."""
    level_ns = series.apart_ns * np.sign(by_ns)
    middle_ns = (median(level_ns[left]) + median(level_ns[right])) / 2
    if min((level_ns[left] < middle_ns).mean(), (level_ns[right] > middle_ns).mean()) < _APART_FRAC:
        return False
    before, behind = series.alike[left], series.alike[right]
    common = np.intersect1d(before, behind).tolist()
    shown = [median(level_ns[right][behind == kind]) - median(level_ns[left][before == kind]) for kind in common]
    weights = [min((before == kind).sum(), (behind == kind).sum()) for kind in common]
    if not shown:
        return abs(by_ns) > _LEAST_UNLIKELY_NS
    return float(np.average([change > _SHOWN_FRAC * abs(by_ns) for change in shown], weights=weights)) >= _APART_FRAC


def _allowed(series: _Series, before: int, cut: int, beyond: int, by_ns: float) -> bool:
    """Whether the clock can have jumped by `by_ns` behind `cut`, as no rank ends before all have begun.

    The sides are (before, cut] and (cut, beyond].
    """
    since = np.abs(series.at_ns - series.at_ns[cut]).astype(np.float64)
    low, high = series.low_ns - LARGEST_DRIFT * since, series.high_ns + LARGEST_DRIFT * since
    left, right = slice(before + 1, cut + 1), slice(cut + 1, beyond + 1)
    least, most = low[right].max() - high[left].min(), high[right].min() - low[left].max()
    return bool(least - _ALLOWED_NS <= by_ns <= most + _ALLOWED_NS)


def _largest_jump(values: Floats, noise_ns: float, least_ns: float) -> int | None:
    """The position of the last value before the most significant step; None if none is significant."""
    if not len(values) or np.ptp(values) <= least_ns:
        return None
    best: tuple[float, int, int] | None = None
    for width in _WIDTHS:
        if len(values) < 2 * width:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(values, width)
        middle = np.partition(windows, width // 2, axis=1)[:, width // 2]
        change = middle[width:] - middle[:-width]  # [k]: between the values k + width - 1 and k + width
        least = max(least_ns, _SIGNIFICANT * _OF_MEDIAN * noise_ns * np.sqrt(2 / width))
        if np.abs(change).max() <= least:
            continue
        # A clock that bends changes by as much just before and after; one that jumps does not.
        padded = np.pad(np.abs(change), width, constant_values=np.nan)
        around = np.fmin(padded[: len(change)], padded[2 * width :])
        sudden = np.abs(change) > 2.5 * np.nan_to_num(around)
        score = np.where(sudden, np.abs(change) / least, 0.0)
        place = int(score.argmax())
        if score[place] > 1 and (best is None or score[place] > best[0]):
            best = float(score[place]), place + width - 1, width
    if best is None:
        return None
    _, place, width = best
    begin = max(0, place - 2 * width)
    near = values[begin : place + 2 * width + 1]
    tried = np.arange(max(place - width + 1, 0), min(place + width, len(values) - 1)) - begin
    misfit = _misfit(near, tried + 1) + _misfit(near[::-1], len(near) - tried - 1)
    return begin + int(tried[misfit.argmin()])


def _misfit(values: Floats, counts: Ints) -> Floats:
    """How far the first values are from their median, in all, for each of these `counts` of values."""
    ordered = np.sort(np.where(np.arange(len(values)) < counts[:, np.newaxis], values, np.inf), axis=1)
    total = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(ordered, axis=1)], axis=1)
    # The upper half less the lower half; where a value is in the middle, it is its own median.
    each, half = np.arange(len(counts)), counts // 2
    misfit: Floats = (total[each, counts] - total[each, counts - half]) - total[each, half]
    return misfit


def _at_edges(series: _Series, after: list[int], least_ns: float) -> list[int]:
    """Steps near an edge, with one or two collectives on one side: their calls must not be longer.

    `after` are the steps that are known already. Returns positions as `_cuts` does.
    """
    level_ns = series.apart_ns
    cuts: list[int] = []
    inner = (after[0] if after else len(level_ns) - 1), (after[-1] + 1 if after else 0)
    for count in (2, 1):
        for edge, near, cut in (
            (slice(0, count), slice(count, min(count + 5, inner[0] + 1)), count - 1),
            (
                slice(len(level_ns) - count, None),
                slice(max(len(level_ns) - count - 5, inner[1]), len(level_ns) - count),
                len(level_ns) - count - 1,
            ),
        ):
            if near.stop - near.start < min(_WIDTHS) or (cuts and min(abs(cut - other) for other in cuts) < 3):
                continue
            by = level_ns[edge] - median(level_ns[near])
            longer = series.longer_ns[edge] - median(series.longer_ns[near])
            agree = np.ptp(by) < np.abs(by).min() / 4
            if np.abs(by).min() > least_ns and agree and (np.abs(longer) < 0.3 * np.abs(by)).all():
                cuts.append(cut)
    return cuts


def _off_line_ns(since: Floats, level_ns: Floats) -> float:
    """Twice what the four quarters of the window are off a line at most, in ns; 0 if that may be chance.

    For clocks with too few collectives for a curve.
    """
    count = 4
    number = np.arange(len(since)) * count // len(since)
    at, middle = medians(since, number, count), medians(level_ns, number, count)
    if len(since) < 3 * count or not np.ptp(at):
        return 0.0
    off = np.abs(middle - np.polyval(np.polyfit(at, middle, 1), at)).max()
    error = _OF_MEDIAN * _noise_ns(level_ns) / np.sqrt(len(since) / count)
    return 2 * float(off) if off > 3 * error else 0.0


class _Knots(NamedTuple):
    """A curve through medians: how far the clock is off a line at times since the first collective; and its error."""

    since: Floats
    by_ns: Floats
    extra_ns: float


def _curve(since: Floats, level_ns: Floats) -> _Knots | None:
    """The curve that ends follow beyond a line; None if that may be chance."""
    count = min(max(len(since) // (2 * _LEAST_IN_KNOT), min(len(since) // _LEAST_IN_KNOT, 8)), _MOST_KNOTS)
    if count < _LEAST_KNOTS:
        return None
    number = np.arange(len(since)) * count // len(since)
    at, middle = medians(since, number, count), medians(level_ns, number, count)
    if not np.ptp(at):
        return None
    slopes = np.diff(middle) / np.maximum(np.diff(at), 1)
    expected = np.interp(since, at, middle)
    left = level_ns - expected
    error = _OF_MEDIAN * _OF_NORMAL * median(np.abs(left)) / np.sqrt(len(since) / count)
    error = max(error, _LEAST_NOISE_NS / 2)
    off = middle - np.polyval(np.polyfit(at, middle, 1), at)
    smooth = np.square(np.diff(off)).sum() < np.square(off).sum()
    large = np.abs(off).max() > max(_LEAST_CURVE_NS, 5 * error)
    if not (smooth and large and np.square(off / error).mean() > 6):
        return None
    line = np.polyfit(at, middle, 1)
    # Outside of the first and last knots along the parabola through three.
    begin = middle[0] - at[0] * (slopes[0] - (slopes[1] - slopes[0]) * 0.75)
    end = middle[-1] + (since[-1] - at[-1]) * (slopes[-1] + (slopes[-1] - slopes[-2]) * 0.75)
    # Between knots, a curve leaves its chord by an eighth of the change of slope; outside, by up to twice that.
    bulge = float(np.abs(np.diff(np.diff(middle))).max()) / 4 + float(np.abs(off).max()) / 8
    at, middle = np.concatenate([[0.0], at, [since[-1]]]), np.concatenate([[begin], middle, [end]])
    # What no clock drifts by in the long run is a part of the curve.
    line = line if abs(line[0]) <= LARGEST_SLOPE else np.array([middle.mean()])
    return _Knots(at, middle - np.polyval(line, at), _SURE * error + bulge)


class _Side(NamedTuple):
    """When one or more jumps began and ended, since the first collective, and the levels before, between and behind."""

    begins: float
    ends: float
    levels: list[float]


def _drawn(at_ns: Ints, steps: _Steps, knots: _Knots | None) -> Bends:
    """Bends with the knots of a curve, and with one knot on each side of each jump.

    A clock that is set back shows some times twice, and what was before the jump is then unclear as well.
    """
    base, total = int(at_ns[0]), 0.0
    smooth = knots.since if knots is not None else np.zeros(0)
    sides: list[_Side] = []
    for jump in steps.jumps:
        # Set back between T and T + by: until T it had shown times up to T, and shows them from T + by on again.
        back = max(-jump.by_ns, 0.0)
        begins, ends = float(at_ns[jump.before] - base) - back, float(at_ns[jump.behind] - base) + back
        levels = [total, total + jump.by_ns]
        while sides and begins <= sides[-1].ends:
            before = sides.pop()
            begins, ends, levels = min(begins, before.begins), max(ends, before.ends), [*before.levels, levels[-1]]
        sides.append(_Side(begins, ends, levels))
        total += jump.by_ns
    for begins, ends, _ in sides:
        smooth = smooth[(smooth < begins) | (smooth > ends)]
    knot = [(time, next((s.levels[-1] for s in reversed(sides) if time >= s.ends), 0.0), False) for time in smooth]
    for begins, ends, levels in sides:
        times = np.linspace(begins, ends, len(levels)).tolist()
        knot += [(time, level, time < ends) for time, level in zip(times, levels, strict=True)]
    knot.sort(key=lambda each: each[0])
    times = np.array([time for time, _, _ in knot])
    by_ns = np.array([by for _, by, _ in knot])
    if knots is not None:
        by_ns = by_ns + np.interp(times, knots.since, knots.by_ns)
    return Bends(base + times.astype(np.int64), np.rint(by_ns).astype(np.int64), np.array([j for _, _, j in knot]))
