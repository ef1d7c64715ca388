"""Lateness as an account: what a rank did longer than the others goes in, what all waited for it comes out.

Between two collectives of a group every member runs the same program. So if one member takes longer for a part of it
than the median of the others, it is late at the second one by that much. Lateness that existed before has older causes.
And once the others have waited for a rank, it is no longer late, however long they computed in the meantime: so only
the youngest entries that add up to its lateness are still open, and these are the causes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.arrays import Floats, Ints
from .program import PARTS, SPENT

OWED = (*SPENT, "start")
"""What makes a rank late: the parts of its program, or that its first step began late."""
BLAMED = (*PARTS, "start")
"""The same as users see it: leaving a call of the own group late is communication, too."""
_OTHERS = 32  # members that a rank is compared with; a median of more would say the same
_EXPLAINED = 0.5  # of a lateness must be explained for its cause to be named


class Sequence(NamedTuple):
    """The collectives of a group in their order, and its members, by their `ranks`.

    All but these two are arrays of shape (collectives, members), in ns; NaN is what is not known. `ready_ns` is when
    the member's call could run at the earliest and `started_ns` when it did, both on the common clock; `queued_ns` is
    how long other communication ran in between. `cycle` is the profiling cycle of the call. `began_ns` is when the
    first step of the trace began, on the common clock, NaN for calls of other steps.

    `spent_ns` and `in_step_ns`, of shape (SPENT, collectives, members), are how long the member's program had spent on
    each part until it was ready: since it began, and since the step began.
    """

    collectives: Ints
    ranks: Ints
    ready_ns: Floats
    started_ns: Floats
    queued_ns: Floats
    cycle: Ints
    spent_ns: Floats
    in_step_ns: Floats
    began_ns: Floats

    def others(self, member: int) -> Ints:
        """The positions of the members that a member is compared with."""
        rest = np.delete(np.arange(len(self.ranks)), member)
        chosen: Ints = rest[:: -(-len(rest) // _OTHERS) or 1]
        return chosen

    def extra_ns(self, member: int, before: int, at: int) -> Floats:
        """How much longer than the median of the others a member took for each part of OWED, in ns; at least 0.

        That is between collectives `before` and `at`. If `before` is -1, or the others were not in it, it is since the
        step began; and if it is -1, the rank may also have begun the first step of the trace later. Shape (OWED,).
        """
        members = np.append(member, self.others(member))
        spent = self.in_step_ns[:, at, members]
        if before >= 0:
            since = self.spent_ns[:, at, members] - self.spent_ns[:, before, members]
            same_cycle = self.cycle[at, members] == self.cycle[before, members]
            if not np.isnan(np.where(same_cycle, since, np.nan)[:, 1:]).all():
                spent = np.where(same_cycle, since, np.nan)
        began = self.began_ns[at, members] if before < 0 else np.full(len(members), np.nan)
        spent = np.vstack((spent, began))
        more = spent[:, 0] - _median(spent[:, 1:])
        return np.where(np.isnan(more), 0.0, np.maximum(more, 0.0))


class Account(NamedTuple):
    """Why a member was late at each collective of its group; all of shape (collectives,) but for `owed`, in ns.

    `late` is how much later than the median of the others it was ready. `owed`, of shape (collectives, OWED), is how
    much of that each part is to blame for, and `new` how much of it arose since the member's collective before.
    `main` is the collective at which most of it arose, -1 if nothing is to blame; `since` is the member's collective
    before each one, -1 for none. Both are positions.
    """

    late: Floats
    owed: Floats
    new: Floats
    main: Ints
    since: Ints

    def by_part(self, at: int) -> dict[str, int]:
        """How much each of BLAMED is to blame for at a collective, in ns; leaving a call late is communication, too."""
        owed = dict(zip(OWED, self.owed[at].astype(int).tolist(), strict=True))
        return {part: owed[part] + (owed["own"] if part == "comm" else 0) for part in BLAMED}

    def part(self, at: int) -> str | None:
        """The part of BLAMED that is to blame for most; None where most of the lateness is not explained."""
        parts = self.by_part(at)
        # If most of the lateness is unexplained, the largest part that was seen may be tiny: it is no cause.
        if sum(parts.values()) <= max(float(np.nan_to_num(self.late[at])) * _EXPLAINED, 0.0):
            return None
        return max(parts, key=lambda part: parts[part])

    def is_elsewhere(self, at: int) -> bool:
        """Whether the cause is communication of other groups, rather than leaving a call of this one late."""
        return bool(self.elsewhere(at) > self.owed[at, SPENT.index("own")])

    def elsewhere(self, at: int) -> float:
        """How much communication of other groups is to blame for at a collective, in ns."""
        return float(self.owed[at, SPENT.index("comm")])


def account_of(sequence: Sequence, member: int) -> Account:
    """The account of one member, by its position.

    What it took longer than the others for is entered at each collective, and of the entries the youngest count that
    add up to its lateness: of older ones, the others have already waited for it.
    """
    count = len(sequence.collectives)
    ready = sequence.ready_ns
    late = ready[:, member] - _median(ready[:, sequence.others(member)])
    owed, new = np.zeros((count, len(OWED))), np.zeros(count)
    main, since, queued = np.full(count, -1), np.full(count, -1), np.zeros(count)
    entries: list[tuple[int, Floats]] = []
    before = -1
    for at in np.flatnonzero(~np.isnan(ready[:, member])).tolist():
        # A new profiling cycle begins anew: nobody knows what happened in between.
        known = before >= 0 and sequence.cycle[at, member] == sequence.cycle[before, member]
        since[at] = before if known else -1
        entries.append((at, sequence.extra_ns(member, int(since[at]), at)))
        entries = _still_open(entries, late[at])
        before = at
        queued[at] = _queued(sequence, member, at)
        if entries:
            new[at] = float(entries[-1][1].sum()) if entries[-1][0] == at else 0.0
            owed[at] = np.sum([parts for _, parts in entries], axis=0)
            weight = [parts[owed[at].argmax()] for _, parts in entries]
            main[at] = entries[int(np.argmax(weight))][0]
    # A call that was ready in time may still start late, behind other communication on its stream.
    started = sequence.started_ns
    behind = started[:, member] - _median(started[:, sequence.others(member)])
    more = np.clip(np.nan_to_num(behind) - owed.sum(axis=1), 0.0, queued)
    owed[:, SPENT.index("comm")] += more
    main = np.where((main < 0) & (more > 0), np.arange(count), main)
    return Account(np.where(more > 0, np.fmax(late, behind), late), owed, new + more, main, since)


def _queued(sequence: Sequence, member: int, at: int) -> float:
    """How much longer than others' a member's call waited for other communication before it started, in ns."""
    longer_ns = sequence.queued_ns[at, member] - float(_median(sequence.queued_ns[at, sequence.others(member)]))
    return 0.0 if np.isnan(longer_ns) else max(float(longer_ns), 0.0)


def _still_open(entries: list[tuple[int, Floats]], late: float) -> list[tuple[int, Floats]]:
    """The youngest entries that add up to the lateness, the oldest of them in part; (collective, shape (OWED,))."""
    # Older ones are settled: what a rank did too much and is no longer late by, the others have waited for.
    left, kept = 0.0 if np.isnan(late) else late, []
    for at, parts in reversed(entries):
        amount = float(parts.sum())
        if left <= 0:
            break
        if amount > 0:
            kept.append((at, parts * min(1.0, left / amount)))
            left -= amount
    return kept[::-1]


def _median(values: Floats) -> Floats:
    """The median along the last axis, NaN where no member is known; np.nanmedian takes ten times as long for a few."""
    ascending = np.sort(values, axis=-1)  # NaN last
    count = (~np.isnan(values)).sum(axis=-1, keepdims=True)
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan)
    middle = [np.take_along_axis(ascending, np.maximum(at, 0), axis=-1) for at in ((count - 1) // 2, count // 2)]
    result: Floats = ((middle[0] + middle[1]) / 2)[..., 0]
    return result
