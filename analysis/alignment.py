"""Sequences of calls of one process group, rank after rank, laid onto one timeline of collectives.

All ranks of a group run the same collectives in the same order, but each trace shows a window of its own, and may lack
calls. Times decide where a window lies: nobody ends a synchronising collective before everybody has begun it, and all
end at nearly the same time. So a rank's clock needs to be known, or is found here, as the offset at which most ends
coincide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]
Flags = NDArray[np.bool_]

# Ends of one collective differ by up to 96 us between the ranks of a host, in traces of eight GPUs.
COINCIDE_NS = 150_000
_SEARCHED = 64
_PEAKS = 6
# Fewer ends may coincide by chance.
_LEAST_COINCIDING = 4
_BINS = 16
_LEAST_DRIFT_NS = 5_000
_SIGNIFICANT = 5.0
_TIMES = ("last_start", "first_end", "end", "order")
_UNKNOWN = -1
_MUST_AGREE = ("dtype", "size", "seq", "comms_id")
_COMPARED = ("kind", *_MUST_AGREE, "last_start", "first_end", "synchronising")


@dataclass(frozen=True)
class Calls:
    """Calls of one rank, in order, or the collectives of a timeline, as columns of equal length; -1 is not known.

    `kind` indexes `compatible`, a square matrix that says which kinds can be the same collective. `row` is the call's
    position in the table, or the number of the collective. `order` are times that never decrease: ends on a GPU, where
    one stream runs the calls of a group; on CPUs, where several threads do, when they were issued.
    """

    row: Ints
    kind: Ints
    dtype: Ints
    size: Ints
    step: Ints
    seq: Ints
    comms_id: Ints
    synchronising: Flags
    last_start: Ints
    first_end: Ints
    end: Ints
    order: Ints

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: Ints | Flags | slice) -> Calls:
        """The calls at `index`."""
        return Calls(*(getattr(self, f.name)[index] for f in fields(self)))

    def on_clock(self, frame: ClockFrame, clock: int | Ints) -> Calls:
        """The same with the error of its clock, or clocks, taken away."""
        times = {name: getattr(self, name) - frame.ahead(clock, getattr(self, name)) for name in _TIMES}
        return Calls(**{f.name: times.get(f.name, getattr(self, f.name)) for f in fields(self)})

    def joined(self, other: Calls) -> Calls:
        """Both, in order."""
        both = Calls(*(np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)))
        return both.take(np.argsort(both.order, kind="stable"))


@dataclass
class ClockFrame:
    """How far clocks are ahead, as far as collectives link them: the state that matching builds up.

    ahead(t) = offset + drift x (t - origin) of each clock; clocks of one component are linked.
    """

    offset_ns: NDArray[np.float64]
    drift: NDArray[np.float64]
    component: Ints
    origin_ns: int

    @classmethod
    def unlinked(cls, count: int, origin_ns: int) -> ClockFrame:
        """Clocks of which nothing is known: each right, and alone."""
        return cls(np.zeros(count), np.zeros(count), np.arange(count), origin_ns)

    def ahead(self, clock: int | Ints, times_ns: Ints) -> Ints:
        """How much of each time is the clock's error, in ns."""
        error = self.offset_ns[clock] + self.drift[clock] * (times_ns - self.origin_ns)
        return np.rint(error).astype(np.int64)

    def linked(self, a: int, b: int) -> bool:
        """Is it known how far these clocks are apart?"""
        return bool(self.component[a] == self.component[b])

    def link(self, clock: int, base: int, ahead_ns: float) -> None:
        """`clock` is `ahead_ns` more ahead of `base` than the offsets say; all linked to it move along."""
        if not self.linked(clock, base):
            moved = self.component == self.component[clock]
            self.offset_ns[moved] += ahead_ns
            self.component[moved] = self.component[base]

    def correct(self, clock: int, level_ns: float, slope: float) -> None:
        """The clock is that much more ahead, and faster, than was known."""
        self.offset_ns[clock] += level_ns
        self.drift[clock] += slope


