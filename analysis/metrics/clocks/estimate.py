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

from ...core.arrays import Flags, Floats, Ints
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
from .frame import LARGEST_DRIFT, ClockFrame
from .medians import LEAST_FOLLOWED, Centres, Trend, centres, rows_of, trend

_SIGNIFICANT = 5.0
_SURE = 4.0
# GPUs convert their clocks to that of their host, with errors of up to 73 us in traces of four V100.
_GPU_NS, _MOST_GPU_NS = 10_000, COINCIDE_NS
_ROUNDS = 60
_OFTEN_SHARED = 32
# A rank is clearly last if it comes later than all others by one of these margins; each side must be so three times.
_CLEARLY_LAST_NS, _LEAST_LAST = (5_000, 10_000, 20_000, 60_000), 3
# Hosts of which nothing is known may always end later than others by that much. Ranks of one host differ by up to
# 96 us, in few runs; all ranks of a host together by less.
_UNSEEN_NS = 50_000.0
_UNBOUND = 1e18


@dataclass(frozen=True)
class ClockEstimate:
    """The clocks, against the first one of their component, and how wrong each may be in ns; all by clock.

    `late` are clocks that are used raw although ends say otherwise, since their ranks may always end late.
    """

    frame: ClockFrame
    uncertainty_ns: Ints
    late: Flags


def estimated(ends: Ends, hosts: Ints, zero_ns: int, *, shared: Flags, named: Flags) -> ClockEstimate:
    """Estimate the clocks of ranks from the ends of their collectives.

    `hosts` gives the host of each clock, from 0, and `named` whether it is known: otherwise each rank has a host of its
    own, and those whose raw clocks agree are taken for one host. `shared` says which clocks are exactly those of their
    hosts, as clocks of CPUs are, while GPUs convert them. `zero_ns` is their first origin.
    """
    together = _as_one_host(ends, hosts, named)
    # A jump would look like a drift, and a drift like a wrong offset: so bends come out first.
    straight = straightened(ends, together, shared=shared)
    estimate = _on_straight(straight, hosts, together, zero_ns, shared=shared, named=named)
    # A bend within what the clock is uncertain by is covered, and following it would leave calls beside it unsplit.
    large = {
        clock: bends for clock, bends in straight.bends.items() if bends.largest_ns > estimate.uncertainty_ns[clock]
    }
    if len(large) == len(straight.bends):
        return estimate
    return _on_straight(straight.following(large, ends), hosts, together, zero_ns, shared=shared, named=named)


def _on_straight(
    straight: Straightened, hosts: Ints, together: Ints, zero_ns: int, *, shared: Flags, named: Flags
) -> ClockEstimate:
    """Estimate clocks whose bends have been taken out.

    `together` are the hosts by which clocks are fitted, where ranks of unknown hosts that agree share one; others as
    for `estimated`.
    """
    ends = straight.ends
    frame, drifts = fitted_frame(ends, together, zero_ns)
    if not len(ends.collective):
        return ClockEstimate(frame, np.full(len(hosts), RESOLUTION_NS), np.zeros(len(hosts), dtype=bool))
    lateness = _Lateness.of(ends, frame, together, drifts, shared)
    frame, corrected, on_host = _gpus_corrected(lateness, frame)
    frame = frame.referred()
    frame, raw, doubtful_ns = _raw_where_ends_agree(lateness, frame, corrected)
    frame = _moved_into_bounds(ends, frame, together, raw).referred()
    confirmed = raw & (doubtful_ns == 0)
    uncertainty = _uncertainty(lateness, frame, hosts, confirmed, doubtful_ns, corrected)
    uncertainty += np.rint(straight.extra_ns).astype(np.int64)
    frame = _unnamed_kept_raw(frame, straight, uncertainty, named)
    return ClockEstimate(replace(frame, bends=straight.bends), uncertainty, on_host | (doubtful_ns > 0))


def _unnamed_kept_raw(frame: ClockFrame, straight: Straightened, uncertainty_ns: Ints, named: Flags) -> ClockFrame:
    """The frame with raw clocks where no host is known, and the raw clock is within the uncertainty of the estimate.

    Such ranks may well be of one host. Then the raw clock is exact, and the estimate is no better guess.
    """
    span_ns = float(np.ptp(frame.common(straight.ends.clock, straight.ends.end_ns)))
    off_ns = np.abs(frame.offset_ns) + np.abs(frame.drift) * span_ns
    raw = ~named & (off_ns <= uncertainty_ns)
    raw[list(straight.bends)] = False
    return frame.moved(raw, -frame.offset_ns[raw], -frame.drift[raw])


