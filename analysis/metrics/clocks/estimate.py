"""Decide what to believe about each rank's clock, and how wrong that may be.

Ends of collectives show how far clocks differ, but ends also differ by chance, by the clocks of GPUs of one host, and
by ranks that always end late. So three things are believed, in this order:

- *bounds*: no rank ends before all have begun. A clock that breaks them is wrong, whatever else is seen;
- *the raw clock*, where ends do not contradict it: two witnesses agree that do not know of each other, as
  hosts are usually synchronised;
- *the median of ends*, where they do. It may be off by as much as a rank always ends late, so the uncertainty covers
  that, up to the bounds.

Definitions: docs/metrics/clocks.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .bends import Straightened, straightened
from .ends import (
    COINCIDE_NS,
    RESOLUTION_NS,
    Ends,
    apart_ns,
    bounds,
    fitted_frame,
    of_hosts,
    of_others,
    shared_collectives,
    trends,
)
from .frame import LARGEST_DRIFT, ClockFrame, Flags, Floats, Ints
from .medians import LEAST_FOLLOWED, Centres, Trend, centres, trend

_SIGNIFICANT = 5.0
_SURE = 4.0
# GPUs convert their clocks to that of their host, with errors of up to 73 us in traces of four V100.
_GPU_NS, _MOST_GPU_NS = 10_000, COINCIDE_NS
_ROUNDS = 60
# A rank is clearly last if it comes later than all others by one of these margins; each side must be so three times.
_CLEARLY_LAST_NS, _LEAST_LAST = (5_000, 10_000, 20_000, 60_000), 3
# Hosts of which nothing is known may always end later than others by that much. Ranks of one host differ by up to
# 96 us, in few runs; all ranks of a host together by less.
_UNSEEN_NS = 50_000.0
_UNBOUND = 1e18


@dataclass(frozen=True)
class ClockEstimate:
    """Clocks against the first of their component, how wrong they may be in ns, and which are doubtful.

    `late` are clocks that are used raw although ends say otherwise: their ranks may always end late. Shape (clocks,).
    """

    frame: ClockFrame
    uncertainty_ns: Ints
    late: Flags


def estimated(ends: Ends, hosts: Ints, zero_ns: int, *, shared: Flags, named: Flags) -> ClockEstimate:
    """The clocks of ranks from the ends of their collectives; `hosts` by clock, from 0.

    `shared` says which clocks are exactly those of their hosts, as clocks of CPUs are; `named`, of which the host is
    known. Before anything is estimated, raw clocks that agree are taken for those of one host.
    """
    together = _as_one_host(ends, hosts, named)
    # A jump would look like a drift, and a drift like a wrong offset: so bends come out first.
    straight = straightened(ends, together, shared=shared)
    estimate = _on_straight(straight, hosts, together, zero_ns, shared=shared, named=named)
    # A bend within what the clock is uncertain by is covered, and following it would leave calls beside it unsplit.
    seen = {
        clock: bends for clock, bends in straight.bends.items() if bends.largest_ns > estimate.uncertainty_ns[clock]
    }
    if len(seen) == len(straight.bends):
        return estimate
    return _on_straight(straight.following(seen, ends), hosts, together, zero_ns, shared=shared, named=named)


def _on_straight(
    straight: Straightened, hosts: Ints, together: Ints, zero_ns: int, *, shared: Flags, named: Flags
) -> ClockEstimate:
    """The same where clocks have no bends; ranks of unknown hosts that agree are `together` on one."""
    ends = straight.ends
    frame, drifts = fitted_frame(ends, together, zero_ns)
    if not len(ends.collective):
        return ClockEstimate(frame, np.full(len(hosts), RESOLUTION_NS), np.zeros(len(hosts), dtype=bool))
    seen = _Seen.of(ends, frame, together, drifts, shared)
    frame, corrected, on_host = _gpus_corrected(seen, frame)
    frame = frame.referred()
    frame, raw, doubtful_ns = _raw_where_that_agrees(seen, frame, corrected)
    frame = _moved_into_bounds(ends, frame, together, raw).referred()
    confirmed = raw & (doubtful_ns == 0)
    uncertainty = _uncertainty(seen, frame, hosts, confirmed, doubtful_ns, corrected)
    uncertainty += np.rint(straight.extra_ns).astype(np.int64)
    frame = _unnamed_kept_raw(frame, straight, uncertainty, named)
    return ClockEstimate(replace(frame, bends=straight.bends), uncertainty, on_host | (doubtful_ns > 0))


def _unnamed_kept_raw(frame: ClockFrame, straight: Straightened, uncertainty_ns: Ints, named: Flags) -> ClockFrame:
    """The frame with raw clocks where no host is known and the raw clock lies within what the estimate is uncertain by.

    Such ranks may well be of one host; then raw is exact, and an estimate that may be off by more is no better guess.
    """
    span_ns = float(np.ptp(frame.common(straight.ends.clock, straight.ends.end_ns)))
    off_ns = np.abs(frame.offset_ns) + np.abs(frame.drift) * span_ns
    raw = ~named & (off_ns <= uncertainty_ns)
    raw[list(straight.bends)] = False
    return frame.moved(raw, -frame.offset_ns[raw], -frame.drift[raw])


def rough(ends: Ends, hosts: Ints, zero_ns: int, *, shared: Flags) -> ClockFrame:
    """The clocks of ranks by their ends alone, not against the first one: a cheaper `estimated`."""
    straight = straightened(ends, hosts, shared=shared, curved=False)
    frame, drifts = fitted_frame(straight.ends, hosts, zero_ns)
    if len(ends.collective):
        frame = _gpus_corrected(_Seen.of(straight.ends, frame, hosts, drifts, shared), frame)[0]
    return replace(frame, bends=straight.bends)


def _as_one_host(ends: Ends, hosts: Ints, named: Flags) -> Ints:
    """The hosts, with ranks of unknown ones together if their raw clocks agree.

    Each is compared with the rank among those that agree so far with which it shares most collectives.
    """
    result, left = hosts.copy(), np.flatnonzero(~named & np.isin(np.arange(len(hosts)), ends.clock)).tolist()
    rows = {clock: np.flatnonzero(ends.clock == clock) for clock in left}
    common = shared_collectives(ends.collective, ends.clock, len(hosts)) if left else np.zeros((0, 0))
    while left:
        agreeing = [left.pop(0)]
        waiting = list(left)
        while waiting:
            clock = max(waiting, key=lambda each: common[each, agreeing].max())
            other = max(agreeing, key=lambda each: common[clock, each])
            if not common[clock, other]:
                break
            waiting.remove(clock)
            if _raw_agree(ends, rows[clock], rows[other]):
                agreeing.append(clock)
                left.remove(clock)
        result[agreeing] = hosts[agreeing[0]]
    return np.unique(result, return_inverse=True)[1].ravel()


def _raw_agree(ends: Ends, ours: Ints, theirs: Ints) -> bool:
    """Could two ranks have met in all collectives by their raw clocks, and do their ends differ as on one host?"""
    _, i, j = np.intersect1d(ends.collective[ours], ends.collective[theirs], return_indices=True)
    ours, theirs = ours[i], theirs[j]
    if (ends.start_ns[ours] - ends.end_ns[theirs]).max() > _GPU_NS:
        return False
    if (ends.start_ns[theirs] - ends.end_ns[ours]).max() > _GPU_NS:
        return False
    apart = (ends.end_ns[ours] - ends.end_ns[theirs]).astype(np.float64)
    centre = centres(apart, np.zeros(len(apart), dtype=np.int64), 1)
    if abs(centre.centre[0]) > max(_GPU_NS, _SIGNIFICANT * centre.error[0]):
        return False
    since = ends.end_ns[ours] - ends.end_ns[ours].min()
    drift = trend(since, apart)
    return drift is None or not drift.drifts or abs(drift.slope) * drift.span_ns <= _GPU_NS


@dataclass(frozen=True)
class _Seen:
    """What ends say about each clock, on a frame that is right for hosts: how much later than others it ends."""

    ends: Ends
    hosts: Ints
    of_clock: Centres
    of_host: Floats
    drifts: dict[int, Trend]
    unseen: Floats
    shared: Flags

    @classmethod
    def of(cls, ends: Ends, frame: ClockFrame, hosts: Ints, drifts: dict[int, Trend], shared: Flags) -> _Seen:
        """Computed from the ends, on the clocks of the frame."""
        of_clock = centres(apart_ns(ends, frame), ends.clock, len(hosts))
        of_host = of_hosts(of_clock.centre, hosts)
        return cls(ends, hosts, of_clock, of_host, drifts, _unseen_drift(ends, frame, hosts), shared)

    @property
    def beyond_host_ns(self) -> Floats:
        """How much later each clock's calls end than those of its host; 0 where nothing is known."""
        beyond: Floats = np.nan_to_num(self.of_clock.centre - self.of_host[self.hosts])
        return beyond

    @property
    def gpu_ns(self) -> Floats:
        """How much of that a GPU's clock may account for."""
        beyond = self.beyond_host_ns
        return np.where((np.abs(beyond) <= _MOST_GPU_NS) & ~self.shared, beyond, 0.0)

    @property
    def error_ns(self) -> Floats:
        """Standard error of the host of each clock: that of its clocks, as what disturbs one may disturb all."""
        known = ~np.isnan(self.of_clock.error)
        count = np.bincount(self.hosts[known], minlength=len(self.of_host))
        total = np.bincount(self.hosts[known], self.of_clock.error[known], minlength=len(self.of_host))
        error: Floats = (total / np.maximum(count, 1))[self.hosts]
        return error

    @property
    def drifting(self) -> Flags:
        """Which clocks are of hosts that drift."""
        return np.isin(self.hosts, list(self.drifts))


