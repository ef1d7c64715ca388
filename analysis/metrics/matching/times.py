"""The rungs of times: match what neither ids nor steps have matched, by when calls begin and end, group by group.

Where clocks can be compared, calls are placed on the timeline of their group, one rank after another (`placement`).
Where they cannot, the timelines of the two sides are aligned (`offsets`): by all groups together, because a clock has
one offset, whatever group it is seen in. In a loop of equal calls something always fits. So times are trusted only
where every other placement, shift or offset fits clearly worse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ...core.arrays import Flags, Ints
from ..clocks.ends import COINCIDE_NS, RESOLUTION_NS, Ends, alike_codes, apart_ns
from ..clocks.estimate import rough
from ..clocks.frame import ClockFrame
from ..clocks.medians import medians
from ..timelines.entries import Entries
from ..timelines.offsets import Lane, Offset, best_of, offsets
from ..timelines.placement import Placement, Tolerances, place
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
    Clocks,
    Decision,
    Findings,
    Notes,
    State,
    rows_by_key,
)
from .whole import settled

_LEAST_ENDS_NS = 20_000
_WELL_LINKED = 128
_LEAST_LINKED = 32  # with fewer calls, what nearly all of them do is not known
# On CPUs one rank may be done long before another: only an overlap is significant.
_ANY_END_NS = 1 << 62


def linked_clocks(state: State) -> Clocks:
    """Compare clocks by what is matched for certain, and measure how far apart the ends of one collective are."""
    # What is doubtful would move the clocks to where it looks right.
    rows = np.flatnonzero((state.collective >= 0) & state.calls.synchronising & state.certain & ~state.group_assumed)
    sizes = np.bincount(state.collective[rows], minlength=1)
    rows = rows[sizes[state.collective[rows]] > 1]
    order = np.argsort(state.collective[rows], kind="stable")
    rows = rows[order]
    number = np.unique(state.collective[rows], return_inverse=True)[1]
    calls = state.calls
    alike = alike_codes(number, state.group[rows], calls.kind[rows], calls.size[rows])
    ends = Ends(number, state.clock[rows], calls.last_start[rows], calls.end[rows], alike)
    hosts = state.clocks.hosts
    shared = np.isin(np.arange(len(hosts)), state.clock[state.on_cpu])
    frame = rough(ends, hosts, int(calls.last_start.min()), shared=shared)
    return replace(state.clocks, frame=frame, ends_ns=_ends_ns(ends, frame))


def _ends_ns(ends: Ends, frame: ClockFrame) -> int:
    """How far apart the ends of one collective may be, in ns: some more than nearly all are, if enough are known."""
    if len(ends.collective) < _LEAST_LINKED:
        return COINCIDE_NS
    apart = apart_ns(ends, frame)
    apart = np.abs(apart - np.nan_to_num(medians(apart, ends.clock, len(frame.offset_ns)))[ends.clock])
    return int(np.clip(4 * np.quantile(apart, 0.98) + RESOLUTION_NS, _LEAST_ENDS_NS, 2 * COINCIDE_NS))


def by_time(state: State) -> Findings:
    """Match all calls that are undecided, but for messages between CPUs."""
    left = (state.collective < 0) & ~state.pair_on_cpu
    # Calls that other rungs have matched are pins: what lies between two of them lies between them on every rank.
    touched = np.isin(state.group, np.unique(state.group[left])) & ((state.rung != UNMATCHED) | left)
    groups: list[Ints] = []
    for rows in rows_by_key(state.group, np.flatnonzero(touched)).values():
        if _has_room(state, rows):
            groups.append(rows)
        else:
            yield state.alone(rows[state.collective[rows] < 0], TOO_MANY)
    lanes: Lanes = []
    for rows in groups:
        lanes.append({})
        for part, rows_of_part in rows_by_key(state.clocks.frame.component[state.clock], rows).items():
            decision, lanes[-1][part] = placed_within(state, rows_of_part)
            yield decision
    yield from _aligned_between(state, lanes)
    for rows in groups:
        yield from _in_order(state, rows)


def rematched_by_time(state: State) -> Findings:
    """Match by time once more, with the clocks known by then, if some ranks of a group lack calls that others show."""
    # The first round used the clocks that were linked before it; what it has matched may link more.
    timed = np.flatnonzero((state.rung == BY_TIME) | (state.rung == BY_ORDER))
    timed = timed[~state.pair_on_cpu[timed]]
    better = np.flatnonzero((state.collective >= 0) & state.calls.synchronising & (state.rung < BY_ORDER))
    timed_of, known_of = (np.bincount(state.clock[rows], minlength=len(state.ranks)) for rows in (timed, better))
    if (known_of >= np.maximum(timed_of, _WELL_LINKED)).all():
        return  # what times have matched could not say much more about any clock
    members = np.bincount(state.collective[timed], minlength=state.collectives)
    clocks = pd.Series(state.clock[timed]).groupby(state.group[timed]).transform("nunique").to_numpy()
    if (members[state.collective[timed]] < clocks).any():
        yield linked_clocks(state)
        yield state.undecided(timed)
        yield from by_time(state)


def _has_room(state: State, rows: Ints) -> bool:
    """Whether the group has enough ranks for all that show it."""
    limit = state.group_size[rows].max() if state.named_by_trace[rows[0]] else 0
    return not 0 < limit < len(np.unique(state.clock[rows]))


def placed_within(state: State, rows: Ints) -> tuple[Decision, Entries]:
    """Place the undecided calls of one group on a timeline; returns the decision, and the timeline with them.

    `rows` are all calls of the group of ranks whose clocks can be compared. Those that are decided are the beginning of
    the timeline, and stay where they are.
    """
    ends_ns = state.clocks.ends_ns
    # Where ends scatter widely, so do the clocks of GPUs.
    slack_ns = max(SAME_CLOCK_SLACK_NS, ends_ns // 2) if ends_ns > COINCIDE_NS else SAME_CLOCK_SLACK_NS
    tolerances = Tolerances(slack_ns, _ANY_END_NS if state.on_cpu[rows[0]] else ends_ns)
    timeline = state.timeline(rows[state.collective[rows] >= 0])
    left = {int(member) for member in np.unique(state.member[rows[state.collective[rows] < 0]])}
    members = rows_by_key(state.member, rows)
    placed_rows, numbers, doubts = [rows[:0]], [rows[:0]], [np.full(0, None)]
    count = state.collectives
    # The rank that shows most comes first: its calls are the timeline of the others.
    for member in sorted(left, key=lambda m: -len(members[m])):
        calls = state.shown(members[member])
        pins = _positions(timeline, state.collective[calls.row])
        placed = place(calls, timeline, pins, state.compatible, tolerances)
        on = (placed.position >= 0) & (pins < 0)
        new = (placed.position < 0) & (state.collective[calls.row] < 0)
        new_numbers = np.arange(count, count + int(new.sum()))
        count += len(new_numbers)
        placed_rows += [calls.row[on], calls.row[new]]
        numbers += [timeline.row[placed.position[on]], new_numbers]
        doubts += [_doubts(placed)[on], np.full(len(new_numbers), None)]
        timeline = timeline.extended(placed.position[on], calls.take(on))
        timeline = timeline.joined(replace(calls.take(new), row=new_numbers))
    return _by_time(state, np.concatenate(placed_rows), np.concatenate(numbers), np.concatenate(doubts)), timeline


def _doubts(placed: Placement) -> Notes:
    """Why each call may belong elsewhere, as a note; None where its position is certain."""
    why: Notes = np.full(len(placed.certain), None)
    why[~placed.certain] = REPEATS
    why[placed.far_apart], why[placed.other_step] = FAR_APART, OTHER_STEP
    return why


def _by_time(state: State, rows: Ints, collective: Ints, doubt: Notes) -> Decision:
    """Decide by time that the calls are of these collectives; `doubt` is a note on each, None if it is certain."""
    doubtful = doubt != None  # noqa: E711 - elementwise
    note = np.where(doubtful, doubt, state.note[rows])
    return state.decided(rows)._replace(collective=collective, rung=BY_TIME, certain=~doubtful, note=note)


def _positions(timeline: Entries, collective: Ints) -> Ints:
    """The position on the timeline of each collective, by its number; -1 for those that are not on it."""
    if not len(timeline):
        return np.full(len(collective), -1)
    order = np.argsort(timeline.row)
    at = np.searchsorted(timeline.row[order], collective).clip(0, len(order) - 1)
    return np.where(timeline.row[order][at] == collective, order[at], -1)


Lanes = list[dict[int, Entries]]
"""For each process group, what each component of clocks shows of it: a timeline."""


def _aligned_between(state: State, lanes: Lanes) -> Findings:
    """Align the timelines of components of clocks that could not be compared so far, and merge what they share.

    The largest component comes first, and all others are aligned with it. Where an offset has no rival, it also links
    the clocks, which may make the next one certain.
    """
    clocks = state.clocks
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
                best = _offset_between(clocks, state.compatible, lanes, part, base)
                if best is None or not best.unique:
                    doubtful |= {} if best is None else {part: best}
                    continue
                clocks = replace(clocks, frame=clocks.frame.linked(part, base, best.level_ns, best.slope))
                ends_ns = int(np.clip(6 * best.spread_ns, _LEAST_ENDS_NS, COINCIDE_NS))
                merging.merge(lanes, (part, base), Tolerances(SAME_CLOCK_SLACK_NS, ends_ns), best)
                waiting.remove(part)
                doubtful.pop(part, None)
                linked = True
        # If an offset has rivals, it is shown as the best guess, but no clock is linked by it.
        for part, best in doubtful.items():
            merging.merge(lanes, (part, base), Tolerances(COINCIDE_NS, COINCIDE_NS), best)
            waiting.remove(part)
    yield clocks
    yield merging.decision(state)


@dataclass
class _Merging:
    """Collectives that turned out to be the same as others; all of shape (collectives,).

    `other` is the number of the collective that each one is part of, its own if it is merged with none; `doubt` is a
    note on why that may be wrong, None if it is certain. Those `known`, which ids or steps have matched, are never
    merged at a doubtful offset: what is certain of them would become doubtful, for no more than a guess.
    """

    other: Ints
    known: Flags
    doubt: Notes
    compatible: Flags

    @classmethod
    def of(cls, state: State) -> _Merging:
        """Nothing merged so far."""
        matched = state.collective[(state.rung <= BY_STEP) & (state.collective >= 0)]
        known = np.bincount(matched, minlength=state.collectives) > 1
        return cls(np.arange(state.collectives), known, np.full(state.collectives, None), state.compatible)

    def merge(self, lanes: Lanes, sides: tuple[int, int], tolerances: Tolerances, at: Offset) -> None:
        """Merge the collectives of one component, at its offset, with those of another: `sides` are part and base.

        If the offset is certain, the timelines of the part become part of those of the base: this changes `lanes`.
        """
        part, base = sides
        for parts in lanes:
            if part not in parts:
                continue
            ours = parts[part].earlier(at.ahead(parts[part].end))
            if base not in parts:
                if at.unique:
                    parts[base] = ours
                    del parts[part]
                continue
            timeline = parts[base]
            pins = _positions(timeline, self.other[ours.row])
            placed = place(ours, timeline, pins, self.compatible, tolerances)
            on = (placed.position >= 0) & (pins < 0)
            if not at.unique:
                there = timeline.row[placed.position]
                guessed = on & (self.known[ours.row] | self.known[there])
                self.doubt[ours.row[guessed]] = self.doubt[there[guessed]] = OTHERS_MAYBE
                on &= ~guessed
            self.other[ours.row[on]] = timeline.row[placed.position[on]]
            self.doubt[ours.row[on]] = _doubts(placed)[on] if at.unique else REPEATS
            if at.unique:
                timeline = timeline.extended(placed.position[on], ours.take(on))
                parts[base] = timeline.joined(ours.take(placed.position < 0))
                del parts[part]

    def decision(self, state: State) -> Decision:
        """The decision that gives the calls of merged collectives one number."""
        moved = self.other != np.arange(len(self.other))
        doubtful = self.doubt != None  # noqa: E711 - elementwise
        rows = np.flatnonzero(state.collective >= 0)
        rows = rows[(moved | doubtful)[state.collective[rows]]]
        before = state.collective[rows]
        moved, doubtful = moved[before], doubtful[before]
        return state.decided(rows)._replace(
            collective=self.other[before],
            rung=np.where(moved, np.maximum(state.rung[rows], BY_TIME), state.rung[rows]),
            certain=state.certain[rows] & ~(moved & doubtful),
            note=np.where(doubtful, self.doubt[before], state.note[rows]),
        )


def _parts(lanes: Lanes) -> list[int]:
    """The components of clocks in these lanes, those with most collectives first."""
    sizes: dict[int, int] = {}
    for parts in lanes:
        for part, timeline in parts.items():
            sizes[part] = sizes.get(part, 0) + len(timeline)
    return sorted(sizes, key=lambda part: -sizes[part])


def _offset_between(clocks: Clocks, compatible: Flags, lanes: Lanes, part: int, base: int) -> Offset | None:
    """How far the clocks of a part are ahead of those of the base, by the groups that both show; None if none tells."""
    shared = [Lane(parts[part], parts[base]) for parts in lanes if part in parts and base in parts]
    if not shared:
        return None
    # The origins of clocks that can be compared are one moment; before clocks are linked, all show the same there.
    frame = clocks.frame
    clock = np.flatnonzero(frame.component == part)[0]
    origin_ns = int(frame.origin_ns[clock] - np.rint(frame.offset_ns[clock]))
    probed = clocks.probed_apart(part, base)
    tried = offsets(shared, compatible, origin_ns, probed)
    by_all = best_of(tried)
    if by_all is None or not by_all.unique:
        return by_all
    # Ranks may count steps differently, so steps may speak against an offset, but not for it.
    alone = best_of([each._replace(same_step_frac=1.0) for each in tried])
    agree = alone is not None and alone.unique and abs(alone.level_ns - by_all.level_ns) <= 2 * COINCIDE_NS
    return by_all._replace(unique=agree)


def _in_order(state: State, rows: Ints) -> Findings:
    """Raise to the rung `order` what a rank shows of the group if it fits the timeline call for call, without a gap."""
    clocks = state.clocks
    for part in rows_by_key(clocks.frame.component[state.clock], rows).values():
        if not (state.rung[part] == BY_TIME).any():
            continue
        timeline = state.timeline(part)
        unbroken = [part[:0]]
        for rows_of_member in rows_by_key(state.member, part).values():
            position = np.sort(_positions(timeline, state.collective[rows_of_member]))
            if (np.diff(position) == 1).all():
                unbroken.append(rows_of_member[state.rung[rows_of_member] == BY_TIME])
        yield state.decided(np.concatenate(unbroken))._replace(rung=BY_ORDER)
        one_host = len(np.unique(clocks.hosts[state.clock[part]])) == 1
        yield from settled(state, part, SAME_CLOCK_SLACK_NS if one_host else COINCIDE_NS)