def rough(ends: Ends, hosts: Ints, zero_ns: int, *, shared: Flags) -> ClockFrame:
    """The clocks of ranks by their ends alone: cheaper than `estimated`, and enough to match by time.

    Offsets are not against the first clock, raw clocks are not preferred, and no uncertainty is given.
    """
    straight = straightened(ends, hosts, shared=shared, curved=False)
    frame, drifts = fitted_frame(straight.ends, hosts, zero_ns)
    if len(ends.collective):
        frame = _gpus_corrected(_Lateness.of(straight.ends, frame, hosts, drifts, shared), frame)[0]
    return replace(frame, bends=straight.bends)


def _as_one_host(ends: Ends, hosts: Ints, named: Flags) -> Ints:
    """The hosts, but ranks of unknown hosts share one if their raw clocks agree; by clock, from 0.

    Each rank is compared with one of those that agree so far: the one with which it shares most collectives.
    """
    result, left = hosts.copy(), ~named & np.isin(np.arange(len(hosts)), ends.clock)
    if not left.any():
        return np.unique(result, return_inverse=True)[1].ravel()
    rows = rows_of(ends.clock, len(hosts))
    common = shared_collectives(ends.collective, ends.clock, len(hosts))
    start_ns, end_ns = _often_shared(ends, len(hosts))
    while left.any():
        first = int(left.argmax())
        agreeing, most = [first], common[first]
        left[first] = False
        # Nearly all that do not agree with the first one are told by few collectives, all of them at once.
        before = (start_ns - end_ns[first] > _GPU_NS) | (start_ns[first] - end_ns > _GPU_NS)
        waiting = left & ~before.any(axis=1)
        while waiting.any():
            clock = int(np.where(waiting, most, -1.0).argmax())
            other = agreeing[int(common[clock, agreeing].argmax())]
            if not common[clock, other]:
                break
            waiting[clock] = False
            if _raw_agree(ends, rows[clock], rows[other]):
                agreeing.append(clock)
                left[clock], most = False, np.maximum(most, common[clock])
        result[agreeing] = hosts[first]
    return np.unique(result, return_inverse=True)[1].ravel()


def _often_shared(ends: Ends, clocks: int) -> tuple[Floats, Floats]:
    """Start and end of the collectives that most clocks have, in ns since the first end; of shape (clocks, some).

    Where a clock lacks one, its start and end are where they contradict nothing.
    """
    often = np.argsort(-np.bincount(ends.collective), kind="stable")[:_OFTEN_SHARED]
    place = np.full(ends.collectives, -1)
    place[often] = np.arange(len(often))
    shown = place[ends.collective] >= 0
    at, base = (ends.clock[shown], place[ends.collective[shown]]), ends.end_ns.min()
    start_ns, end_ns = np.full((clocks, len(often)), -np.inf), np.full((clocks, len(often)), np.inf)
    start_ns[at], end_ns[at] = ends.start_ns[shown] - base, ends.end_ns[shown] - base
    return start_ns, end_ns


def _raw_agree(ends: Ends, ours: Ints, theirs: Ints) -> bool:
    """Whether two ranks may share a clock: by raw clocks their calls overlap, and their ends differ as on one host.

    `ours` and `theirs` are their rows of `ends`.
    """
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
class _Lateness:
    """How much later than others each clock ends its collectives, on a frame that is right for hosts; in ns.

    `of_clock` is by clock, `of_host` by host; `drifts` has the trends of hosts that drift, and `unseen` is the drift
    of each clock that may remain unseen.
    """

    ends: Ends
    hosts: Ints
    of_clock: Centres
    of_host: Floats
    drifts: dict[int, Trend]
    unseen: Floats
    shared: Flags

    @classmethod
    def of(cls, ends: Ends, frame: ClockFrame, hosts: Ints, drifts: dict[int, Trend], shared: Flags) -> _Lateness:
        """The lateness of each clock by the ends, on the clocks of the frame."""
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
        """How much of `beyond_host_ns` the clock of a GPU may account for; the rest is the rank's own lateness."""
        beyond = self.beyond_host_ns
        return np.where((np.abs(beyond) <= _MOST_GPU_NS) & ~self.shared, beyond, 0.0)

    @property
    def error_ns(self) -> Floats:
        """Standard error of what is known of each clock's host: the mean over its clocks, not less.

        What makes one rank of a host end late may make all of them end late.
        """
        known = ~np.isnan(self.of_clock.error)
        count = np.bincount(self.hosts[known], minlength=len(self.of_host))
        total = np.bincount(self.hosts[known], self.of_clock.error[known], minlength=len(self.of_host))
        error: Floats = (total / np.maximum(count, 1))[self.hosts]
        return error

    @property
    def drifting(self) -> Flags:
        """Whether the host of each clock drifts."""
        return np.isin(self.hosts, list(self.drifts))


