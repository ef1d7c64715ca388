"""Lay out the graph of a cycle: number pieces and other nodes so that each waits for earlier ones only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..core.arrays import Flags, Ints
from .graph import ON_NOTHING, ON_TIME, Graph, Level, keys_of
from .playing import Playing, pairs_of
from .programs import LONG_AGO, NONE

_UNKNOWN = -2
"""In place of the call that shifts a launch: the launch itself is not known."""


@dataclass(frozen=True)
class _Cycle:
    """Activities and calls of all members, numbered one member after the other.

    `joins` and `blocks` are pairs: what waits, an activity or the place of a call among `blocked`, and for what. With
    `firsts` steps begin, and with `lasts` they may end: those are looked at as well.
    """

    ends: Ints
    member: Ints
    rank: Ints
    follows: Flags
    start: Ints
    end: Ints
    collective: Ints
    needs: Ints
    awaiting: Flags
    launch: Ints
    blocked: Ints
    blocked_of: Ints
    returned: Ints
    joins: Ints
    blocks: Ints
    firsts: Ints
    lasts: Ints

    @classmethod
    def of(cls, members: Sequence[Playing]) -> _Cycle:
        programs = [member.program for member in members]
        sizes = [len(program) for program in programs]
        ends = np.cumsum(sizes, dtype=np.int64)
        calls = np.cumsum([0, *(len(program.call_start) for program in programs)])[:-1]
        member = np.repeat(np.arange(len(members)), sizes)

        def joined(column: str) -> Ints:
            return np.concatenate([np.asarray(getattr(program, column), dtype=np.int64) for program in programs])

        places = list(zip(members, (ends - sizes).tolist(), calls.tolist(), strict=True))
        windows = [(each, at) for m, at, _ in places for each in (m.program.windows, m.program.windows_without_comm)]
        blocked = [np.array(sorted(each.edges.blocks), dtype=np.int64) + call for each, _, call in places]
        in_order = np.concatenate(blocked)
        joins, blocks = pairs_of(members)
        blocks[0] = np.searchsorted(in_order, blocks[0])
        launch, collective = joined("launch"), joined("collective")
        awaiting = np.concatenate([each.program.is_unsplit & each.awaiting for each in members])
        unknown = np.flatnonzero(awaiting & (collective == NONE))
        collective[unknown] = collective.max(initial=0) + 1 + np.arange(len(unknown))
        return cls(
            ends=ends,
            member=member,
            rank=np.array([program.rank for program in programs])[member],
            follows=np.concatenate([program.follows for program in programs]),
            start=joined("start"),
            end=joined("end"),
            collective=collective,
            needs=joined("needs"),
            awaiting=awaiting,
            launch=np.where(launch == NONE, NONE, launch + calls[member]),
            blocked=in_order,
            blocked_of=np.repeat(np.arange(len(members)), [len(each) for each in blocked]),
            returned=joined("call_end")[in_order],
            joins=joins,
            blocks=blocks,
            firsts=np.concatenate([each.firsts + at for each, at in windows]),
            lasts=np.concatenate([each.lasts + at for each, at in windows]),
        )

    @property
    def shifted_by(self) -> Ints:
        """The waiting call that may delay each launch, by its place among waiting calls; NONE for none."""
        before = np.searchsorted(self.blocked, self.launch, side="left") - 1
        known = before >= 0
        known[known] = self.blocked_of[before[known]] == self.member[known]
        shifted: Ints = np.where(self.launch == NONE, _UNKNOWN, np.where(known, before, NONE))
        return shifted


def graph_of(members: Sequence[Playing]) -> Graph:
    """Build the graph of a cycle's members.

    Where activities wait for each other in a circle, as clocks are not exact, the earliest goes by the measured times.
    """
    cycle = _Cycle.of(members)
    shifted_by = cycle.shifted_by
    is_met = cycle.collective != NONE
    first = np.flatnonzero(_begins_piece(cycle, is_met))
    last = np.append(first[1:], len(is_met))[: len(first)] - 1
    piece_of = np.searchsorted(first, np.arange(len(is_met)), side="right") - 1

    met = np.flatnonzero(is_met)
    together, meeting_of = np.unique(cycle.collective[met], return_inverse=True)
    awaiting = np.flatnonzero(cycle.awaiting[met])
    sizes = np.cumsum([2, len(first), len(met), len(cycle.blocked), len(together), len(awaiting)]).tolist()
    piece, met_end, shift, meeting, unseen = (np.arange(a, b) for a, b in pairwise(sizes))
    end = np.full(len(is_met), NONE)
    end[last] = piece
    end[met] = met_end
    arrival = piece[piece_of[met]]

    follows = np.flatnonzero(cycle.follows[first])
    all_meet = cycle.needs[met] == NONE
    waits = [
        (end[first[follows] - 1], piece[follows]),
        (end[cycle.joins[1]], piece[piece_of[cycle.joins[0]]]),
        (end[cycle.blocks[1]], shift[cycle.blocks[0]]),
        (arrival, meeting[meeting_of]),
        (arrival[~all_meet], met_end[~all_meet]),
        (meeting[meeting_of][all_meet], met_end[all_meet]),
        _needed(cycle, met, arrival, met_end),
        (unseen, met_end[awaiting]),
    ]
    source, target = (np.concatenate(part) for part in zip(*waits, strict=True))
    edges = keys_of(members)
    in_order = np.argsort(edges)
    edge = np.full(len(source), NONE)
    edge[len(follows) :][in_order] = np.arange(len(edges))

    cpu = np.full(sizes[-1], ON_NOTHING)
    cpu[shift] = np.where(np.diff(cycle.blocked_of, prepend=NONE) == 0, shift - 1, ON_TIME)
    by_call = shifted_by[first] >= 0
    cpu[piece] = np.where(shifted_by[first] == NONE, ON_TIME, ON_NOTHING)
    cpu[piece[by_call]] = shift[shifted_by[first[by_call]]]
    waits_for_nothing = np.bincount(target, minlength=sizes[-1]) == 0
    waits_for_nothing[[ON_NOTHING, ON_TIME, *unseen.tolist()]] = False
    alone = waits_for_nothing[piece] & (cpu[piece] == ON_NOTHING)

    at = np.full(sizes[-1], LONG_AGO)
    at[ON_TIME] = 0
    at[piece] = np.where(is_met[first], cycle.start[first], cycle.end[last])
    at[met_end], at[shift], at[unseen] = cycle.end[met], cycle.returned, cycle.end[met[awaiting]]
    np.maximum.at(at, meeting[meeting_of], cycle.start[met])

    without = np.flatnonzero(waits_for_nothing)
    source = np.append(source, np.where(np.isin(without, piece[alone]), ON_TIME, ON_NOTHING))
    target = np.append(target, without)
    edge = np.append(edge, np.full(len(without), NONE))
    nodes = _Nodes(source, target, cpu, at, edge).in_order()
    inputs, inputs_first = nodes.inputs_of(piece)
    number = nodes.number
    return Graph(
        members=members,
        ends=cycle.ends,
        start=cycle.start,
        rested=np.concatenate([member.program.rested for member in members]),
        is_met=is_met,
        launch=cycle.launch,
        blocked=cycle.blocked,
        first=first,
        last=last,
        alone=alone,
        piece=number[piece],
        end=np.where(end == NONE, NONE, number[end]),
        shift=number[shift],
        inputs=inputs,
        inputs_first=inputs_first,
        cpu=number[cpu[piece]],
        constant=nodes.constant,
        levels=nodes.levels,
        source=nodes.source,
        target=nodes.target,
        edges=edges[in_order],
        edge=nodes.edge,
        is_cut=nodes.is_cut,
    )


def _begins_piece(cycle: _Cycle, is_met: Flags) -> Flags:
    """Whether each activity begins a piece: it waits for another, or follows one whose end is looked at."""
    begins: Flags = ~cycle.follows | is_met | (np.diff(cycle.shifted_by, prepend=_UNKNOWN - 1) != 0)
    begins[cycle.joins[0]] = True
    begins[cycle.firsts] = True
    looked_at = (np.flatnonzero(is_met), cycle.joins[1], cycle.blocks[1], cycle.firsts, cycle.lasts)
    after = np.concatenate(looked_at) + 1
    begins[after[after < len(begins)]] = True
    return begins


def _needed(cycle: _Cycle, met: Ints, arrival: Ints, met_end: Ints) -> tuple[Ints, Ints]:
    """Arrivals of single ranks that some members of a collective need."""
    there: dict[tuple[int, int], list[int]] = defaultdict(list)
    for collective, rank, node in zip(
        cycle.collective[met].tolist(), cycle.rank[met].tolist(), arrival.tolist(), strict=True
    ):
        there[collective, rank].append(node)
    pairs = [
        (node, end)
        for collective, needs, end in zip(
            cycle.collective[met].tolist(), cycle.needs[met].tolist(), met_end.tolist(), strict=True
        )
        if needs != NONE
        for node in there.get((collective, needs), ())
    ]
    sources, targets = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return sources, targets


@dataclass(frozen=True)
class _Ordered:
    """Nodes by level: their new numbers, the values of constant ones, and all levels after these.

    `source` and `target` are new numbers, by target, and `edge` what they stand for. It `is_cut` if there were circles.
    """

    number: Ints
    constant: Ints
    levels: Sequence[Level]
    source: Ints
    target: Ints
    edge: Ints
    is_cut: bool

    def inputs_of(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Places in `source` of all that these nodes wait for, one node after the other, and the first of each node."""
        these = self.number[nodes]
        begin, stop = (np.searchsorted(self.target, these, side=side) for side in ("left", "right"))
        count = stop - begin
        first = np.cumsum(count) - count
        return np.arange(count.sum()) + np.repeat(begin - first, count), first


