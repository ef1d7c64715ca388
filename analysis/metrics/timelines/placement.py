"""Place calls on a timeline of collectives whose times are on the same clock.

Both are in the same order, though either may lack something. A call can be part of a collective if nothing contradicts
it, if no rank leaves before all have arrived, and if it ends about when the others do. If there is only one such
collective, that is it; if calls lie between two that are already placed, and exactly fill the gap, order decides.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..clocks.frame import Flags, Floats, Ints
from .entries import PAIR, Entries, missed_by, same_kind_at
from .in_order import lay_alone, lay_in_order

# How many collectives are compared with each call.
_WIDTH = 8
_LEAST_TOLD = 8
_USUAL_NS = 5_000
_PAIR_ENDS_NS = 20_000
# What counts for a placement, in nats: that no record was lost, or that none was cut off where a window ends.
_LOST, _CUT = 4.0, 1.0
_SURE = 5.0
_LEAST_SCALE_NS, _FAR_NS = 2_000.0, 1 << 60


class Placement(NamedTuple):
    """Position of each call on the timeline, or -1, and whether no other position would do.

    It is never certain where the call was issued in another step than its collective (`other_step`), or ends much
    farther from it than nearly all others do from theirs (`far_apart`).
    """

    position: Ints
    certain: Flags
    other_step: Flags
    far_apart: Flags


class Nearness(NamedTuple):
    """Tolerances in ns: error of the clocks, and distance of the ends of a collective; `_FAR_NS` for no limit."""

    slack_ns: int
    ends_ns: int


class _Compared(NamedTuple):
    """Calls and timeline that are compared, with the rules of the comparison."""

    calls: Entries
    timeline: Entries
    compatible: Flags
    near: Nearness


def place(calls: Entries, timeline: Entries, pins: Ints, compatible: Flags, near: Nearness) -> Placement:
    """Place the calls; `pins` are positions already known, or -1. Calls, timeline and pins are in order."""
    nothing = np.zeros(len(calls), dtype=bool)
    placed = Placement(pins.copy(), pins >= 0, nothing, nothing)
    if not len(timeline):
        return placed
    compared = _Compared(calls, timeline, compatible, near)
    candidates = _candidates(compared, pins)
    placed = _without_choice(candidates, placed)
    gain = _gains(candidates, calls, timeline, pins)
    runs = _runs(placed)
    filled = _fill(runs, compared, placed)
    _lay(runs.take(~filled), candidates, gain, placed)
    other_step = _other_step(calls, timeline, placed.position, pins)
    # Where there is no limit, ends say nothing.
    far_apart = _far_apart(calls, timeline, placed.position, pins) if near.ends_ns < _FAR_NS else nothing
    return Placement(placed.position, placed.certain & ~other_step & ~far_apart, other_step, far_apart)


def _other_step(calls: Entries, timeline: Entries, position: Ints, pins: Ints) -> Flags:
    """Calls that were issued in another step than the rest of their collective."""
    there = timeline.step[position]
    other: Flags = (position >= 0) & (pins < 0) & (calls.step >= 0) & (there >= 0) & (calls.step != there)
    return other


def _far_apart(calls: Entries, timeline: Entries, position: Ints, pins: Ints) -> Flags:
    """Calls that end farther from their collective than nearly all others from theirs."""
    apart = np.where(position >= 0, np.abs(calls.end - timeline.end[position]), 0)
    comparable = (position >= 0) & calls.synchronising
    asked = comparable & (pins < 0)
    if comparable.sum() < _LEAST_TOLD:
        asked &= (calls.kind == PAIR) & (apart > 2 * _PAIR_ENDS_NS)
        return asked
    usual = max(float(np.quantile(apart[comparable], 0.9)), _USUAL_NS)
    # A message may be buffered until it is received; then only its order says where it belongs.
    far: Flags = asked & (apart > 2 * np.where(calls.kind == PAIR, min(usual, _PAIR_ENDS_NS), usual))
    return far


class _Candidates(NamedTuple):
    """Candidate positions of each call, whether each is possible, and the distance of ends; all (calls, width)."""

    position: Ints
    possible: Flags
    apart_ns: Ints


def _candidates(compared: _Compared, pins: Ints) -> _Candidates:
    calls, timeline, compatible, near = compared
    low, high = _between_pins(pins, len(timeline))
    reached = np.searchsorted(np.maximum.accumulate(timeline.first_end), calls.last_start - near.slack_ns)
    begun = np.minimum.accumulate(timeline.last_start[::-1])[::-1]
    passed = np.searchsorted(begun, calls.first_end + near.slack_ns, side="right")
    low = np.where(calls.synchronising, np.maximum(low, reached), low)
    high = np.where(calls.synchronising, np.minimum(high, passed), high)
    nearest = np.searchsorted(timeline.order, calls.order) - _WIDTH // 2
    first = np.where(high - low > _WIDTH, np.clip(nearest, low, np.maximum(high - _WIDTH, low)), low)
    at = first[:, np.newaxis] + np.arange(_WIDTH)
    inside = at < high[:, np.newaxis]
    at = np.minimum(at, len(timeline) - 1)
    i = np.arange(len(calls))[:, np.newaxis]
    apart, missed = np.abs(calls.end[i] - timeline.end[at]), missed_by(calls, i, timeline, at)
    # Calls that do not synchronise may end at any time, if they overlap, or nearly so.
    together = (missed <= near.slack_ns) & (apart <= near.ends_ns)
    close = np.where(calls.synchronising[i], together, missed <= near.ends_ns)
    possible = inside & same_kind_at(calls, i, timeline, at, compatible) & close & (pins[i] < 0)
    return _Candidates(at, possible, apart)


def _between_pins(pins: Ints, positions: int) -> tuple[Ints, Ints]:
    """First and last + 1 position that each call may take between its pinned neighbours."""
    before = np.maximum.accumulate(np.where(pins >= 0, pins, -1))
    after = np.minimum.accumulate(np.where(pins >= 0, pins, positions)[::-1])[::-1]
    return before + 1, after


def _without_choice(candidates: _Candidates, pinned: Placement) -> Placement:
    """Place the calls that have a single candidate, unless they contradict each other's order."""
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
    """Calls [begin, end) without a position between two placed calls, and their free positions [low, high).

    One `fits` if it has a call for each of these, between neighbours that are certain. All of shape (runs,).
    """

    begin: Ints
    end: Ints
    low: Ints
    high: Ints
    fits: Flags

    def take(self, index: Flags) -> _Runs:
        """The runs at `index`."""
        return _Runs(self.begin[index], self.end[index], self.low[index], self.high[index], self.fits[index])

    def each(self, values: Ints) -> Ints:
        """Repeat the value of each run for each of its calls."""
        return np.repeat(values, self.end - self.begin)

    @property
    def calls(self) -> Ints:
        """Indices of the calls of all runs, run after run."""
        sizes = self.end - self.begin
        calls: Ints = np.arange(int(sizes.sum())) + self.each(self.begin - np.cumsum(sizes) + sizes)
        return calls