def _unseen_drift(ends: Ends, frame: ClockFrame, hosts: Ints) -> Floats:
    """By how much the clock of each clock's host may drift beyond the frame without being seen.

    What ends follow but no clock does is believed of neither, so it is uncertain.
    """
    result = np.full(len(hosts), LARGEST_DRIFT)
    if len(np.unique(hosts[ends.clock])) == 1:
        # Raw clocks that agree were compared one by one.
        result[np.bincount(ends.clock, minlength=len(hosts)) >= LEAST_FOLLOWED] = 0.0
    for host, line in trends(ends, frame, hosts).items():
        steep = line.significant and not line.drifts
        result[hosts == host] = abs(line.slope) if steep else min(line.slope_error, LARGEST_DRIFT)
    return result


def _gpus_corrected(seen: _Seen, frame: ClockFrame) -> tuple[ClockFrame, Flags, Flags]:
    """The frame corrected for clocks of GPUs that differ from their hosts', which, and what clearly ends late instead.

    A difference larger than conversion errors is the rank's own lateness, unless that is impossible.
    """
    beyond, error = seen.beyond_host_ns, np.nan_to_num(seen.of_clock.error)
    differs = (np.abs(beyond) > np.maximum(_GPU_NS, _SIGNIFICANT * error)) & ~seen.shared
    low, high = bounds(seen.ends, frame, np.arange(len(seen.hosts)))
    impossible = (low > RESOLUTION_NS) | (high < -RESOLUTION_NS)
    # Ranks of a host share its clock, and ends on one host differ by as much: only what is impossible is put right.
    corrected = differs & impossible
    return frame.moved(corrected, beyond[corrected]), corrected, differs & (np.abs(beyond) > _MOST_GPU_NS) & ~corrected


