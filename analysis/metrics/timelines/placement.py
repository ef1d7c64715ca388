"""Where calls lie on a timeline of collectives whose times are on the same clock.

Both are in the same order, though either may lack something. A call can be part of a collective if nothing contradicts
it, if no rank leaves before all have arrived, and if it ends about when the others do. If there is only one such
collective, that is it; if calls lie between two that are already placed, and exactly fill the gap, order decides.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..clocks.frame import Flags, Floats, Ints
from .entries import PAIR, Entries, overlap, same_kind
from .in_order import lay_in_order

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
    """For each call its position on the timeline or -1, and whether no other one would do."""

    position: Ints
    certain: Flags


class Nearness(NamedTuple):
    """How wrong clocks may be, and how far apart the ends of a collective may be, in ns; `_FAR_NS` for no limit."""

    slack_ns: int
    ends_ns: int


def place(calls: Entries, timeline: Entries, pins: Ints, compatible: Flags, near: Nearness) -> Placement:
    """Where the calls lie; `pins` are positions that are already known, or -1. All are in order."""
    placed = Placement(pins.copy(), pins >= 0)
    if not len(timeline):
        return placed
    candidates = _candidates(calls, timeline, pins, compatible, near)
    placed = _without_choice(candidates, placed)
    gain = _gains(candidates, calls, timeline, pins)
    for run in _runs(placed.position < 0):
        gap = _gap(placed, run)
        met = _met(calls.take(slice(*run)), timeline.take(slice(*gap)), compatible, near) if gap else None
        if gap and met is not None:
            placed.position[slice(*run)], placed.certain[slice(*run)] = np.arange(*gap), met
        else:
            _lay(candidates, gain, run, placed)
    doubtful = _other_step(calls, timeline, placed.position, pins)
    if near.ends_ns < _FAR_NS:  # otherwise ends say nothing
        doubtful |= _far_apart(calls, timeline, placed.position, pins)
    return Placement(placed.position, placed.certain & ~doubtful)


def _other_step(calls: Entries, timeline: Entries, position: Ints, pins: Ints) -> Flags:
    """The calls that were issued in another step than others of their collective."""
    there = timeline.step[position]
    other: Flags = (position >= 0) & (pins < 0) & (calls.step >= 0) & (there >= 0) & (calls.step != there)
    return other


def _far_apart(calls: Entries, timeline: Entries, position: Ints, pins: Ints) -> Flags:
    """The calls that end farther from their collective than nearly all others do from theirs."""
    apart = np.where(position >= 0, np.abs(calls.end - timeline.end[position]), 0)
    told = (position >= 0) & calls.synchronising
    asked = told & (pins < 0)
    if told.sum() < _LEAST_TOLD:
        asked &= (calls.kind == PAIR) & (apart > 2 * _PAIR_ENDS_NS)
        return asked
    usual = max(float(np.quantile(apart[told], 0.9)), _USUAL_NS)
    # A message may be buffered until it is received; then only its order says where it belongs.
    far: Flags = asked & (apart > 2 * np.where(calls.kind == PAIR, min(usual, _PAIR_ENDS_NS), usual))
    return far


class _Candidates(NamedTuple):
    """Candidate positions of each call, whether they are possible, and how far ends are apart; all (calls, width)."""

    position: Ints
    possible: Flags
    apart_ns: Ints


def _candidates(calls: Entries, timeline: Entries, pins: Ints, compatible: Flags, near: Nearness) -> _Candidates:
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
    i, j = np.repeat(np.arange(len(calls)), _WIDTH), at.ravel()
    ours, theirs = calls.take(i), timeline.take(j)
    apart = np.abs(ours.end - theirs.end).reshape(at.shape)
    # Calls that do not synchronise may end at any time, if they overlap, or nearly so.
    met = overlap(ours, theirs, near.slack_ns)
    close = np.where(ours.synchronising, met & (apart.ravel() <= near.ends_ns), overlap(ours, theirs, near.ends_ns))
    possible = inside & (same_kind(ours, theirs, compatible) & close).reshape(at.shape) & (pins < 0)[:, np.newaxis]
    return _Candidates(at, possible, apart)


def _between_pins(pins: Ints, positions: int) -> tuple[Ints, Ints]:
    """The first position that each call may have, given the order of pinned calls, and the one after the last."""
    before = np.maximum.accumulate(np.where(pins >= 0, pins, -1))
    after = np.minimum.accumulate(np.where(pins >= 0, pins, positions)[::-1])[::-1]
    return before + 1, after


def _without_choice(found: _Candidates, pinned: Placement) -> Placement:
    """With the calls that have one candidate only, unless they contradict each other's order."""
    position, certain = pinned
    single = found.possible.sum(axis=1) == 1
    only = found.position[np.arange(len(position)), found.possible.argmax(axis=1)]
    placed = np.where(single, only, position)
    known = np.flatnonzero(placed >= 0)
    # Each one after all before it, and before all after it.
    of_known = placed[known]
    highest = np.maximum.accumulate(np.concatenate([[-1], of_known[:-1]])) if len(known) else of_known
    lowest = np.minimum.accumulate(np.concatenate([of_known[1:], [np.iinfo(np.int64).max]])[::-1])[::-1]
    good = (of_known > highest) & (of_known < lowest) if len(known) else of_known > 0
    result = position.copy()
    result[known[good]] = of_known[good]
    return Placement(result, certain | ((result >= 0) & single))