def _runs(placed: Placement) -> _Runs:
    """The runs of calls that are not placed. They do not affect one another."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], placed.position < 0, [False]]).astype(np.int8)))
    begin, end = edges[::2], edges[1::2]
    position = np.concatenate([[-1], placed.position, [np.iinfo(np.int64).max]])
    certain = np.concatenate([[False], placed.certain, [False]])
    low, high = position[begin] + 1, position[end + 1]
    return _Runs(begin, end, low, high, certain[begin] & certain[end + 1] & (high - low == end - begin))


def _gains(candidates: _Candidates, calls: Entries, timeline: Entries, pins: Ints) -> Floats:
    """Evidence for each candidate in nats, (calls, width): lost records are rare, and so are distant ends."""
    apart = np.where(calls.synchronising[:, np.newaxis], candidates.apart_ns, 0)
    known = pins >= 0
    usual = np.abs(calls.end[known] - timeline.end[pins[known]])[calls.synchronising[known]]
    if len(usual) < _LEAST_TOLD:
        usual = np.where(candidates.possible, apart, _FAR_NS).min(axis=1, initial=_FAR_NS)
    scale_ns = max(float(np.median(usual)) if len(usual) else 0.0, _LEAST_SCALE_NS)
    lost = np.where(_shown(calls, timeline, scale_ns), _LOST, _CUT)[:, np.newaxis]
    lost = lost + np.where(_shown(timeline, calls, scale_ns), _LOST, _CUT)[candidates.position]
    gain: Floats = np.where(candidates.possible, lost - np.log1p((apart / scale_ns) ** 2), -np.inf)
    return gain


def _shown(ours: Entries, theirs: Entries, scale_ns: float) -> Flags:
    """Whether their windows must contain each of our calls; not if a window may have cut it off.

    What is not shown would have to end at the same time, but before they begin the first one, or after the last.
    """
    return theirs.cover(ours.end, 2 * scale_ns, 2 * scale_ns)


def _fill(runs: _Runs, compared: _Compared, placed: Placement) -> Flags:
    """Place runs that just fit between their neighbours, unless a call cannot be its collective; return which."""
    calls, timeline, compatible, near = compared
    fitting = runs.take(runs.fits)
    row, number = fitting.calls, fitting.each(np.arange(len(fitting.begin)))
    position = row + fitting.each(fitting.low - fitting.begin)
    met = missed_by(calls, row, timeline, position) <= near.slack_ns
    fine = same_kind_at(calls, row, timeline, position, compatible) & (met | ~calls.synchronising[row])
    is_good = np.bincount(number, ~fine, minlength=len(fitting.begin)) == 0
    kept = is_good[number]
    placed.position[row[kept]], placed.certain[row[kept]] = position[kept], met[kept]
    filled: Flags = runs.fits.copy()
    filled[filled] = is_good
    return filled


def _lay(runs: _Runs, candidates: _Candidates, gain: Floats, placed: Placement) -> None:
    """Place runs between their placed neighbours, with the largest total gain."""
    row = runs.calls
    of_call = candidates.position[row]
    inside = (of_call >= runs.each(runs.low)[:, np.newaxis]) & (of_call < runs.each(runs.high)[:, np.newaxis])
    gain, sizes = np.where(inside, gain[row], -np.inf), runs.end - runs.begin
    first, alone = np.cumsum(sizes) - sizes, sizes == 1
    parts = [(first[alone], lay_alone(of_call[first[alone]], gain[first[alone]]))]
    for begin, size in zip(first[~alone].tolist(), sizes[~alone].tolist(), strict=True):
        members = np.arange(begin, begin + size)
        parts.append((members, lay_in_order(of_call[members], gain[members])))
    for members, laid in parts:
        placed.position[row[members]], placed.certain[row[members]] = laid.position, laid.margin >= _SURE
