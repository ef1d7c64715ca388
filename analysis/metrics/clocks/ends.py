"""Offsets, drifts and bounds of clocks, from collectives in which no rank can end before all have begun.

All ranks end such a collective at nearly the same time, so the difference of their ends is the difference of their
clocks. Single ends may be late, so only medians count. Bounds need no such assumption: a rank that seems to end before
another one has begun proves that a clock is off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.arrays import Flags, Floats, Ints
from .frame import ClockFrame
from .medians import Trend, medians, rows_of, trend

# Smaller differences say nothing: timestamps of torch 2.3 and older are whole microseconds.
RESOLUTION_NS = 2_000
# Ends of one collective differ by up to 96 us between the ranks of a host, in traces of eight GPUs.
COINCIDE_NS = 150_000
_ROUNDS = 30
_DENSE = 20_000_000


class Ends(NamedTuple):
    """Matched calls, one row per collective and rank; all of shape (rows,).

    Collectives are numbered from 0, and so are clocks, one per rank. Times are in ns by the rank's own clock. `alike`
    is a code for group, kind and size of the collective: if a rank ends one late for a reason that lies in the program,
    it ends all that are alike late.
    """

    collective: Ints
    clock: Ints
    start_ns: Ints
    end_ns: Ints
    alike: Ints

    @property
    def collectives(self) -> int:
        """How many collectives there are."""
        return int(self.collective.max()) + 1 if len(self.collective) else 0


def alike_codes(collective: Ints, group: Ints, kind: Ints, size: Ints) -> Ints:
    """`Ends.alike` of calls: sizes count as alike up to a factor of two. All of shape (calls,).

    A collective has the group, kind and size of its first call.
    """
    magnitude = np.log2(np.maximum(size, 0) + 1).astype(np.int64)
    first = np.unique(collective, return_index=True, return_inverse=True)
    code = (group * (int(kind.max(initial=0)) + 1) + kind) * (int(magnitude.max(initial=0)) + 1) + magnitude
    code = np.unique(code, return_inverse=True)[1]
    alike: Ints = code[first[1]][first[2].ravel()]
    return alike


def fitted_frame(ends: Ends, hosts: Ints, zero_ns: int) -> tuple[ClockFrame, dict[int, Trend]]:
    """The offset and drift of every host's clock by the ends alone, and the trend of each host that drifts, by host.

    `hosts` gives the host of each clock, from 0; `zero_ns` is the origin of all clocks.
    """
    frame = _linked(ends, hosts, ClockFrame.unlinked(hosts, zero_ns))
    drifts: dict[int, Trend] = {}
    if not len(ends.collective):
        return frame, drifts
    # Each clock is compared with the median of all, which moves with them: in rounds, until nothing moves.
    for _ in range(_ROUNDS):
        apart = apart_ns(ends, frame)
        of_host = of_hosts(medians(apart, ends.clock, len(hosts)), hosts)
        change = np.nan_to_num(of_host)[hosts]
        frame = frame.moved(slice(None), change)  # type: ignore[arg-type]
        drifting = {host: line for host, line in trends(ends, frame, hosts).items() if line.drifts}
        for host, line in drifting.items():
            frame = frame.moved(hosts == host, line.level_ns, line.slope)
        drifts |= drifting
        if not drifting and np.abs(change).max() < RESOLUTION_NS / 10:
            break
    return frame, drifts


def _linked(ends: Ends, hosts: Ints, frame: ClockFrame) -> ClockFrame:
    """Link the clocks of hosts that share collectives, those that share most first, by the median of their ends."""
    host = hosts[ends.clock]
    order = np.lexsort((ends.end_ns, host, ends.collective))
    key = ends.collective[order] * (int(hosts.max()) + 1) + host[order] if len(order) else order
    first = order[np.unique(key, return_index=True)[1]]
    collective, of_host, end = ends.collective[first], host[first], ends.end_ns[first]
    begins = np.unique(collective, return_index=True)[1]
    base = np.repeat(begins, np.diff([*begins, len(collective)]))
    pairs, which, counts = np.unique(
        np.column_stack([of_host[base], of_host]), axis=0, return_inverse=True, return_counts=True
    )
    middle = medians((end - end[base]).astype(np.float64), which.ravel(), len(pairs))
    for pair in np.argsort(-counts, kind="stable").tolist():
        a, b = pairs[pair].tolist()
        one, other = int(np.flatnonzero(hosts == a)[0]), int(np.flatnonzero(hosts == b)[0])
        if frame.component[one] != frame.component[other]:
            known = frame.offset_ns[other] - frame.offset_ns[one]
            frame = frame.linked(int(frame.component[other]), int(frame.component[one]), middle[pair] - known)
    return frame


def apart_ns(ends: Ends, frame: ClockFrame) -> Floats:
    """How much later each call ends than the median of its collective, by the clocks of the frame, in ns; (rows,)."""
    times = (frame.common(ends.clock, ends.end_ns) - frame.origin_ns[0]).astype(np.float64)
    middle = medians(times, ends.collective, ends.collectives)
    result: Floats = times - middle[ends.collective]
    return result


def of_hosts(of_clock: Floats, hosts: Ints) -> Floats:
    """One value per host: the median over its clocks that are not clearly later than its earliest one.

    `of_clock` is how much later each clock ends, in ns, NaN if not known. A rank may always end late, but none can end
    early: so what is late says nothing about the clock.
    """
    count = int(hosts.max()) + 1
    earliest = np.full(count, np.inf)
    np.fmin.at(earliest, hosts, of_clock)
    good = ~np.isnan(of_clock) & (of_clock <= earliest[hosts] + COINCIDE_NS)
    return medians(of_clock[good], hosts[good], count)


def trends(ends: Ends, frame: ClockFrame, hosts: Ints) -> dict[int, Trend]:
    """The trend of each host's ends against those of the others, by host; only of hosts with enough ends for one."""
    apart, host = apart_ns(ends, frame), hosts[ends.clock]
    if len(np.unique(host)) < 2:
        return {}
    # A constant lateness of one rank of the host is not drift.
    apart = apart - np.nan_to_num(medians(apart, ends.clock, len(hosts)))[ends.clock]
    since = ends.end_ns - frame.origin_ns[ends.clock]
    of_host = {}
    for number, rows in enumerate(rows_of(host, int(hosts.max()) + 1)):
        line = trend(since[rows], apart[rows])
        if line is not None:
            of_host[number] = line
    return of_host