def _raw_where_that_agrees(seen: _Seen, frame: ClockFrame, corrected: Flags) -> tuple[ClockFrame, Flags, Floats]:
    """The frame with raw clocks where the ends do not contradict them; which these are, and the disagreement in ns.

    If a single host is off while all others agree, its ranks may always end late instead.
    """
    # What the clocks of GPUs were corrected by stays: only hosts are put back.
    gpu = np.where(corrected, seen.gpu_ns, 0.0)
    offset = frame.offset_ns - (gpu - gpu[frame.firsts])
    error = seen.error_ns + seen.error_ns[frame.firsts]
    steady = ~seen.drifting & ~seen.drifting[frame.firsts]
    agrees = np.abs(offset) <= np.maximum(RESOLUTION_NS, _SIGNIFICANT * error)
    low, high = bounds(seen.ends, frame, seen.hosts)
    possible = (-offset >= low[seen.hosts]) & (-offset <= high[seen.hosts])
    # If one host is off by much while all others agree, its clock is wrong or its ranks always end late. Nothing says
    # which, so the raw clock stays, and the whole disagreement is its uncertainty.
    others = np.array([agrees[seen.hosts != host].all() for host in range(int(seen.hosts.max()) + 1)])[seen.hosts]
    alone = ~agrees & others & possible & (len(np.unique(seen.hosts)) > 2) & (np.abs(offset) > COINCIDE_NS)
    raw = (agrees | alone) & steady
    return frame.moved(raw, -offset[raw]), raw, np.where(alone & steady, np.abs(offset), 0.0)