def link_by_ends(frame: ClockFrame, collective: Ints, clock: Ints, end_ns: Ints) -> None:
    """Link the clocks of ranks that share collectives: their ends nearly coincide. All arrays of one length."""
    table = pd.DataFrame({"collective": collective, "clock": clock, "end": end_ns})
    table = table.groupby(["collective", "clock"])["end"].min().reset_index()
    first = table.drop_duplicates("collective").set_index("collective")
    base = table["collective"].map(first["clock"])
    apart = table["end"] - table["collective"].map(first["end"])
    pairs = pd.DataFrame({"base": base, "clock": table["clock"], "apart": apart})[base != table["clock"]]
    medians = pairs.groupby(["base", "clock"])["apart"].agg(["median", "size"]).reset_index()
    ordered = medians.sort_values("size", ascending=False, kind="stable")
    for pair, other, median in zip(ordered["base"], ordered["clock"], ordered["median"], strict=True):
        known = frame.offset_ns[other] - frame.offset_ns[pair]
        frame.link(int(other), int(pair), float(median) - known)


def trend(since_ns: Ints, apart_ns: NDArray[np.float64]) -> tuple[float, float] | None:
    """Level in ns and slope of a drift, if what is apart shows one that cannot be chance; None if not.

    Through medians of bins, so that outliers do not count. Both arrays of one length.
    """
    if len(since_ns) < 2 * _BINS:
        return None
    parts = np.array_split(np.argsort(since_ns, kind="stable"), _BINS)
    at = np.array([np.median(since_ns[part]) for part in parts])
    middle = np.array([np.median(apart_ns[part]) for part in parts])
    centre = at.mean()
    slope, level = np.polyfit(at - centre, middle, 1)
    left = middle - level - slope * (at - centre)
    error = np.sqrt((left**2).sum() / (_BINS - 2) / ((at - centre) ** 2).sum())
    if abs(slope) * np.ptp(since_ns) < _LEAST_DRIFT_NS or abs(slope) < _SIGNIFICANT * error:
        return None
    return float(level - slope * centre), float(slope)


class Placement(NamedTuple):
    """For each call its position on the timeline or -1, and whether another position would have done as well."""

    position: Ints
    rivalled: Flags
    in_order: bool


class _Laid(NamedTuple):
    """Calls laid on a timeline as one run: how far ends are apart, and the fraction that is of another step there."""

    shift: int
    apart_ns: float
    other_step: float


class Offset(NamedTuple):
    """How far a clock is ahead of the timeline, how many ends then coincide, and whether only this offset does that."""

    offset_ns: int
    coinciding: int
    unique: bool


def fits(calls: Calls, timeline: Calls, compatible: Flags, slack_ns: int) -> Flags:
    """Elementwise: can this call be part of that collective?"""
    return same_kind(calls, timeline, compatible) & (~calls.synchronising | overlap(calls, timeline, slack_ns))


def same_kind(calls: Calls, timeline: Calls, compatible: Flags) -> Flags:
    """Elementwise: do kind, dtype, size and ids not contradict each other?"""
    result: Flags = compatible[calls.kind, timeline.kind]
    for name in _MUST_AGREE:
        one, other = getattr(calls, name), getattr(timeline, name)
        result = result & ((one == other) | (one == _UNKNOWN) | (other == _UNKNOWN))
    return result


def overlap(calls: Calls, timeline: Calls, slack_ns: int) -> Flags:
    """Elementwise: had everybody arrived before anybody left?"""
    arrived = np.maximum(calls.last_start, timeline.last_start)
    left = np.minimum(calls.first_end, timeline.first_end)
    result: Flags = arrived <= left + slack_ns
    return result


