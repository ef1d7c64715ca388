"""Place the calls of one rank on a timeline: which collective is each of them? All times are on one clock.

Calls and collectives are in the same order, but either side may lack some. A collective is a candidate for a call if
kind, size and ids agree, if the two overlap, as no rank leaves before all have arrived, and if they end at about the
same time. The calls are placed in three steps, from the surest to the least sure:

1. a call with a single candidate belongs to it;
2. calls between two that are placed, which are as many as the collectives between these, belong to them in order;
3. all others go where the evidence is best in total, and are certain only if every other choice is clearly worse.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.arrays import Flags, Floats, Ints
from .entries import PAIR, Entries, gap_ns, same_kind_at
from .in_order import assign_alone, assign_in_order

# The number of candidates of each call.
_WIDTH = 8
# With fewer placed calls it is not known how far apart ends usually are.
_LEAST_KNOWN = 8
# Ends that are apart by less are never far apart; those of a send and its receive on GPUs are hardly further.
_USUAL_NS, _PAIR_ENDS_NS = 5_000, 20_000
# What a placement gains, in nats: records are rarely lost, but often cut off where a window begins or ends.
_LOST, _CUT = 4.0, 1.0
# The least margin, in nats, of a placement that is certain.
_SURE = 5.0
_LEAST_SCALE_NS, _NO_LIMIT_NS = 2_000.0, 1 << 60


class Placement(NamedTuple):
    """Position of each call on the timeline, -1 if it has none, and whether that is certain; of shape (calls,).

    Two things make a position uncertain though no other one fits: the call was issued in another step than its
    collective (`other_step`), or its end is much farther from the collective's than usual (`far_apart`).
    """

    position: Ints
    certain: Flags
    other_step: Flags
    far_apart: Flags


class Tolerances(NamedTuple):
    """How wrong the clocks may be, and how far apart the ends of a collective may be, in ns.

    From 2**60 on, `ends_ns` is no limit: then ends say nothing.
    """

    slack_ns: int
    ends_ns: int


class _Compared(NamedTuple):
    """The calls, the timeline, and the rules by which they are compared."""

    calls: Entries
    timeline: Entries
    compatible: Flags
    tolerances: Tolerances


def place(calls: Entries, timeline: Entries, pins: Ints, compatible: Flags, tolerances: Tolerances) -> Placement:
    """Place the calls of one rank on the timeline; both are sorted by `order`.

    `pins` gives the position of each call that is known already, else -1; known positions ascend. `compatible` says
    which kinds may be the same collective.
    """
    nothing = np.zeros(len(calls), dtype=bool)
    placed = Placement(pins.copy(), pins >= 0, nothing, nothing)
    if not len(timeline):
        return placed
    compared = _Compared(calls, timeline, compatible, tolerances)
    candidates = _candidates(compared, pins)
    placed = _place_single_candidates(candidates, placed)
    gain = _gains(candidates, calls, timeline, pins)
    runs = _runs(placed)
    filled = _fill_runs(runs, compared, placed)
    _assign_runs(runs.take(~filled), candidates, gain, placed)
    other_step = _other_step(calls, timeline, placed.position, pins)
    # Where there is no limit, ends say nothing.
    far_apart = _far_apart(calls, timeline, placed.position, pins) if tolerances.ends_ns < _NO_LIMIT_NS else nothing
    return Placement(placed.position, placed.certain & ~other_step & ~far_apart, other_step, far_apart)


def _other_step(calls: Entries, timeline: Entries, position: Ints, pins: Ints) -> Flags:
    """Whether each call was issued in another step than its collective, if both steps are known."""
    there = timeline.step[position]
    other: Flags = (position >= 0) & (pins < 0) & (calls.step >= 0) & (there >= 0) & (calls.step != there)
    return other


def _far_apart(calls: Entries, timeline: Entries, position: Ints, pins: Ints) -> Flags:
    """Whether each call's end is farther from its collective's than twice what nine of ten calls show."""
    apart = np.where(position >= 0, np.abs(calls.end - timeline.end[position]), 0)
    comparable = (position >= 0) & calls.synchronising
    asked = comparable & (pins < 0)
    if comparable.sum() < _LEAST_KNOWN:
        asked &= (calls.kind == PAIR) & (apart > 2 * _PAIR_ENDS_NS)
        return asked
    usual = max(float(np.quantile(apart[comparable], 0.9)), _USUAL_NS)
    # A message may be buffered until it is received; then only its order says where it belongs.
    far: Flags = asked & (apart > 2 * np.where(calls.kind == PAIR, min(usual, _PAIR_ENDS_NS), usual))
    return far


class _Candidates(NamedTuple):
    """Neighbouring positions of each call, whether it may belong there, and the distance of ends.

    All of shape (calls, `_WIDTH`).
    """

    position: Ints
    possible: Flags
    apart_ns: Ints


def _candidates(compared: _Compared, pins: Ints) -> _Candidates:
    calls, timeline, compatible, tolerances = compared
    low, high = _between_pins(pins, len(timeline))
    reached = np.searchsorted(np.maximum.accumulate(timeline.first_end), calls.last_start - tolerances.slack_ns)
    begun = np.minimum.accumulate(timeline.last_start[::-1])[::-1]
    passed = np.searchsorted(begun, calls.first_end + tolerances.slack_ns, side="right")
    low = np.where(calls.synchronising, np.maximum(low, reached), low)
    high = np.where(calls.synchronising, np.minimum(high, passed), high)
    nearest = np.searchsorted(timeline.order, calls.order) - _WIDTH // 2
    first = np.where(high - low > _WIDTH, np.clip(nearest, low, np.maximum(high - _WIDTH, low)), low)
    at = first[:, np.newaxis] + np.arange(_WIDTH)
    inside = at < high[:, np.newaxis]
    at = np.minimum(at, len(timeline) - 1)
    i = np.arange(len(calls))[:, np.newaxis]
    apart, gap = np.abs(calls.end[i] - timeline.end[at]), gap_ns(calls, i, timeline, at)
    # Calls that do not synchronise may end at any time, if they overlap, or nearly so.
    together = (gap <= tolerances.slack_ns) & (apart <= tolerances.ends_ns)
    close = np.where(calls.synchronising[i], together, gap <= tolerances.ends_ns)
    possible = inside & same_kind_at(calls, i, timeline, at, compatible) & close & (pins[i] < 0)
    return _Candidates(at, possible, apart)


def _between_pins(pins: Ints, positions: int) -> tuple[Ints, Ints]:
    """The first position, and one more than the last, that each call may take between its pinned neighbours."""
    before = np.maximum.accumulate(np.where(pins >= 0, pins, -1))
    after = np.minimum.accumulate(np.where(pins >= 0, pins, positions)[::-1])[::-1]
    return before + 1, after


def _place_single_candidates(candidates: _Candidates, pinned: Placement) -> Placement:
    """Place the calls that have a single candidate, but for those whose positions are not in order."""
    position, certain, *_ = pinned
    single = candidates.possible.sum(axis=1) == 1
    only = candidates.position[np.arange(len(position)), candidates.possible.argmax(axis=1)]
    placed = np.where(single, only, position)
    known = np.flatnonzero(placed >= 0)
    # Each one after all before it, and before all after it.
    of_known = placed[known]
    highest = np.maximum.accumulate(np.concatenate([[-1], of_known[:-1]])) if len(known) else of_known
    lowest = np.minimum.accumulate(np.concatenate([of_known[1:], [np.iinfo(np.int64).max]])[::-1])[::-1]
    good = (of_known > highest) & (of_known < lowest) if len(known) else of_known > 0
    result = position.copy()
    result[known[good]] = of_known[good]
    return pinned._replace(position=result, certain=certain | ((result >= 0) & single))


class _Runs(NamedTuple):
    """Runs of calls [begin, end) that are not placed, and the free positions [low, high) of each.

    A run lies between two calls that are placed. It `fits` if these are certain, and it has as many calls as there are
    free positions. All of shape (runs,).
    """

    begin: Ints
    end: Ints
    low: Ints
    high: Ints
    fits: Flags

    def take(self, index: Flags) -> _Runs:
        """The runs at `index`."""
        return _Runs(self.begin[index], self.end[index], self.low[index], self.high[index], self.fits[index])

    def repeated(self, values: Ints) -> Ints:
        """The value of its run for each call of `calls`; `values` are of shape (runs,)."""
        return np.repeat(values, self.end - self.begin)

    @property
    def calls(self) -> Ints:
        """Indices of the calls of all runs, run after run."""
        sizes = self.end - self.begin
        calls: Ints = np.arange(int(sizes.sum())) + self.repeated(self.begin - np.cumsum(sizes) + sizes)
        return calls


def _runs(placed: Placement) -> _Runs:
    """The runs of calls that are not placed; the positions of one do not depend on those of another."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], placed.position < 0, [False]]).astype(np.int8)))
    begin, end = edges[::2], edges[1::2]
    position = np.concatenate([[-1], placed.position, [np.iinfo(np.int64).max]])
    certain = np.concatenate([[False], placed.certain, [False]])
    low, high = position[begin] + 1, position[end + 1]
    return _Runs(begin, end, low, high, certain[begin] & certain[end + 1] & (high - low == end - begin))