def bounds(ends: Ends, frame: ClockFrame, group: Ints) -> tuple[Floats, Floats]:
    """The least and the most by which the clock of each group may be moved so that no rank ends before all have begun.

    `group` gives the group of each clock, from 0. The bounds, in ns, are of shape (groups,): <= 0 and >= 0 if the frame
    is possible as it is, infinite for a group that shares no collective with another one.
    """
    count = int(group.max()) + 1
    low, high = np.full(count, -np.inf), np.full(count, np.inf)
    of_group = group[ends.clock]
    start, end = (
        (frame.common(ends.clock, times) - frame.origin_ns[0]).astype(np.float64)
        for times in (ends.start_ns, ends.end_ns)
    )
    last_other = of_others(start, ends.collective, of_group)
    first_other = -of_others(-end, ends.collective, of_group)
    np.maximum.at(low, of_group, start - first_other)
    np.minimum.at(high, of_group, end - last_other)
    return low, high


def of_others(values: Floats, collective: Ints, group: Ints) -> Floats:
    """For each row, the largest value among other groups in its collective, -inf where there are none; (rows,)."""
    count = int(collective.max()) + 1 if len(collective) else 0
    order = np.lexsort((-values, collective))
    begins = np.searchsorted(collective[order], np.arange(count))
    best = order[begins[begins < len(order)]] if len(order) else order
    largest, owner = np.full(count, -np.inf), np.full(count, -1)
    largest[collective[best]], owner[collective[best]] = values[best], group[best]
    second = np.full(count, -np.inf)
    rest: Flags = group != owner[collective]
    np.maximum.at(second, collective[rest], values[rest])
    result: Floats = np.where(group == owner[collective], second[collective], largest[collective])
    return result


def shared_collectives(collective: Ints, unit: Ints, count: int) -> Floats:
    """How many collectives each two units share, of shape (count, count); counted in a part of them if there are many.

    `collective` and `unit`, a clock or host from 0 to `count` - 1, are of shape (rows,).
    """
    every = -(-(int(collective.max()) + 1) * count // _DENSE)
    used = collective % every == 0
    takes_part = np.zeros((int(collective.max()) // every + 1, count), dtype=np.float32)
    takes_part[collective[used] // every, unit[used]] = 1
    common: Floats = (takes_part.T @ takes_part).astype(np.float64)
    return common