def _moved_into_bounds(ends: Ends, frame: ClockFrame, hosts: Ints, raw: Flags) -> ClockFrame:
    """The frame with offsets by which no rank leaves before all have arrived; in half steps, as the others move too."""
    kept = np.unique(hosts[raw])
    for _ in range(_ROUNDS):
        low, high = (np.clip(side, -_UNBOUND, _UNBOUND) for side in bounds(ends, frame, hosts))
        step = np.where(low > high, (low + high) / 2, np.clip(0, low, high)) / 2
        step[kept] *= np.abs(step[kept]) > RESOLUTION_NS
        if np.abs(step).max() < 1:
            break
        frame = frame.moved(np.arange(len(hosts)), step[hosts])
    return frame


def _uncertainty(
    seen: _Seen, frame: ClockFrame, hosts: Ints, confirmed: Flags, doubtful_ns: Floats, corrected: Flags
) -> Ints:
    """How wrong each offset against the first clock of its component may be, in ns; `hosts` as they are known.

    `confirmed` are those for which two witnesses agree: raw clocks and ends.
    """
    first, ends = frame.firsts, seen.ends
    same_host = hosts == hosts[first]
    # At the ends of the window an error of the drift adds as much again, or the drift itself where it is not known.
    half_ns = float(np.ptp(frame.common(ends.clock, ends.end_ns))) / 2
    unseen = np.where(hosts == hosts[first], 0.0, np.maximum(seen.unseen, seen.unseen[first]))
    by_ends = np.where(confirmed, 1, 3) * _SURE * (seen.error_ns + seen.error_ns[first]) * ~same_host
    by_ends += unseen * half_ns * np.where(unseen == LARGEST_DRIFT, 2, 1)
    # A difference between a GPU's clock and its host's may be the lateness of its rank, or chance: what is stated
    # covers the raw clock and the corrected one, whichever is used.
    gpu = seen.gpu_ns
    apart, error = np.abs(gpu - gpu[first]), np.nan_to_num(seen.of_clock.error)
    by_ends += np.where(apart > RESOLUTION_NS, apart, 0.0)
    by_ends += np.where(corrected, _SURE * error, 0.0)
    # A rank that is alone on its host may always end late: only bounds distinguish that from a clock that is off.
    alone = np.bincount(hosts)[hosts] == 1
    by_ends[(alone | alone[first]) & ~same_host & ~confirmed] = np.inf
    # So may all ranks of a host, which the lengths of their calls show if each host comes last at times.
    asymmetry = _asymmetry(seen, frame)
    by_ends += np.where(same_host | confirmed, 0.0, asymmetry)
    low, high = bounds(ends, frame, hosts)
    contradiction = np.maximum(np.nan_to_num(low - high, neginf=0.0), 0)[hosts] * ~same_host
    # A clock is off by at least this much, if no rank leaves before all have arrived.
    low, high = bounds(ends, frame, np.arange(len(hosts)))
    impossible = np.maximum(np.maximum(low, -high), 0.0)
    proven = _proven(ends, frame, unseen)
    by_ends[np.isinf(by_ends) & np.isinf(proven)] = COINCIDE_NS
    # What is proven holds whatever the ends say; what contradicts itself is wrong by at least the contradiction.
    total = np.maximum(RESOLUTION_NS, np.minimum(by_ends + RESOLUTION_NS, proven))
    total += contradiction + impossible + doubtful_ns
    total[first == np.arange(len(first))] = RESOLUTION_NS
    uncertainty: Ints = np.rint(total).astype(np.int64)
    return uncertainty