def _gains(candidates: _Candidates, calls: Entries, timeline: Entries, pins: Ints) -> Floats:
    """Evidence for each candidate in nats, -inf if it is impossible; of shape (calls, `_WIDTH`).

    A placement explains why both sides show the collective: otherwise each lacks a record. It costs what ends that far
    apart are less likely than ends that coincide, by a Cauchy distribution, as some ranks always end late.
    """
    apart = np.where(calls.synchronising[:, np.newaxis], candidates.apart_ns, 0)
    known = pins >= 0
    usual = np.abs(calls.end[known] - timeline.end[pins[known]])[calls.synchronising[known]]
    if len(usual) < _LEAST_KNOWN:
        usual = np.where(candidates.possible, apart, _NO_LIMIT_NS).min(axis=1, initial=_NO_LIMIT_NS)
    scale_ns = max(float(np.median(usual)) if len(usual) else 0.0, _LEAST_SCALE_NS)
    lost = np.where(_is_covered(calls, timeline, scale_ns), _LOST, _CUT)[:, np.newaxis]
    lost = lost + np.where(_is_covered(timeline, calls, scale_ns), _LOST, _CUT)[candidates.position]
    gain: Floats = np.where(candidates.possible, lost - np.log1p((apart / scale_ns) ** 2), -np.inf)
    return gain