def place(calls: Calls, timeline: Calls, compatible: Flags, slack_ns: int) -> Placement:
    """Where the calls lie on the timeline, both on one clock: as one unbroken run if that fits, else one by one."""
    found: list[_Laid] = []
    for shift in _shifts(calls, timeline):
        low, high = max(0, -shift), min(len(calls), len(timeline) - shift)
        ours, theirs = calls.take(slice(low, high)), timeline.take(slice(low + shift, high + shift))
        if high > low and bool(fits(ours, theirs, compatible, slack_ns).all()):
            apart = float(np.median(np.abs(ours.end - theirs.end)))
            found.append(_Laid(shift, apart, 1.0 - _same_step(ours, theirs)))
    if not found:
        return _one_by_one(calls, timeline, compatible, slack_ns)
    best = min(found, key=lambda laid: laid.apart_ns)
    if best.apart_ns > COINCIDE_NS:  # then ends tell nothing: on CPUs one rank may be done long before another
        best = min(found, key=lambda laid: (laid.other_step, laid.apart_ns))
    index = np.arange(len(calls)) + best.shift
    inside = (index >= 0) & (index < len(timeline))
    return Placement(np.where(inside, index, -1), np.zeros(len(calls), dtype=bool), in_order=True)


def _same_step(ours: Calls, theirs: Calls) -> float:
    """Of the pairs whose training steps are both known, the fraction that agree; 0 without any."""
    known = (ours.step >= 0) & (theirs.step >= 0)
    return float((ours.step == theirs.step)[known].mean()) if known.any() else 0.0


def _shifts(calls: Calls, timeline: Calls) -> list[int]:
    """Differences of position that are worth a try: where most ends are nearest, and beside it."""
    if not len(calls) or not len(timeline):
        return []
    after = np.searchsorted(timeline.order, calls.order).clip(0, len(timeline) - 1)
    before = np.maximum(after - 1, 0)
    closer = np.abs(timeline.order[before] - calls.order) < np.abs(timeline.order[after] - calls.order)
    shifts, counts = np.unique(np.where(closer, before, after) - np.arange(len(calls)), return_counts=True)
    likely = int(shifts[counts.argmax()])
    tried = [likely, likely - 1, likely + 1, likely - 2, likely + 2]
    return tried + ([0] if len(calls) == len(timeline) and 0 not in tried else [])


def _one_by_one(calls: Calls, timeline: Calls, compatible: Flags, slack_ns: int) -> Placement:
    """In order, every call at the collective that it fits and whose end is nearest; some of either may be left over."""
    position = np.full(len(calls), -1, dtype=np.int64)
    rivalled = np.zeros(len(calls), dtype=bool)
    fit = _fit_one(calls, timeline, compatible, slack_ns)
    our_end, our_order, their_end, their_order = (
        column.tolist() for column in (calls.end, calls.order, timeline.end, timeline.order)
    )
    i, j, ours, theirs = 0, 0, len(calls), len(timeline)
    while i < ours and j < theirs:
        if not fit(i, j):
            if our_order[i] <= their_order[j]:
                i += 1
            else:
                j += 1
            continue
        apart = abs(our_end[i] - their_end[j])
        next_call = i + 1 < ours and fit(i + 1, j)
        next_collective = j + 1 < theirs and fit(i, j + 1)
        if next_call and abs(our_end[i + 1] - their_end[j]) < apart:
            i += 1
        elif next_collective and abs(our_end[i] - their_end[j + 1]) < apart:
            j += 1
        else:
            position[i], rivalled[i] = j, next_call or next_collective
            i, j = i + 1, j + 1
    return Placement(position, rivalled, in_order=False)


def _fit_one(calls: Calls, timeline: Calls, compatible: Flags, slack_ns: int) -> Callable[[int, int], bool]:
    """`fits` for one pair at a time, on plain numbers: a hundred times faster than on arrays of one."""
    ours = list(zip(*(getattr(calls, name).tolist() for name in _COMPARED), strict=True))
    theirs = list(zip(*(getattr(timeline, name).tolist() for name in _COMPARED), strict=True))
    may_be = compatible.tolist()

    def fit(i: int, j: int) -> bool:
        kind, dtype, size, seq, comms_id, start, end, synchronising = ours[i]
        other_kind, other_dtype, other_size, other_seq, other_comms_id, other_start, other_end, _ = theirs[j]
        return bool(
            may_be[kind][other_kind]
            and (dtype in (other_dtype, _UNKNOWN) or other_dtype == _UNKNOWN)
            and (size in (other_size, _UNKNOWN) or other_size == _UNKNOWN)
            and (seq in (other_seq, _UNKNOWN) or other_seq == _UNKNOWN)
            and (comms_id in (other_comms_id, _UNKNOWN) or other_comms_id == _UNKNOWN)
            and (not synchronising or max(start, other_start) <= min(end, other_end) + slack_ns)
        )

    return fit


