"""Make calls certain because every rank shows the whole timeline, in one order, however far apart their ends are.

Ends say which calls belong together only where they nearly coincide. In an uneven all_to_all, or where each rank waits
for its own tokens only, they do not. But a rank's calls of one group run one after the other, and no rank leaves a
synchronising collective before all have arrived. So what has ended on one rank before a call began on another is not
part of it. If every rank shows all of a timeline from its first call to its last, in the same order, nothing was lost.
Then a call could be part of another collective only if some ranks were shifted against the others. If times exclude
that for each way to divide the ranks, the pairing by order is the only one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.arrays import Flags, Floats, Ints
from ..timelines.entries import PAIR, same_kind_at
from .state import BY_ORDER, OTHER_STEP, Findings, State

# A call that no time excludes from this many neighbours is never certain.
_NEIGHBOURS = 8


class _Times(NamedTuple):
    """Starts and ends of each collective on each member, on a common clock; NaN where the member does not show it.

    Both are of shape (collectives, members). `alike`, of shape (collectives, _NEIGHBOURS), says whether the next
    collective, the one after it and so on are of the same kind, so that they could be mistaken for this one.
    """

    start: Floats
    end: Floats
    alike: Flags


def settled(state: State, rows: Ints, slack_ns: int) -> Findings:
    """Make those doubtful calls certain that only the pairing by order explains.

    `rows` are of one group, and of clocks that can be compared; `slack_ns` is how wrong these clocks may be.
    """
    calls, number = state.calls, state.collective[rows]
    doubtful = ~state.certain[rows] & (state.rung[rows] == BY_ORDER) & (state.note[rows] != OTHER_STEP)
    if not doubtful.any():
        return
    # Of kinds that are not known, and between the threads of CPUs, order excludes nothing.
    if not calls.synchronising[rows].all() or (calls.kind[rows] >= PAIR).any() or state.on_cpu[rows].any():
        return
    # What joins clocks that cannot be compared is doubtful for another reason.
    of_others = state.collective[np.isin(state.collective, number)]
    inside = np.bincount(number, minlength=state.collectives) == np.bincount(of_others, minlength=state.collectives)
    doubtful &= inside[number]
    if not doubtful.any():
        return
    timeline = state.timeline(rows)
    order = np.argsort(timeline.row)
    position = order[np.searchsorted(timeline.row[order], number)]
    members, member = np.unique(state.member[rows], return_inverse=True)
    if not _whole(position, member, calls.order[rows]):
        return
    shown = np.full((2, len(timeline), len(members)), np.nan)
    for side, times in zip(shown, (calls.last_start, calls.end), strict=True):
        common = state.clocks.frame.common(state.clock[rows], times[rows])
        side[position, member] = common - int(timeline.end[0])
    times_of = _Times(shown[0], shown[1], _alike(state, rows))
    asked = np.unique(position[doubtful])
    sure = asked[[_is_sure(times_of, int(at), slack_ns) for at in asked]]
    yield state.decided(rows[doubtful & np.isin(position, sure)])._replace(certain=True, note=None)


def _whole(position: Ints, member: Ints, order: Ints) -> bool:
    """Whether each member shows every collective from its first to its last, in one order; all of shape (calls,)."""
    by_member = np.lexsort((order, member))
    position, member = position[by_member], member[by_member]
    same = member[1:] == member[:-1]
    return bool((np.diff(position)[same] == 1).all())


def _alike(state: State, rows: Ints) -> Flags:
    """Whether each collective may be mistaken for those after it: `_Times.alike`."""
    timeline = state.timeline(rows)
    count = len(timeline)
    at = np.arange(count)[:, np.newaxis]
    later = at + np.arange(1, _NEIGHBOURS + 1)
    inside = later < count
    return inside & same_kind_at(timeline, at, timeline, np.minimum(later, count - 1), state.compatible)


def _is_sure(times_of: _Times, at: int, slack_ns: int) -> bool:
    """Whether all calls of a collective overlap, and none of them could be part of a neighbour instead."""
    if np.nanmax(times_of.start[at]) > np.nanmin(times_of.end[at]) + slack_ns:
        return False
    for distance in range(1, _NEIGHBOURS + 1):
        farthest = distance == _NEIGHBOURS
        for early in (at - distance, at):
            late = early + distance
            beside = early >= 0 and late < len(times_of.start)
            if (
                beside
                and (farthest or times_of.alike[early, distance - 1])
                and not _exclude(times_of, early, late, slack_ns)
            ):
                return False
    return True


def _exclude(times_of: _Times, early: int, late: int, slack_ns: int) -> bool:
    """Whether `early` calls of some ranks cannot be one collective with `late` calls of the others.

    However the ranks are divided, one of the first part must have ended before one of the second part begins. So it is
    if each rank that shows both calls reaches each other such rank, where a rank reaches those that begin the late call
    after it has ended the early one. A rank that shows only one of the two calls, as its window ends in between, must
    be excluded by the others.
    """
    end, start = times_of.end[early], times_of.start[late] - slack_ns
    both = ~np.isnan(end) & ~np.isnan(start)
    if not both.any():
        # No rank shows the two in order: only that they never overlap keeps them apart.
        return bool(np.nanmax(end, initial=-np.inf) < np.nanmin(start, initial=np.inf))
    only_early, only_late = ~np.isnan(end) & ~both, ~np.isnan(start) & ~both
    if (end[only_early] >= start[both].max()).any() or (start[only_late] <= end[both].min()).any():
        return False
    return _all_reached(end[both], start[both])


def _all_reached(end: Floats, start: Floats) -> bool:
    """Whether each rank reaches each other one, directly or through others; both of shape (ranks,).

    A rank reaches those that start after it has ended.
    """
    forth, back = np.zeros((2, len(end)), dtype=bool)
    forth[0] = back[0] = True
    for _ in range(len(end)):
        further = forth | (start > end[forth].min())
        further_back = back | (end < start[back].max())
        if (further == forth).all() and (further_back == back).all():
            break
        forth, back = further, further_back
    return bool(forth.all() and back.all())