@dataclass(frozen=True)
class _Nodes:
    """Nodes that wait: `target` for `source`, and each for the CPU that shifts it; `at` are measured times.

    `edge` is the edge of the members that a pair stands for, NONE for others.
    """

    source: Ints
    target: Ints
    cpu: Ints
    at: Ints
    edge: Ints

    def in_order(self) -> _Ordered:
        """Renumber the nodes so that each waits for earlier ones."""
        shifted = np.flatnonzero(self.cpu > ON_TIME)
        level = np.array(
            _depths(np.append(self.source, self.cpu[shifted]), np.append(self.target, shifted), self.at), dtype=np.int64
        )
        circular = level[self.source] >= level[self.target]
        walls = np.flatnonzero(circular)
        source = self.source.copy()
        source[walls] = len(level) + np.arange(len(walls))
        level = np.append(level, np.zeros(len(walls), dtype=np.int64))
        cpu = np.append(self.cpu, np.full(len(walls), ON_NOTHING))
        cpu[level[cpu] >= np.maximum(level, 1)] = ON_TIME
        order = np.argsort(level, kind="stable")
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        constant = np.append(self.at, self.at[self.source[walls]])[order[level[order] == 0]]
        new_source, new_target = number[source], number[self.target]
        by_target = np.argsort(new_target, kind="stable")
        new_source, new_target, edge = new_source[by_target], new_target[by_target], self.edge[by_target]
        bounds = np.flatnonzero(np.diff(level[order], prepend=0, append=level.max(initial=0) + 1))
        levels = _levels(bounds, number[cpu[order]], new_target)
        return _Ordered(number, constant, levels, new_source, new_target, edge, is_cut=len(walls) > 0)