def _runs(flags: Flags) -> list[tuple[int, int]]:
    """Beginning and end of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _gains(found: _Candidates, calls: Entries, timeline: Entries, pins: Ints) -> Floats:
    """The evidence for each candidate, in nats: records are seldom lost, and distant ends are rare; (calls, width)."""
    apart = np.where(calls.synchronising[:, np.newaxis], found.apart_ns, 0)
    known = pins >= 0
    usual = np.abs(calls.end[known] - timeline.end[pins[known]])[calls.synchronising[known]]
    if len(usual) < _LEAST_TOLD:
        usual = np.where(found.possible, apart, _FAR_NS).min(axis=1, initial=_FAR_NS)
    scale_ns = max(float(np.median(usual)) if len(usual) else 0.0, _LEAST_SCALE_NS)
    lost = np.where(_shown(calls, timeline, scale_ns), _LOST, _CUT)[:, np.newaxis]
    lost = lost + np.where(_shown(timeline, calls, scale_ns), _LOST, _CUT)[found.position]
    gain: Floats = np.where(found.possible, lost - np.log1p((apart / scale_ns) ** 2), -np.inf)
    return gain


def _shown(ours: Entries, theirs: Entries, scale_ns: float) -> Flags:
    """Whether what we show must be among theirs. Not if their window may have cut it off.

    What is not shown would have to end at the same time, but before they begin the first one, or after the last.
    """
    begun, left = theirs.last_start[0] + 2 * scale_ns, theirs.end[-1] + 2 * scale_ns
    inside: Flags = (ours.end > begun) & (ours.end < left)
    return inside


def _gap(placed: Placement, run: tuple[int, int]) -> tuple[int, int] | None:
    """The positions between the neighbours of a run of calls, if these are certain and the run just fills the gap."""
    begin, end = run
    if not begin or end >= len(placed.position) or not (placed.certain[begin - 1] and placed.certain[end]):
        return None
    low, high = int(placed.position[begin - 1]) + 1, int(placed.position[end])
    return (low, high) if high - low == end - begin else None


def _met(calls: Entries, gap: Entries, compatible: Flags, near: Nearness) -> Flags | None:
    """Whether each call overlaps its collective in a gap that they fill; None if one of them cannot be its own."""
    met = overlap(calls, gap, near.slack_ns)
    return met if (same_kind(calls, gap, compatible) & (met | ~calls.synchronising)).all() else None


def _lay(found: _Candidates, gain: Floats, run: tuple[int, int], placed: Placement) -> None:
    """Place a run of unplaced calls between its placed neighbours, with the largest gain."""
    position, certain = placed
    begin, end = run
    low = position[begin - 1] + 1 if begin else 0
    high = position[end] if end < len(position) else np.iinfo(np.int64).max
    of_run = found.position[begin:end]
    inside = (of_run >= low) & (of_run < high)
    laid = lay_in_order(of_run, np.where(inside, gain[begin:end], -np.inf))
    position[begin:end], certain[begin:end] = laid.position, laid.margin >= _SURE