def _unseen_drift(ends: Ends, frame: ClockFrame, hosts: Ints) -> Floats:
    """How much faster the host of each clock may run than the frame says without ends showing it; dimensionless.

    If ends follow a line that is too steep for a clock, it is not followed: so the clock is uncertain by as much.
    """
    result = np.full(len(hosts), LARGEST_DRIFT)
    if len(np.unique(hosts[ends.clock])) == 1:
        # Raw clocks that agree were compared one by one.
        result[np.bincount(ends.clock, minlength=len(hosts)) >= LEAST_FOLLOWED] = 0.0
    for host, line in trends(ends, frame, hosts).items():
        steep = line.significant and not line.drifts
        result[hosts == host] = abs(line.slope) if steep else min(line.slope_error, LARGEST_DRIFT)
    return result


def _gpus_corrected(lateness: _Lateness, frame: ClockFrame) -> tuple[ClockFrame, Flags, Flags]:
    """Correct the clocks of GPUs that differ from those of their hosts.

    Returns the frame, which clocks are corrected, and which ranks clearly end late instead. A difference is taken for
    the rank's own lateness, unless a rank would then end before all have begun: that is impossible, so it is the clock.
    """
    beyond, error = lateness.beyond_host_ns, np.nan_to_num(lateness.of_clock.error)
    differs = (np.abs(beyond) > np.maximum(_GPU_NS, _SIGNIFICANT * error)) & ~lateness.shared
    low, high = bounds(lateness.ends, frame, np.arange(len(lateness.hosts)))
    impossible = (low > RESOLUTION_NS) | (high < -RESOLUTION_NS)
    # Ranks of a host share its clock, and ends on one host differ by as much: only what is impossible is put right.
    corrected = differs & impossible
    return frame.moved(corrected, beyond[corrected]), corrected, differs & (np.abs(beyond) > _MOST_GPU_NS) & ~corrected


def _raw_where_ends_agree(lateness: _Lateness, frame: ClockFrame, corrected: Flags) -> tuple[ClockFrame, Flags, Floats]:
    """Use raw clocks where the ends do not contradict them.

    Returns the frame, which clocks are raw, and by how much, in ns, ends disagree with a raw clock that is used all the
    same: that of a single host that is off while all others agree, as its ranks may always end late instead.
    """
    # What the clocks of GPUs were corrected by stays: only hosts are put back.
    gpu = np.where(corrected, lateness.gpu_ns, 0.0)
    offset = frame.offset_ns - (gpu - gpu[frame.firsts])
    error = lateness.error_ns + lateness.error_ns[frame.firsts]
    steady = ~lateness.drifting & ~lateness.drifting[frame.firsts]
    agrees = np.abs(offset) <= np.maximum(RESOLUTION_NS, _SIGNIFICANT * error)
    low, high = bounds(lateness.ends, frame, lateness.hosts)
    possible = (-offset >= low[lateness.hosts]) & (-offset <= high[lateness.hosts])
    # If one host is off by much while all others agree, its clock is wrong or its ranks always end late. Nothing says
    # which, so the raw clock stays, and the whole disagreement is its uncertainty.
    others = np.array([agrees[lateness.hosts != host].all() for host in range(int(lateness.hosts.max()) + 1)])[
        lateness.hosts
    ]
    alone = ~agrees & others & possible & (len(np.unique(lateness.hosts)) > 2) & (np.abs(offset) > COINCIDE_NS)
    raw = (agrees | alone) & steady
    return frame.moved(raw, -offset[raw]), raw, np.where(alone & steady, np.abs(offset), 0.0)