def _levels(bounds: Ints, cpu: Ints, target: Ints) -> list[Level]:
    first = np.searchsorted(target, np.arange(len(cpu) + 1))
    levels = []
    for begin, stop in pairwise(bounds.tolist()):
        edges = slice(int(first[begin]), int(first[stop]))
        several = edges.stop - edges.start > stop - begin
        shifted = bool((cpu[begin:stop] != ON_NOTHING).any())
        levels.append(
            Level(
                begin,
                stop,
                edges,
                first[begin:stop] - edges.start if several else None,
                cpu[begin:stop] if shifted else None,
            )
        )
    return levels


def _depths(source: Ints, target: Ints, at: Ints) -> list[int]:
    """Length of the longest chain before each node; in a circle, the earliest node does not wait."""
    count = len(at)
    by_source = np.argsort(source, kind="stable")
    followers = target[by_source].tolist()
    begins = np.searchsorted(source[by_source], np.arange(count + 1)).tolist()
    waits = np.bincount(target, minlength=count).tolist()
    earliest = iter(np.argsort(at, kind="stable").tolist())
    depth = [0] * count
    ready = [node for node, left in enumerate(waits) if not left]
    done = 0
    while done < count:
        if not ready:
            node = next(each for each in earliest if waits[each] > 0)
            waits[node] = 0
            depth[node] = max(depth[node], 1)
            ready.append(node)
        node = ready.pop()
        done += 1
        behind = depth[node] + 1
        for follower in followers[begins[node] : begins[node + 1]]:
            if waits[follower] <= 0:
                continue
            if depth[follower] < behind:
                depth[follower] = behind
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
    return depth
