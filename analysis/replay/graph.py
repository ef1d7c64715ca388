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

from ..metrics.clocks.frame import Flags, Ints
from .playing import Playing
from .programs import LONG_AGO, NONE

ON_NOTHING, ON_TIME = 0, 1
"""Nodes that hold LONG_AGO, for what waits for nothing, and 0, for a CPU that no call has delayed.

The ends of calls that wait for somebody unseen follow.
"""

NewTimes = tuple[Ints, Ints]
"""Start and end of each activity of a member."""


class Level(NamedTuple):
    """Nodes `begin` to `stop`, which wait for earlier nodes only; `sources` from `first` on belong to each."""

    begin: int
    stop: int
    sources: Ints
    first: Ints | None
    cpu: Ints | None


@dataclass(frozen=True)
class Graph:
    """The graph of all members of a cycle; their activities and calls are numbered one member after the other.

    `ends` are where the activities of each member end, `blocked` the calls that wait. `first` and `last` are the
    activities that begin and end each piece, which is `alone` if it waits for nothing; `rested` is how long a CPU did
    nothing in a step before. Nodes are: `piece`; `end`, that
    of an activity, NONE within a piece; `shift`, of calls that wait; `inputs`, what each piece waits for, from
    `inputs_first` on; and `cpu`, what shifts its launches.
    """

    members: Sequence[Playing]
    ends: Ints
    start: Ints
    rested: Ints
    is_met: Flags
    launch: Ints
    blocked: Ints
    first: Ints
    last: Ints
    alone: Flags
    piece: Ints
    end: Ints
    shift: Ints
    inputs: Ints
    inputs_first: Ints
    cpu: Ints
    constant: Ints
    levels: Sequence[Level]

    def fits(self, members: Sequence[Playing]) -> bool:
        """Whether these members have the same dependencies as the graph."""
        return len(members) == len(self.members) and all(
            ours.program is theirs.program
            and ours.awaiting == theirs.awaiting
            and (ours.edges is theirs.edges or ours.edges == theirs.edges)
            for ours, theirs in zip(self.members, members, strict=True)
        )

    def play(self, variants: Sequence[Sequence[Playing]]) -> list[list[NewTimes]]:
        """New times of every activity, by variant and member; each variant must fit."""
        delay = _columns(variants, lambda member: member.delay)
        duration = _columns(variants, lambda member: member.duration)
        launched = self._launched(variants)
        spent = delay + duration
        done = np.cumsum(spent, axis=0)
        since_launch = launched - (done - spent)
        values, begun = self._values(variants, delay, duration, done, since_launch)
        count = len(variants)
        start, end = np.empty((2, len(self.start), count), dtype=np.int64)
        end[self.last] = values[self.end[self.last]]
        self._within(values, begun, done, since_launch, spent, end)
        np.subtract(end, duration, out=start)
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

    def _values(
        self, variants: Sequence[Sequence[Playing]], delay: Ints, duration: Ints, done: Ints, since_launch: Ints
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
        alone = self.start[self.first, None] - np.where(rested > 0, rested, delay[self.first])
        begun = np.where(self.alone[:, None], alone, 0)
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
            value = values[level.sources]
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
        returns = _columns(
            variants, lambda m: np.array([m.returns[call] for call in sorted(m.edges.blocks)], dtype=np.int64)
        )
        took = np.where(returns < 0, (stop - begin)[:, None], 0)
        return np.maximum(returns, 0) - (stop[:, None] - saved), (begin - stop)[:, None] + took

    def _within(self, values: Ints, begun: Ints, done: Ints, since_launch: Ints, spent: Ints, end: Ints) -> None:
        """Fill in the ends of activities within pieces, where each waits only for its predecessor and launch."""
        many = np.flatnonzero(self.last > self.first)
        if not len(many):
            return
        bounds = np.append(self.inputs_first, len(self.inputs))
        for piece in many.tolist():
            first, last = int(self.first[piece]), int(self.last[piece])
            sources = self.inputs[bounds[piece] : bounds[piece + 1]]
            ready = values[sources].max(axis=0) + begun[piece] - (done[first] - spent[first])
            if self.cpu[piece] != ON_NOTHING:
                launched = np.maximum.accumulate(since_launch[first:last], axis=0) + values[self.cpu[piece]]
                ready = np.maximum(launched, ready)
            end[first:last] = done[first:last] + ready


def _columns(variants: Sequence[Sequence[Playing]], of: Callable[[Playing], Ints]) -> Ints:
    """An array of all members with a column per variant, or one column if variants are equal."""
    parts = [[of(member) for member in members] for members in variants]
    if all(ours is first for members in parts[1:] for ours, first in zip(members, parts[0], strict=True)):
        parts = parts[:1]
    return np.stack([np.concatenate(members).astype(np.int64, copy=False) for members in parts], axis=1)
