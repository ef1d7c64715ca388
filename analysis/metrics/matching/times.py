"""Matches what neither ids nor steps have matched, by the times at which calls begin and end, group by group.

Where clocks can be compared, calls are laid onto the timeline of their group one rank after another. Where they cannot,
the timelines of the two sides are aligned, all groups together (`offsets`), so what one group fixes holds for all the
others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..clocks.ends import COINCIDE_NS, RESOLUTION_NS, Ends, alike_codes, apart_ns
from ..clocks.estimate import rough
from ..clocks.frame import ClockFrame, Flags, Ints
from ..clocks.medians import medians
from ..timelines.entries import Entries
from ..timelines.offsets import Lane, Offset, offset
from ..timelines.placement import Nearness, Placement, place
from .state import (
    BY_ORDER,
    BY_STEP,
    BY_TIME,
    FAR_APART,
    OTHER_STEP,
    OTHERS_MAYBE,
    REPEATS,
    SAME_CLOCK_SLACK_NS,
    TOO_MANY,
    UNMATCHED,
    State,
    rows_by_key,
)
from .whole import settle

_LEAST_ENDS_NS = 20_000
_LEAST_SETTLED = 32
# On CPUs one rank may be done long before another: only an overlap is significant.
_ANY_END_NS = 1 << 62


def link_clocks(state: State) -> None:
    """Compare clocks by what is matched, and learn how far apart the ends of one collective are."""
    rows = np.flatnonzero((state.collective >= 0) & state.calls.synchronising & state.certain & ~state.assumed)
    sizes = np.bincount(state.collective[rows], minlength=1)
    rows = rows[sizes[state.collective[rows]] > 1]
    order = np.argsort(state.collective[rows], kind="stable")
    rows = rows[order]
    number = np.unique(state.collective[rows], return_inverse=True)[1]
    calls = state.calls
    alike = alike_codes(number, state.group[rows], calls.kind[rows], calls.size[rows])
    ends = Ends(number, state.clock[rows], calls.last_start[rows], calls.end[rows], alike)
    shared = np.isin(np.arange(len(state.hosts)), state.clock[state.on_cpu])
    state.frame = rough(ends, state.hosts, int(calls.last_start.min()), shared=shared)
    state.ends_ns = _ends_ns(ends, state.frame)


def _ends_ns(ends: Ends, frame: ClockFrame) -> int:
    """How far apart ends of one collective may be: as far as nearly all are, if enough are known."""
    if len(ends.collective) < _LEAST_SETTLED:
        return COINCIDE_NS
    apart = apart_ns(ends, frame)
    apart = np.abs(apart - np.nan_to_num(medians(apart, ends.clock, len(frame.offset_ns)))[ends.clock])
    return int(np.clip(4 * np.quantile(apart, 0.98) + RESOLUTION_NS, _LEAST_ENDS_NS, 2 * COINCIDE_NS))


def by_time(state: State) -> None:
    """Match all calls that are left, but pairs on CPUs."""
    left = (state.collective < 0) & ~state.pair_on_cpu
    touched = np.isin(state.group, np.unique(state.group[left])) & ((state.rung != UNMATCHED) | left)
    groups = [rows for rows in rows_by_key(state.group, np.flatnonzero(touched)).values() if _fits_group(state, rows)]
    lanes = [
        {part: lay_within(state, own) for part, own in rows_by_key(state.frame.component[state.clock], rows).items()}
        for rows in groups
    ]
    _laid_between(state, lanes)
    for rows in groups:
        _in_order(state, rows)


def again(state: State) -> None:
    """Match by time once more with what is known of clocks by then, if some calls have not found all of their own."""
    timed = np.flatnonzero((state.rung == BY_TIME) | (state.rung == BY_ORDER))
    timed = timed[~state.pair_on_cpu[timed]]
    members = np.bincount(state.collective[timed], minlength=state.collectives)
    clocks = pd.Series(state.clock[timed]).groupby(state.group[timed]).transform("nunique").to_numpy()
    if (members[state.collective[timed]] < clocks).any():
        link_clocks(state)
        state.free(timed)
        by_time(state)


def _fits_group(state: State, rows: Ints) -> bool:
    """Whether the group has enough ranks for all that show it. If not, its calls stay unmatched."""
    limit = state.group_size[rows].max() if state.named_by_trace[rows[0]] else 0
    if 0 < limit < len(np.unique(state.clock[rows])):
        state.alone(rows[state.collective[rows] < 0], TOO_MANY)
        return False
    return True


def lay_within(state: State, rows: Ints) -> Entries:
    """Lays calls of one group, of ranks whose clocks can be compared, onto one timeline, which is returned."""
    # Where ends scatter widely, so do the clocks of GPUs.
    slack_ns = max(SAME_CLOCK_SLACK_NS, state.ends_ns // 2) if state.ends_ns > COINCIDE_NS else SAME_CLOCK_SLACK_NS
    near = Nearness(slack_ns, _ANY_END_NS if state.on_cpu[rows[0]] else state.ends_ns)
    timeline = state.timeline(rows[state.collective[rows] >= 0])
    left = {int(member) for member in np.unique(state.member[rows[state.collective[rows] < 0]])}
    members = rows_by_key(state.member, rows)
    for member in sorted(left, key=lambda m: -len(members[m])):
        calls = state.shown(members[member])
        pins = _positions(timeline, state.collective[calls.row])
        found = place(calls, timeline, pins, state.compatible, near)
        on = (found.position >= 0) & (pins < 0)
        new = (found.position < 0) & (state.collective[calls.row] < 0)
        _adopt(state, calls.row[on], timeline.row[found.position[on]], _doubts(found)[on])
        _adopt(state, calls.row[new], state.new(int(new.sum())), np.full(int(new.sum()), None))
        timeline = timeline.extended(found.position[on], calls.take(on))
        timeline = timeline.joined(replace(calls.take(new), row=state.collective[calls.row[new]]))
    return timeline


def _doubts(found: Placement) -> NDArray[np.object_]:
    """Why each call may belong elsewhere; None where it is certain."""
    why: NDArray[np.object_] = np.full(len(found.certain), None)
    why[~found.certain] = REPEATS
    why[found.far_apart], why[found.other_step] = FAR_APART, OTHER_STEP
    return why


def _adopt(state: State, rows: Ints, collective: Ints, doubt: NDArray[np.object_]) -> None:
    """Let calls be of these collectives, by time; `doubt` says why one may belong elsewhere, None if it is certain."""
    doubtful = doubt != None  # noqa: E711 - elementwise
    state.collective[rows], state.rung[rows], state.certain[rows] = collective, BY_TIME, ~doubtful
    state.note[rows[doubtful]] = doubt[doubtful]


def _positions(timeline: Entries, collective: Ints) -> Ints:
    """Positions of collectives on the timeline, -1 for those that are not on it."""
    if not len(timeline):
        return np.full(len(collective), -1)
    order = np.argsort(timeline.row)
    at = np.searchsorted(timeline.row[order], collective).clip(0, len(order) - 1)
    return np.where(timeline.row[order][at] == collective, order[at], -1)


Lanes = list[dict[int, Entries]]
"""For each group, the timeline of each component of clocks."""


def _laid_between(state: State, lanes: Lanes) -> None:
    """Align what ranks show whose clocks could not be compared so far, the largest part first."""
    lanes = [parts for parts in lanes if len(parts) > 1]
    waiting = _parts(lanes)
    merging = _Merging.of(state)
    while waiting:
        base, *waiting = waiting
        doubtful: dict[int, Offset] = {}
        linked = True
        while linked:
            linked = False
            for part in list(waiting):
                found = _offset_between(state, lanes, part, base)
                if found is None or not found.unique:
                    doubtful |= {} if found is None else {part: found}
                    continue
                state.frame = state.frame.linked(part, base, found.level_ns, found.slope)
                ends_ns = int(np.clip(6 * found.spread_ns, _LEAST_ENDS_NS, COINCIDE_NS))
                merging.lay(lanes, (part, base), Nearness(SAME_CLOCK_SLACK_NS, ends_ns), found)
                waiting.remove(part)
                doubtful.pop(part, None)
                linked = True
        # If there are rivals, the best one is shown, but nothing builds on it.
        for part, found in doubtful.items():
            merging.lay(lanes, (part, base), Nearness(COINCIDE_NS, COINCIDE_NS), found)
            waiting.remove(part)
    merging.apply(state)


@dataclass
class _Merging:
    """Which collectives turned out to be the same as others, and why that may be wrong; by their numbers.

    Those that `known` ids or steps have matched are never joined with others at a doubtful offset: what is certain of
    them would become doubtful, and what they would gain is a guess.
    """

    other: Ints
    known: Flags
    doubt: NDArray[np.object_]
    compatible: Flags

    @classmethod
    def of(cls, state: State) -> _Merging:
        """None merged so far."""
        matched = state.collective[(state.rung <= BY_STEP) & (state.collective >= 0)]
        known = np.bincount(matched, minlength=state.collectives) > 1
        return cls(np.arange(state.collectives), known, np.full(state.collectives, None), state.compatible)

    def lay(self, lanes: Lanes, sides: tuple[int, int], near: Nearness, found: Offset) -> None:
        """Lay the collectives of a part upon those of the base; its timelines take up the rest if that is certain."""
        part, base = sides
        for parts in lanes:
            if part not in parts:
                continue
            ours = parts[part].ahead(found.ahead(parts[part].end))
            if base not in parts:
                if found.unique:
                    parts[base] = ours
                    del parts[part]
                continue
            timeline = parts[base]
            pins = _positions(timeline, self.other[ours.row])
            placed = place(ours, timeline, pins, self.compatible, near)
            on = (placed.position >= 0) & (pins < 0)
            if not found.unique:
                there = timeline.row[placed.position]
                guessed = on & (self.known[ours.row] | self.known[there])
                self.doubt[ours.row[guessed]] = self.doubt[there[guessed]] = OTHERS_MAYBE
                on &= ~guessed
            self.other[ours.row[on]] = timeline.row[placed.position[on]]
            self.doubt[ours.row[on]] = _doubts(placed)[on] if found.unique else REPEATS
            if found.unique:
                timeline = timeline.extended(placed.position[on], ours.take(on))
                parts[base] = timeline.joined(ours.take(placed.position < 0))
                del parts[part]

    def apply(self, state: State) -> None:
        """Number the calls anew."""
        rows = np.flatnonzero(state.collective >= 0)
        before = state.collective[rows]
        moved = self.other[before] != before
        state.collective[rows] = self.other[before]
        state.rung[rows[moved]] = np.maximum(state.rung[rows[moved]], BY_TIME)
        doubtful = self.doubt[before] != None  # noqa: E711 - elementwise
        state.note[rows[doubtful]] = self.doubt[before[doubtful]]
        state.certain[rows[moved & doubtful]] = False


def _parts(lanes: Lanes) -> list[int]:
    """The components of clocks that share groups with others, those with most collectives first."""
    sizes: dict[int, int] = {}
    for parts in lanes:
        for part, timeline in parts.items():
            sizes[part] = sizes.get(part, 0) + len(timeline)
    return sorted(sizes, key=lambda part: -sizes[part])


def _offset_between(state: State, lanes: Lanes, part: int, base: int) -> Offset | None:
    """How far the clocks of a part are ahead of those of the base, as far as common groups tell."""
    shared = [Lane(parts[part], parts[base]) for parts in lanes if part in parts and base in parts]
    if not shared:
        return None
    # The origins of clocks that can be compared are one moment; before clocks are linked, all show the same there.
    own = np.flatnonzero(state.frame.component == part)[0]
    origin_ns = int(state.frame.origin_ns[own] - np.rint(state.frame.offset_ns[own]))
    probed = state.probed_apart(part, base)
    by_all = offset(shared, state.compatible, origin_ns, probed)
    if by_all is None or not by_all.unique:
        return by_all
    # Ranks may count steps differently, so steps may speak against an offset, but not for it.
    times = [Lane(*(side.without_steps() for side in lane)) for lane in shared]
    alone = offset(times, state.compatible, origin_ns, probed)
    agree = alone is not None and alone.unique and abs(alone.level_ns - by_all.level_ns) <= 2 * COINCIDE_NS
    return by_all._replace(unique=agree)


def _in_order(state: State, rows: Ints) -> None:
    """Set the rung to `order` where all that a rank shows of the group fits its timeline, call for call."""
    for part in rows_by_key(state.frame.component[state.clock], rows).values():
        if not (state.rung[part] == BY_TIME).any():
            continue
        timeline = state.timeline(part)
        for own in rows_by_key(state.member, part).values():
            position = np.sort(_positions(timeline, state.collective[own]))
            if (np.diff(position) == 1).all():
                state.rung[own[state.rung[own] == BY_TIME]] = BY_ORDER
        one_host = len(np.unique(state.hosts[state.clock[part]])) == 1
        settle(state, part, SAME_CLOCK_SLACK_NS if one_host else COINCIDE_NS)
