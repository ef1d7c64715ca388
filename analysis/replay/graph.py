"""Dependencies of a cycle as sums and maxima: built once, then evaluated for many variants at once.

Only points at which something else looks are nodes: the ends of activities that another one, or a CPU, waits for, and
when members arrive at collectives. What lies between two of them, a piece, is one sum:

    end of a piece       = max(ends it waits for + what it takes, shift of its CPU + its launches and what they take)
    arrival              = the same, without the collective itself
    meeting              = max(arrivals)
    end of a collective  = meeting + transfer; no earlier than it was, if it waits for somebody unseen
    shift of a CPU       = max(shift before, ends of what its call waits for + time to return) - when it returned
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.arrays import Flags, Ints
from .playing import Playing, pairs_of
from .programs import LONG_AGO, NONE

ON_NOTHING, ON_TIME = 0, 1
"""Nodes that hold LONG_AGO, for what waits for nothing, and 0, for a CPU that no call has delayed.

The ends of calls that wait for somebody unseen follow.
"""

NewTimes = tuple[Ints, Ints]
"""Start and end of each activity of a member."""


class Level(NamedTuple):
    """Nodes `begin` to `stop`, which wait for earlier ones only; of their `sources`, each has those from `first` on."""

    begin: int
    stop: int
    sources: slice
    first: Ints | None
    cpu: Ints | None


@dataclass(frozen=True)
class Graph:
    """The graph of all members of a cycle; their activities and calls are numbered one member after the other.

    Shapes are numbers of all activities, pieces, waiting calls, and pairs of a node and what it waits for.
    """

    members: Sequence[Playing]
    ends: Ints
    """Where the activities of each member end; (members,)."""
    start: Ints
    """When each activity began; (activities,)."""
    rested: Ints
    """How long the CPU had nothing to do before, in the same step; (activities,)."""
    is_met: Flags
    """Whether each is a call of a collective; (activities,)."""
    launch: Ints
    """The call that launched each, NONE if not known; (activities,)."""
    blocked: Ints
    """The calls that wait for the device; (waiting,)."""
    first: Ints
    """The activity with which each piece begins; (pieces,)."""
    last: Ints
    """The activity with which it ends; (pieces,)."""
    alone: Flags
    """Whether it waits for nothing; (pieces,)."""
    piece: Ints
    """Its node; (pieces,)."""
    end: Ints
    """The node of the end of each activity, NONE within a piece; (activities,)."""
    shift: Ints
    """The node of each call's shift of its CPU; (waiting,)."""
    inputs: Ints
    """Places in `source` of what pieces wait for, one piece after the other."""
    inputs_first: Ints
    """Where those of each piece begin in `inputs`; (pieces,)."""
    cpu: Ints
    """The node that shifts the launches of each piece; (pieces,)."""
    constant: Ints
    """What the first nodes hold, whatever is played."""
    levels: Sequence[Level]
    source: Ints
    """The node that is waited for; (pairs,)."""
    target: Ints
    """The node that waits for it; (pairs,)."""
    edges: Ints
    """The edges of the members, sorted numbers as of `keys_of`; (edges,)."""
    edge: Ints
    """For which of the `edges` each pair stands, NONE for none; (pairs,)."""
    is_cut: bool
    """Whether there were circles."""

    def edges_of(self, members: Sequence[Playing]) -> Flags | None:
        """Which of the edges are those of these members; None if they do other work, or have others.

        Where circles were cut, all have to be: with fewer of them other edges might have been cut, or none.
        """
        if len(members) != len(self.members) or not all(map(Playing.works_as, members, self.members)):
            return None
        if all(theirs.edges is ours.edges for theirs, ours in zip(members, self.members, strict=True)):
            return np.ones(len(self.edges), dtype=bool)
        keys = keys_of(members)
        at = np.searchsorted(self.edges, keys)
        if (at == len(self.edges)).any() or (self.edges[at] != keys).any():
            return None
        present = np.zeros(len(self.edges), dtype=bool)
        present[at] = True
        return None if self.is_cut and not present.all() else present

    def play(self, variants: Sequence[Sequence[Playing]], edges: Flags, *, whole: bool) -> list[list[NewTimes]]:
        """New times of every activity, by variant and member; all variants must have these `edges`, as of `edges_of`.

        If not `whole`, times are right only where they say how long steps are: of what ends a piece, as steps begin and
        end with one, and of activities that may overtake the one before. All others get a start too late, and an end
        too early, to be the first or the last of a step.
        """
        delay = _columns(variants, lambda member: member.delay)
        duration = _columns(variants, lambda member: member.duration)
        launched = self._launched(variants)
        spent = delay + duration
        done = np.cumsum(spent, axis=0)
        since_launch = launched - (done - spent)
        source, alone = self._without(edges)
        values, begun = self._values(variants, source, alone, delay, duration, done, since_launch)
        count = len(variants)
        end = np.full((len(self.start), count), LONG_AGO)
        end[self.last] = values[self.end[self.last]]
        filled = self.last > self.first
        if not whole:
            filled &= np.logical_or.reduceat((delay < 0).any(axis=1), self.first)
        self._within(np.flatnonzero(filled), values, source, begun, done, since_launch, spent, end)
        start = np.where(end == LONG_AGO, -LONG_AGO, end - duration)
        met = np.flatnonzero(self.is_met)
        start[met] = values[self.piece[np.searchsorted(self.first, met)]]
        start, end = np.ascontiguousarray(start.T), np.ascontiguousarray(end.T)
        cuts = self.ends[:-1]
        return [list(zip(np.split(s, cuts), np.split(e, cuts), strict=True)) for s, e in zip(start, end, strict=True)]

    def _launched(self, variants: Sequence[Sequence[Playing]]) -> Ints:
        """Launch of each activity in ns if its CPU was not delayed; LONG_AGO if not known."""
        saved = _columns(variants, lambda member: member.saved)
        calls = np.concatenate([member.program.call_start for member in self.members])[:, None] - saved
        known = self.launch != NONE
        launched = np.full((len(self.launch), calls.shape[1]), LONG_AGO)
        launched[known] = calls[self.launch[known]]
        return launched

    def _without(self, edges: Flags) -> tuple[Ints, Flags]:
        """The sources, and which pieces wait for nothing, with these edges only."""
        if edges.all():
            return self.source, self.alone
        gone = self.edge != NONE
        gone[gone] = ~edges[self.edge[gone]]
        source = np.where(gone, ON_NOTHING, self.source)
        left = np.bincount(self.target[~gone], minlength=int(self.target.max()) + 1)
        alone = self.alone | ((left[self.piece] == 0) & (self.cpu == ON_NOTHING))
        begins = np.zeros(len(left), dtype=bool)
        begins[self.piece[alone]] = True
        source[gone & begins[self.target]] = ON_TIME
        return source, alone

    def _values(
        self,
        variants: Sequence[Sequence[Playing]],
        source: Ints,
        alone: Flags,
        delay: Ints,
        duration: Ints,
        done: Ints,
        since_launch: Ints,
    ) -> tuple[Ints, Ints]:
        """Value of each node, and the amount added to what each piece waits for."""
        met = self.is_met[self.first]
        before_first = np.where(self.first[:, None] > 0, done[self.first - 1], 0)
        took = done[self.last] - before_first
        after_launch = np.maximum.reduceat(since_launch, self.first, axis=0) + done[self.last]
        took[met] = delay[self.first[met]]
        after_launch[met] -= duration[self.first[met]]
        # What waits for nothing begins when it began, but a CPU goes on as soon as it has rested.
        rested = self.rested[self.first, None]
        begins = self.start[self.first, None] - np.where(rested > 0, rested, delay[self.first])
        begun = np.where(alone[:, None], begins, 0)
        values = np.empty((self.levels[-1].stop if self.levels else len(self.constant), len(variants)), dtype=np.int64)
        values[: len(self.constant)] = self.constant[:, None]
        add, add_cpu = np.zeros_like(values), np.zeros_like(values)
        add[self.piece], add_cpu[self.piece] = took + begun, after_launch
        met_at = np.flatnonzero(self.is_met)
        transfer = _columns(variants, lambda member: member.transfer)
        add[self.end[met_at]] = transfer[met_at]
        add[self.shift], add_cpu[self.shift] = self._returned(variants)
        for level in self.levels:
            these = slice(level.begin, level.stop)
            value = values[source[level.sources]]
            if level.first is not None:
                value = np.maximum.reduceat(value, level.first, axis=0)
            value += add[these]
            if level.cpu is not None:
                np.maximum(value, values[level.cpu] + add_cpu[these], out=value)
            values[these] = value
        return values, begun

    def _returned(self, variants: Sequence[Sequence[Playing]]) -> tuple[Ints, Ints]:
        """Amounts to add to the end a call waits for, and to the shift before it, for the shift after it."""
        begin, stop = (
            np.concatenate([getattr(member.program, column) for member in self.members])[self.blocked]
            for column in ("call_start", "call_end")
        )
        saved = _columns(variants, lambda member: member.saved)[self.blocked]
        returns = np.stack([self._late(members) for members in variants], axis=1)
        took = np.where(returns < 0, (stop - begin)[:, None], 0)
        return np.maximum(returns, 0) - (stop[:, None] - saved), (begin - stop)[:, None] + took

    def _late(self, members: Sequence[Playing]) -> Ints:
        """How late each call returns after what it waits for, -1 if it does not wait."""
        bounds = np.cumsum([0, *(len(member.program.call_start) for member in members)])
        late = [
            [member.returns[call] if call in member.edges.blocks else -1 for call in (blocked - begin).tolist()]
            for member, begin, blocked in zip(
                members,
                bounds[:-1].tolist(),
                np.split(self.blocked, np.searchsorted(self.blocked, bounds[1:-1])),
                strict=True,
            )
        ]
        return np.concatenate([np.array(each, dtype=np.int64) for each in late])

    def _within(
        self,
        pieces: Ints,
        values: Ints,
        source: Ints,
        begun: Ints,
        done: Ints,
        since_launch: Ints,
        spent: Ints,
        end: Ints,
    ) -> None:
        """Fill in the ends of activities within pieces, where each waits only for its predecessor and launch."""
        bounds = np.append(self.inputs_first, len(self.inputs))
        for piece in pieces.tolist():
            first, last = int(self.first[piece]), int(self.last[piece])
            sources = source[self.inputs[bounds[piece] : bounds[piece + 1]]]
            ready = values[sources].max(axis=0) + begun[piece] - (done[first] - spent[first])
            if self.cpu[piece] != ON_NOTHING:
                launched = np.maximum.accumulate(since_launch[first:last], axis=0) + values[self.cpu[piece]]
                ready = np.maximum(launched, ready)
            end[first:last] = done[first:last] + ready


def keys_of(members: Sequence[Playing]) -> Ints:
    """A number for each edge: what waits, an activity or, after all of these, a call; and for what."""
    joins, blocks = pairs_of(members)
    waiting = np.append(joins[0], blocks[0] + sum(len(member.program) for member in members))
    keys: Ints = (waiting << 32) + np.append(joins[1], blocks[1])
    return keys


def _columns(variants: Sequence[Sequence[Playing]], of: Callable[[Playing], Ints]) -> Ints:
    """An array of all members with a column per variant, or one column if variants are equal."""
    parts = [[of(member) for member in members] for members in variants]
    if all(ours is first for members in parts[1:] for ours, first in zip(members, parts[0], strict=True)):
        parts = parts[:1]
    return np.stack([np.concatenate(members).astype(np.int64, copy=False) for members in parts], axis=1)