def _is_covered(ours: Entries, theirs: Entries, scale_ns: float) -> Flags:
    """Whether the other side must show each of our calls, unless its record was lost.

    It need not where a call that ends at that time may have been cut off at the beginning or end of a window.
    """
    return theirs.cover(ours.end, 2 * scale_ns, 2 * scale_ns)


def _fill_runs(runs: _Runs, compared: _Compared, placed: Placement) -> Flags:
    """Place the calls of each run that fits, in order, unless one of them cannot be its collective; return which runs.

    Changes `placed`.
    """
    calls, timeline, compatible, tolerances = compared
    fitting = runs.take(runs.fits)
    row, number = fitting.calls, fitting.repeated(np.arange(len(fitting.begin)))
    position = row + fitting.repeated(fitting.low - fitting.begin)
    overlap = gap_ns(calls, row, timeline, position) <= tolerances.slack_ns
    fine = same_kind_at(calls, row, timeline, position, compatible) & (overlap | ~calls.synchronising[row])
    is_good = np.bincount(number, ~fine, minlength=len(fitting.begin)) == 0
    kept = is_good[number]
    placed.position[row[kept]], placed.certain[row[kept]] = position[kept], overlap[kept]
    filled: Flags = runs.fits.copy()
    filled[filled] = is_good
    return filled


def _assign_runs(runs: _Runs, candidates: _Candidates, gain: Floats, placed: Placement) -> None:
    """Place the calls of each run at free positions, with the largest total gain. Changes `placed`."""
    row = runs.calls
    of_call = candidates.position[row]
    inside = (of_call >= runs.repeated(runs.low)[:, np.newaxis]) & (of_call < runs.repeated(runs.high)[:, np.newaxis])
    gain, sizes = np.where(inside, gain[row], -np.inf), runs.end - runs.begin
    first, alone = np.cumsum(sizes) - sizes, sizes == 1
    parts = [(first[alone], assign_alone(of_call[first[alone]], gain[first[alone]]))]
    for begin, size in zip(first[~alone].tolist(), sizes[~alone].tolist(), strict=True):
        members = np.arange(begin, begin + size)
        parts.append((members, assign_in_order(of_call[members], gain[members])))
    for members, assigned in parts:
        placed.position[row[members]], placed.certain[row[members]] = assigned.position, assigned.margin >= _SURE
