"""Plays programs again: every activity begins when all it depends on is done, and a typical moment later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from ..metrics.clocks.frame import Ints
from .cpu_programs import cpu_edges
from .edges import Edges, gpu_edges, ready
from .programs import LONG_AGO, NONE, RankProgram, arrivals, last_arrival

_BEFORE = 0


@dataclass(frozen=True)
class Delays:
    """How much later than all it depends on an activity began: as measured, and as is usual for what came last."""

    measured: Ints
    usual: Ints


@dataclass
class Playing:
    """A rank with its durations: of compute and copies as measured; of communication what follows the last arrival.

    `saved` is how much earlier than measured its CPU makes each call, if it never waits for the device.
    """

    program: RankProgram
    edges: Edges
    delay: Ints
    duration: Ints
    transfer: Ints
    returns: dict[int, int]
    saved: Ints
    cuts: Ints = field(init=False)
    part: Ints = field(init=False)

    def __post_init__(self) -> None:
        program = self.program
        blocked = np.array(sorted(self.edges.blocks), dtype=np.int64)
        self.part = np.where(program.launch == NONE, NONE, np.searchsorted(blocked, program.launch, side="left"))
        comm = program.collective != NONE
        cut = np.diff(program.lane, prepend=NONE) != 0
        cut |= np.diff(self.part, prepend=-2) != 0
        cut[1:] |= comm[:-1]
        cut |= comm
        joined = np.array(sorted(self.edges.joins), dtype=np.int64)
        if len(joined):
            cut[joined] = True
        self.cuts = np.append(np.flatnonzero(cut), len(program))


def prepared(members: Sequence[RankProgram]) -> tuple[list[Playing], list[Playing]]:
    """Ranks ready to be played: with delays as measured, and with those that are usual."""
    arrived = arrivals(members)
    measured, usual = [], []
    without_gpu = [program for program in members if program.issued_by is not None]
    on_cpus = iter(cpu_edges(without_gpu, arrived))
    on_gpus = iter(gpu_edges([program for program in members if program.issued_by is None]))
    for program in members:
        edges = next(on_gpus if program.issued_by is None else on_cpus)
        delays = _delays(program, edges)
        transfer = program.end - program.start
        for node in np.flatnonzero(program.collective != NONE).tolist():
            _, needed = last_arrival(program, node, arrived)
            transfer[node] = max(int(program.end[node]) - max(needed, int(program.start[node])), 0)
        measured.append(
            Playing(
                program,
                edges,
                delays.measured,
                program.end - program.start,
                transfer,
                _returns(program, edges),
                np.zeros(len(program.call_start), dtype=np.int64),
            )
        )
        usual.append(replace(measured[-1], delay=np.minimum(delays.measured, delays.usual)))
    return measured, usual


def _delays(program: RankProgram, edges: Edges) -> Delays:
    before, launched = ready(program)
    joined = np.full(len(program), LONG_AGO)
    for node, sources in edges.joins.items():
        joined[node] = max(int(program.end[source]) for source in sources)
    known = np.maximum(np.maximum(before, launched), joined)
    measured = np.where(known == LONG_AGO, 0, program.start - known)
    last = np.argmax([before, launched, joined], axis=0)
    usual = np.zeros(len(program), dtype=np.int64)
    sorts = [np.ones(len(program), dtype=bool)] if program.issued_by is None else [program.is_comm, ~program.is_comm]
    for kind, sort in product(range(3), sorts):  # what came last: the one before, the launch, or what it joins
        own = (last == kind) & sort & (known != LONG_AGO)
        if own.any():
            usual[own] = max(int(np.median(measured[own])), 0)
    worked = program.paced & (last == _BEFORE)
    usual[worked] = measured[worked]
    return Delays(measured, usual)


def _returns(program: RankProgram, edges: Edges) -> dict[int, int]:
    """How much later than what it waited for a blocked call ended; -1 where it had not to wait."""
    found = {}
    for call, sources in edges.blocks.items():
        end = max(int(program.end[source]) for source in sources)
        found[call] = int(program.call_end[call]) - end if end >= program.call_start[call] else -1
    return found


def play(members: Sequence[Playing]) -> list[tuple[Ints, Ints]]:
    """New start and end of every activity, by member."""
    meeting = _Meeting(members)
    players = [_Player(member, meeting) for member in members]
    turns = [player.turns() for player in players]
    waiting = list(range(len(turns)))
    while waiting:
        left = []
        moved = False
        for number in waiting:
            progress = next(turns[number], None)
            moved = moved or progress is not False
            if progress is not None:
                left.append(number)
        waiting = left
        if waiting and not moved:
            meeting.give_up = True
    return [(player.start, player.end) for player in players]


class _Meeting:
    """When the members of each collective arrived."""

    def __init__(self, members: Sequence[Playing]) -> None:
        self.give_up = False
        self._missing: dict[int, set[int]] = {}
        self._at: dict[tuple[int, int], int] = {}
        self._last: dict[int, int] = {}
        for member in members:
            for collective in member.program.collective[member.program.collective != NONE].tolist():
                self._missing.setdefault(collective, set()).add(member.program.rank)

    def arrive(self, collective: int, rank: int, at: int) -> None:
        self._missing[collective].discard(rank)
        self._at[collective, rank] = at
        self._last[collective] = max(at, self._last.get(collective, LONG_AGO))

    def met(self, collective: int, needs: int) -> int | None:
        """When the last of those arrived that are needed; None if one has not yet."""
        if needs == NONE:
            if self._missing[collective] and not self.give_up:
                return None
            self.give_up = False if self._missing[collective] else self.give_up
            return self._last[collective]
        found = self._at.get((collective, needs))
        if found is None and (needs in self._missing[collective]) and not self.give_up:
            return None
        if found is None:
            self.give_up = False if needs in self._missing[collective] else self.give_up
            return LONG_AGO
        return found


class _Piece(NamedTuple):
    """What begins a piece, and how many activities it has; `follows` tells whether one is before it on its lane."""

    first: int
    stop: int
    follows: bool
    part: int
    collective: int
    launched: int
    delay: int
    duration: int


class _Player:
    """One rank, piece by piece in the order in which it ran."""

    def __init__(self, member: Playing, meeting: _Meeting) -> None:
        self.member, self.meeting = member, meeting
        self.start, self.end = member.program.start.copy(), member.program.end.copy()
        program = member.program
        self.launch_start = np.where(program.launch == NONE, LONG_AGO, 0)
        known = program.launch != NONE
        self.launch_start[known] = (program.call_start - member.saved)[program.launch[known]]

    def turns(self) -> Iterator[bool]:
        """Whether there was some progress, whenever it waits for others."""
        member, program = self.member, self.member.program
        pieces = list(self._pieces())
        comm = np.flatnonzero(program.collective != NONE)
        blocked = sorted(member.edges.blocks)
        shifts = np.zeros(len(blocked) + 1, dtype=np.int64)
        times = np.concatenate([self._turn_of(member.cuts[:-1]), program.end[comm], program.call_end[blocked]])
        kinds = np.repeat([2, 0, 1], [len(pieces), len(comm), len(blocked)])
        which = np.concatenate([np.arange(len(pieces)), comm, np.arange(len(blocked))]).astype(np.int64)
        order = np.lexsort((kinds, times))
        moved = False
        for kind, what in zip(kinds[order].tolist(), which[order].tolist(), strict=True):
            if kind == 2:
                self._play(pieces[what], shifts)
            elif kind == 0:
                while (last := self.meeting.met(int(program.collective[what]), int(program.needs[what]))) is None:
                    yield moved
                    moved = False
                self.end[what] = max(last, int(self.start[what])) + int(member.transfer[what])
            else:
                shifts[what + 1] = self._returned(blocked[what], int(shifts[what]))
            moved = True

    def _pieces(self) -> Iterator[_Piece]:
        member, program = self.member, self.member.program
        firsts, stops = member.cuts[:-1], member.cuts[1:]
        follows = np.diff(program.lane, prepend=NONE)[firsts] == 0
        columns = (firsts, stops, follows, member.part[firsts], program.collective[firsts])
        times = (self.launch_start[firsts], member.delay[firsts], member.duration[firsts])
        return map(_Piece, *(column.tolist() for column in (*columns, *times)))

    def _turn_of(self, firsts: Ints) -> Ints:
        """When each piece can be played: after what it waits for, even if it seems to have begun a little earlier."""
        program, joins = self.member.program, self.member.edges.joins
        at: Ints = program.start[firsts].copy()
        blocked, part = np.array(sorted(self.member.edges.blocks), dtype=np.int64), self.member.part[firsts]
        held = part > 0
        at[held] = np.maximum(at[held], program.call_end[blocked[part[held] - 1]])
        for number, first in enumerate(firsts.tolist()):
            at[number] = max([int(at[number]), *(int(program.end[source]) for source in joins.get(first, ()))])
        for lane in np.unique(program.lane[firsts]):
            own = program.lane[firsts] == lane
            at[own] = np.maximum.accumulate(at[own])
        return at

    def _play(self, piece: _Piece, shifts: Ints) -> None:
        first = piece.first
        ready_at = int(self.end[first - 1]) if piece.follows else LONG_AGO
        for source in self.member.edges.joins.get(first, ()):
            ready_at = max(ready_at, int(self.end[source]))
        shift = int(shifts[piece.part]) if piece.part != NONE else 0
        launched = piece.launched + shift
        if ready_at == LONG_AGO and launched <= LONG_AGO // 2:
            ready_at = int(self.member.program.start[first]) - piece.delay
        if piece.stop - first == 1:
            start = max(ready_at, launched) + piece.delay
            self.start[first], self.end[first] = start, start + piece.duration
        else:
            self._play_many(slice(first, piece.stop), ready_at, shift)
        if piece.collective != NONE:
            self.meeting.arrive(piece.collective, self.member.program.rank, int(self.start[first]))

    def _play_many(self, these: slice, ready_at: int, shift: int) -> None:
        """Activities that begin one after the other, none of which waits for anything else but its launch."""
        duration = self.member.duration[these]
        spent = self.member.delay[these] + duration
        so_far = np.cumsum(spent)
        launched = self.launch_start[these] + shift
        ends = so_far + np.maximum(np.maximum.accumulate(launched - (so_far - spent)), ready_at)
        self.end[these], self.start[these] = ends, ends - duration

    def _returned(self, call: int, shift: int) -> int:
        """How much later than measured the CPU goes on after a call that waits for the device."""
        program, member = self.member.program, self.member
        sources = member.edges.blocks[call]
        ended = max(int(self.end[source]) for source in sources)
        returns = member.returns[call]
        own = int(program.call_end[call] - program.call_start[call]) if returns < 0 else 0
        saved = int(member.saved[call])
        at = max(int(program.call_start[call]) - saved + shift + own, ended + max(returns, 0))
        return at - (int(program.call_end[call]) - saved)
