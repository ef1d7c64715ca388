"""A rank to be replayed: durations of its activities, and delays after what they wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from ..core.arrays import Ints
from .edges import Edges
from .programs import RankProgram

_OF_WORK = ("lane", "start", "end", "step", "idle_since", "is_comm", "collective", "needs", "is_unsplit", "overlaps",
            "launch", "call_start", "call_end", "issued_by")  # fmt: skip


_Made = TypeVar("_Made")


@dataclass(eq=False)
class Playing:
    """A rank with durations: measured for compute and copies; for communication, the part after the last arrival.

    `saved` is how much earlier than measured its CPU makes each call, if it never waits for the device. What it did
    before its first step is changed on purpose if `with_head`: otherwise that stays as it was. Unsplit calls take a
    transfer of their whole length; if `awaiting`, they wait for somebody unseen instead, and end no earlier than they
    did.
    """

    program: RankProgram
    edges: Edges
    delay: Ints
    duration: Ints
    transfer: Ints
    returns: dict[int, int]
    saved: Ints
    with_head: bool = False
    awaiting: bool = False
    made: dict[Callable[[Playing], Any], Any] = field(init=False, default_factory=dict, repr=False)
    """What functions made of it, which are declared `once`."""

    def works_as(self, other: Playing) -> bool:
        """Whether it has the same work as another, so that only edges and times may differ."""
        ours, theirs = self.program, other.program
        return self.awaiting == other.awaiting and all(
            getattr(ours, column) is getattr(theirs, column) for column in _OF_WORK
        )


def once(make: Callable[[Playing], _Made]) -> Callable[[Playing], _Made]:
    """Let a function remember what it makes of a rank, as most changes of a run ask the same of most ranks."""

    @wraps(make)
    def found(member: Playing) -> _Made:
        if make not in member.made:
            member.made[make] = make(member)
        known: _Made = member.made[make]
        return known

    return found


def pairs_of(members: Sequence[Playing]) -> tuple[Ints, Ints]:
    """Joins and blocks of all members, as `Edges.pairs`, numbered one member after the other."""
    joins, blocks = [], []
    activities = calls = 0
    for member in members:
        of_member, of_calls = member.edges.pairs
        joins.append(of_member + activities)
        blocks.append(of_calls + np.array([[calls], [activities]]))
        activities += len(member.program)
        calls += len(member.program.call_start)
    return np.concatenate(joins, axis=1), np.concatenate(blocks, axis=1)


def as_waits(members: Sequence[Playing]) -> list[Playing]:
    """Treat unsplit calls as waiting only."""
    return [
        replace(member, awaiting=True, transfer=np.where(member.program.is_unsplit, 0, member.transfer))
        for member in members
    ]