def clock_offset(calls: Calls, timeline: Calls, compatible: Flags) -> Offset | None:
    """How far the calls' clock is ahead of the timeline's; None if nothing can be laid upon anything.

    The clock is taken as it is if the ends then coincide. Else every call is laid on every collective that it could be,
    and right is the time by which most of these pairs differ.
    """
    ours, theirs = calls.take(calls.synchronising), timeline.take(timeline.synchronising)
    if not len(ours) or not len(theirs):
        return Offset(0, 0, unique=False) if len(calls) and len(timeline) else None
    as_is = _coinciding_as_is(ours, theirs, compatible)
    if as_is is not None:
        return as_is
    candidates = _peaks(_middle(ours), theirs, compatible)
    if not candidates:
        return None
    candidates.sort(key=lambda c: (-c.same_step, -c.coinciding, abs(c.offset_ns)))
    best = candidates[0]
    rivals = [
        c for c in candidates[1:] if c.coinciding >= 0.5 * best.coinciding and c.same_step >= best.same_step - 0.3
    ]
    return Offset(best.offset_ns, best.coinciding, unique=not rivals and best.coinciding >= _LEAST_COINCIDING)


def _coinciding_as_is(ours: Calls, theirs: Calls, compatible: Flags) -> Offset | None:
    """Offset 0 if at least half of the calls within the other's window end where one that fits does."""
    theirs = theirs.take(np.argsort(theirs.end, kind="stable"))
    after = np.searchsorted(theirs.end, ours.end).clip(0, len(theirs) - 1)
    before = np.maximum(after - 1, 0)
    closer = np.abs(theirs.end[before] - ours.end) < np.abs(theirs.end[after] - ours.end)
    nearest = theirs.take(np.where(closer, before, after))
    coincides = same_kind(ours, nearest, compatible) & (np.abs(nearest.end - ours.end) <= COINCIDE_NS)
    within = (ours.end >= theirs.last_start[0]) & (ours.end <= theirs.end[-1] + COINCIDE_NS)
    coinciding = int(coincides.sum())
    least = min(_LEAST_COINCIDING, len(ours), len(theirs))
    if coinciding >= max(least, 0.5 * int(within.sum())):
        return Offset(0, coinciding, unique=True)
    return None


class _Candidate(NamedTuple):
    offset_ns: int
    coinciding: int
    same_step: float


def _peaks(ours: Calls, theirs: Calls, compatible: Flags) -> list[_Candidate]:
    """The offsets by which most pairs of a call and a collective differ, to within COINCIDE_NS."""
    i, j = np.divmod(np.arange(len(ours) * len(theirs)), len(theirs))
    good = same_kind(ours.take(i), theirs.take(j), compatible)
    i, j = i[good], j[good]
    apart = ours.end[i] - theirs.end[j]
    order = np.argsort(apart)
    apart, i, j = apart[order], i[order], j[order]
    upto = np.searchsorted(apart, apart + COINCIDE_NS, side="right")
    counts = upto - np.arange(len(apart))
    found: list[_Candidate] = []
    for _ in range(_PEAKS):
        if not len(counts) or counts.max() <= 0:
            break
        start = int(counts.argmax())
        inside = slice(start, int(upto[start]))
        same_step = _same_step(ours.take(i[inside]), theirs.take(j[inside]))
        offset = int(np.median(apart[inside]))
        found.append(_Candidate(offset, len(np.unique(i[inside])), round(same_step, 1)))
        counts[np.abs(apart - offset) <= 2 * COINCIDE_NS] = 0
    return found


def _middle(calls: Calls) -> Calls:
    """Enough calls to find an offset with, without trying all pairs of thousands."""
    start = max(0, (len(calls) - _SEARCHED) // 2)
    return calls.take(slice(start, start + _SEARCHED))