def _moved_into_bounds(ends: Ends, frame: ClockFrame, hosts: Ints, raw: Flags) -> ClockFrame:
    """The frame with offsets by which no rank ends before all have begun.

    Clocks move by half of what is needed at a time, as those that they are compared with move as well. Raw clocks move
    only if the bounds leave no choice.
    """
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
    lateness: _Lateness, frame: ClockFrame, hosts: Ints, confirmed: Flags, doubtful_ns: Floats, corrected: Flags
) -> Ints:
    """How wrong each offset may be, against the first clock of its component, in ns.

    `hosts` are the hosts that are known, `confirmed` the clocks for which two witnesses agree, raw clock and ends;
    `doubtful_ns` is from `_raw_where_ends_agree`, and `corrected` from `_gpus_corrected`.
    """
    first, ends = frame.firsts, lateness.ends
    same_host = hosts == hosts[first]
    # At the ends of the window an error of the drift adds as much again, or the drift itself where it is not known.
    half_ns = float(np.ptp(frame.common(ends.clock, ends.end_ns))) / 2
    unseen = np.where(hosts == hosts[first], 0.0, np.maximum(lateness.unseen, lateness.unseen[first]))
    by_ends = np.where(confirmed, 1, 3) * _SURE * (lateness.error_ns + lateness.error_ns[first]) * ~same_host
    by_ends += unseen * half_ns * np.where(unseen == LARGEST_DRIFT, 2, 1)
    # A difference between a GPU's clock and its host's may be the lateness of its rank, or chance: what is stated
    # covers the raw clock and the corrected one, whichever is used.
    gpu = lateness.gpu_ns
    apart, error = np.abs(gpu - gpu[first]), np.nan_to_num(lateness.of_clock.error)
    by_ends += np.where(apart > RESOLUTION_NS, apart, 0.0)
    by_ends += np.where(corrected, _SURE * error, 0.0)
    # A rank that is alone on its host may always end late: only bounds distinguish that from a clock that is off.
    alone = np.bincount(hosts)[hosts] == 1
    by_ends[(alone | alone[first]) & ~same_host & ~confirmed] = np.inf
    # So may all ranks of a host, which the lengths of their calls show if each host comes last at times.
    asymmetry = _asymmetry(lateness, frame)
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


def _asymmetry(lateness: _Lateness, frame: ClockFrame) -> Floats:
    """How much later than the first clock's host each clock's host may always end, in ns.

    The rank that comes last does not wait: its call lasts only as long as data move, and until the rank notices the
    end. So if two hosts each come clearly last at times, in collectives that are alike, the durations of their calls
    then differ by how much later one of them always ends, and no clock is needed. If they do not, the difference may be
    as large as any that has been seen elsewhere.
    """
    ends, hosts = lateness.ends, lateness.hosts
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
            ours, other = known.get(int(hosts[clock]), {}), known.get(int(hosts[first]), {})
            each = [
                abs(ours[alike][0] - other[alike][0]) + 2 * (ours[alike][1] + other[alike][1])
                for alike in ours.keys() & other.keys()
            ]
            # A host that ends later by more than the margin might have come last only because of that.
            if each and max(each) < margin_ns:
                result[clock] = min(result[clock], max(each))
    return result


def _proven(ends: Ends, frame: ClockFrame, unseen: Floats) -> Floats:
    """How wrong each offset can be at most, by the collectives that its clock shares with the first one, in ns.

    No rank ends before all have begun, which bounds the offset whenever a collective begins and ends. At other times
    the clock may have drifted from there, by as much as ends would not have shown (`unseen`).
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
        rows = np.flatnonzero(ends.clock == clock)
        lasts = np.array([start[rows].min(), end[rows].max()])
        rows = rows[~np.isnan(of_first[0, ends.collective[rows]])]
        high, low = end[rows] - of_first[0, ends.collective[rows]], start[rows] - of_first[1, ends.collective[rows]]
        if len(rows) and high.min() >= 0 >= low.max():
            ahead, behind = (_largest_error_ns(end[rows], bound, lasts, float(unseen[clock])) for bound in (high, -low))
            result[clock] = max(ahead, behind)
    return result


def _largest_error_ns(at: Floats, bound_ns: Floats, lasts: Floats, drift: float) -> float:
    """How far a clock can be off between the two times `lasts`, if it drifts by no more than `drift`, in ns.

    `bound_ns` says how far it can be off at the times `at`.
    """
    order = np.argsort(at)
    at, bound_ns = at[order], bound_ns[order]
    before = np.minimum.accumulate(bound_ns - drift * at) + drift * at
    behind = np.minimum.accumulate((bound_ns + drift * at)[::-1])[::-1] - drift * at
    most = drift * np.diff(at)
    # Both lines rise towards each other: they meet in between, or one is lower all the way.
    inside = np.minimum((before[:-1] + behind[1:] + most) / 2, np.minimum(before[:-1], behind[1:]) + most)
    outside = behind[0] + drift * max(at[0] - lasts[0], 0.0), before[-1] + drift * max(lasts[1] - at[-1], 0.0)
    return float(max(*outside, inside.max(initial=0.0), np.minimum(before, behind).max()))