def _asymmetry(seen: _Seen, frame: ClockFrame) -> Floats:
    """By how much more the ranks of each clock's host may always end later than those of the first one's, in ns.

    The rank that comes last does not wait: its call lasts as long as moving the data does, and until it has noticed.
    So where both hosts clearly come last at times in collectives that are alike, the difference of these lengths is
    by how much later the one always ends, without any clock. If not, it may be as much as has been seen elsewhere.
    """
    ends, hosts = seen.ends, seen.hosts
    host, start = hosts[ends.clock], (frame.common(ends.clock, ends.start_ns) - frame.origin_ns[0]).astype(np.float64)
    lead = start - of_others(start, ends.collective, host)
    order = np.lexsort((-start, ends.collective))
    last = order[np.unique(ends.collective[order], return_index=True)[1]]
    took = (ends.end_ns - ends.start_ns).astype(np.float64)
    result = np.full(len(hosts), _UNSEEN_NS)
    for margin_ns in _CLEARLY_LAST_NS:
        clearly = last[lead[last] > margin_ns]
        count = int(hosts.max()) + 1
        keys, number = np.unique(ends.alike[clearly] * count + host[clearly], return_inverse=True)
        lengths = centres(took[clearly], number.ravel(), len(keys))
        known: dict[int, dict[int, tuple[float, float]]] = {}
        for key, size, length, error in zip(keys.tolist(), lengths.size, lengths.centre, lengths.error, strict=True):
            if size >= _LEAST_LAST:
                known.setdefault(key % count, {})[key // count] = (float(length), float(error))
        for clock, first in enumerate(frame.firsts.tolist()):
            own, other = known.get(int(hosts[clock]), {}), known.get(int(hosts[first]), {})
            each = [
                abs(own[alike][0] - other[alike][0]) + 2 * (own[alike][1] + other[alike][1])
                for alike in own.keys() & other.keys()
            ]
            # A host that ends later by more than the margin might have come last only because of that.
            if each and max(each) < margin_ns:
                result[clock] = min(result[clock], max(each))
    return result


def _proven(ends: Ends, frame: ClockFrame, unseen: Floats) -> Floats:
    """How far each offset can be off at most, by the collectives that its clock shares with the first one.

    They bound it when they begin and end; in between, and before and after, it may drift as much as nobody has seen.
    """
    first = frame.firsts
    start, end = (
        (frame.common(ends.clock, times) - frame.origin_ns[0]).astype(np.float64)
        for times in (ends.start_ns, ends.end_ns)
    )
    of_first = np.full((2, ends.collectives), np.nan)
    is_first = first[ends.clock] == ends.clock
    of_first[0, ends.collective[is_first]] = start[is_first]
    of_first[1, ends.collective[is_first]] = end[is_first]
    result = np.full(len(first), np.inf)
    for clock in np.unique(ends.clock).tolist():
        own = np.flatnonzero(ends.clock == clock)
        lasts = np.array([start[own].min(), end[own].max()])
        own = own[~np.isnan(of_first[0, ends.collective[own]])]
        high, low = end[own] - of_first[0, ends.collective[own]], start[own] - of_first[1, ends.collective[own]]
        if len(own) and high.min() >= 0 >= low.max():
            ahead, behind = (_reached(end[own], bound, lasts, float(unseen[clock])) for bound in (high, -low))
            result[clock] = max(ahead, behind)
    return result


def _reached(at: Floats, bound_ns: Floats, lasts: Floats, drift: float) -> float:
    """How far a clock can get between two times if it is bounded at some, and drifts by no more than this."""
    order = np.argsort(at)
    at, bound_ns = at[order], bound_ns[order]
    before = np.minimum.accumulate(bound_ns - drift * at) + drift * at
    behind = np.minimum.accumulate((bound_ns + drift * at)[::-1])[::-1] - drift * at
    most = drift * np.diff(at)
    # Both lines rise towards each other: they meet in between, or one is lower all the way.
    inside = np.minimum((before[:-1] + behind[1:] + most) / 2, np.minimum(before[:-1], behind[1:]) + most)
    outside = behind[0] + drift * max(at[0] - lasts[0], 0.0), before[-1] + drift * max(lasts[1] - at[-1], 0.0)
    return float(max(*outside, inside.max(initial=0.0), np.minimum(before, behind).max()))
