"""What grows: memory that one place leaves behind again and again, up to the end of what was recorded.

Rounds are steps, or what stands for them (`rounds`). What is made once, such as the optimizer's state, what is
replaced, such as a batch, and what becomes full, such as a cache, a queue or a ring, do not grow. So growth must recur,
and its pauses must not become longer: what has paused for longer than ever before has stopped.

The first round is little evidence: what it replaces is older than the events and has no place, so all that is held
from round to round seems to grow there. So does later what replaces older blocks, as a queue of several batches: there
a place grows only by more than is released of older ones.

Each of three observations of a place is enough:
- what it leaves for good is older than any of its blocks was when it was released. This tells a leak from a queue
  where other blocks of the same place come and go.
- what it holds at the ends of rounds never falls. Of sizes that are drawn, three ascend once in six times; so either
  a block of each round that grows must be left, or all must grow by the same, or there must be several.
- what it holds is more by the same number of bytes than some rounds ago, in each round.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import Flags, Ints
from .held import BEFORE, DeviceMemory
from .places import Places
from .rounds import LEAST_ROUNDS, Rounds

_NO_CHANCE = 5
"""Rounds in which sizes that are drawn hardly ascend each time."""
_RECURS = 3
"""Rounds that must grow where others between them do not."""
_MANY, _AS_FAST = 6, 0.6
"""Of so many rounds that grow, in irregular distances, the later half must have at least this part of the earlier."""


class AllocatedAt(NamedTuple):
    """Where blocks are allocated: a region by its number in `RegionPaths`, a phase, an operator, a line of code."""

    region: int
    phase: int
    operator: str | None
    line: str | None


class Growth(NamedTuple):
    """By how much a place grows in a round: the mean from the first one that grows to the last, without the first.

    `grew` of the rounds, which are `rounds` in all, did grow.
    """

    per_round_bytes: int
    grew: int
    rounds: int


def place_codes(memory: DeviceMemory, places: Places) -> tuple[Ints, list[AllocatedAt]]:
    """Which of the distinct places each block was allocated at, -1 where it is older and no line is known of it."""
    blocks = memory.blocks
    known = (blocks.allocated != BEFORE) | (blocks.line != None)  # noqa: E711 - of each
    at = np.maximum(blocks.allocated, 0)
    line = _either(blocks.line, places.line[at]) if len(blocks) else blocks.line
    numbers: dict[AllocatedAt, int] = {}
    keys = zip(places.region[at].tolist(), places.phase[at].tolist(), places.operator[at], line, strict=True)
    codes = [
        numbers.setdefault(AllocatedAt(*key), len(numbers)) if is_known else -1
        for key, is_known in zip(keys, known, strict=True)
    ]
    return np.array(codes, dtype=np.int64), list(numbers)


def _either(first: NDArray[Any], otherwise: NDArray[Any]) -> NDArray[Any]:
    told: Flags = first != None  # noqa: E711 - of each
    return np.where(told, first, otherwise)


def growth_of_places(memory: DeviceMemory, codes: Ints, places: int, rounds: Rounds) -> dict[int, Growth]:
    """The growth of those places that grow, by their number; `codes` says at which each block was allocated."""
    if not rounds.tell_growth or not places:
        return {}
    blocks, bounds = memory.blocks, rounds.bounds
    known = codes >= 0

    def sums(here: Flags) -> Ints:
        return np.bincount(codes[here], blocks.alike_bytes[here], places).astype(np.int64)

    moments = (bounds[0][0], *(last for _, last in bounds))
    held = np.array([sums(known & blocks.held_at(event)) for event in moments])
    stays = known & (blocks.freed == memory.events)
    left = np.array([sums(stays & _within(blocks.allocated, *bound)) for bound in bounds])
    older = np.array([0, *(blocks.alike_bytes[~known & _within(blocks.freed, *bound)].sum() for bound in bounds[1:])])
    longest = np.zeros(places, dtype=np.int64)
    ended = known & ~stays
    lasted = rounds.of(blocks.freed[ended]) - rounds.of(blocks.allocated[ended])
    np.maximum.at(longest, codes[ended], lasted)
    found = {}
    for place in np.flatnonzero((held[-1] > held[1]) | (left[1:].sum(axis=0) > 0)).tolist():
        growth = (
            _outlives(left[:, place], older, int(longest[place]))  # first: other blocks add nothing to it
            or _never_falls(held[:, place], older, left[:, place])
            or _more_than_before(held[:, place], older)
        )
        if growth is not None:
            found[place] = growth
    return found


def growth_in_all(memory: DeviceMemory, rounds: Rounds) -> Growth | None:
    """The growth of all that is allocated on a device; None if it does not grow, or rounds are too few."""
    if not rounds.tell_growth:
        return None
    moments = (rounds.bounds[0][0], *(last for _, last in rounds.bounds))
    held = np.array([memory.allocated_at(event) for event in moments], dtype=np.int64)
    nothing = np.zeros(len(rounds.bounds), dtype=np.int64)
    return _never_falls(held, nothing, nothing) or _more_than_before(held, nothing)


def _within(events: Ints, before: int, last: int) -> Flags:
    found: Flags = (events > before) & (events <= last)
    return found


def _never_falls(held: Ints, older: Ints, left: Ints) -> Growth | None:
    """The growth of what is held before the first round and after each, if it falls in none but the first."""
    grown = np.diff(held)
    if (grown[1:] < 0).any():
        return None
    found = _recurring(np.where(grown > older, grown, 0))
    if found is None:
        return None
    by = grown[1:][grown[1:] > 0]
    is_left = bool((left[1:][grown[1:] > 0] > 0).all())
    is_chance = not is_left and len(set(by.tolist())) > 1 and len(by) < _NO_CHANCE - 1
    return None if is_chance else found


def _outlives(left: Ints, older: Ints, longest: int) -> Growth | None:
    """The growth by what is left in each round for good, and lasts longer than the `longest` that ended, in rounds."""
    judged = len(left) - longest - (longest > 0)
    amount = np.where(left > older, left, 0)
    if judged < LEAST_ROUNDS + (longest > 0):
        return None
    found = _recurring(amount[:judged])
    return None if found is None else found._replace(grew=int((amount > 0).sum()), rounds=len(left))


def _more_than_before(held: Ints, older: Ints) -> Growth | None:
    """The growth of what is more by the same in each round than some rounds ago, without the first one."""
    after = held[1:]
    for period in range(2, (len(after) - 1) // _RECURS + 1):
        more = after[period:] - after[:-period]
        released = np.convolve(older, np.ones(period, dtype=np.int64)).max()
        if more[0] > released and (more == more[0]).all():
            return Growth(int(more[0]) // period, int((np.diff(held) > 0).sum()), len(after))
    return None


def _recurring(amount: Ints) -> Growth | None:
    """The growth by these bytes in each round, if they recur up to the end."""
    rounds = len(amount)
    grew = np.flatnonzero(amount > 0)
    later = grew[grew > 0]
    is_regular = len(set(np.diff(grew).tolist())) == 1 and len(set(amount[grew].tolist())) == 1
    if not (len(later) == rounds - 1 and amount[0] > 0) and not is_regular:
        grew = later
    if len(grew) < _RECURS or not _goes_on(grew, rounds):
        return None
    first, last = int(grew[0]), int(grew[-1])
    return Growth(int(amount[first + 1 : last + 1].sum()) // (last - first), int((amount > 0).sum()), rounds)


def _goes_on(grew: Ints, rounds: int) -> bool:
    """Whether the rounds that grew recur up to the end of all: no pause is longer than those before it."""
    pauses = np.diff(grew)
    now = rounds - int(grew[-1])  # until the next round, if it were to grow
    if max(int(pauses[-1]), now) <= int(pauses[:-1].max(initial=pauses[0])):
        return True
    middle = (int(grew[0]) + rounds - 1) / 2
    early, late = int((grew <= middle).sum()), int((grew > middle).sum())
    return len(grew) >= _MANY and now <= pauses.max() and late >= _AS_FAST * early


def growing_blocks(memory: DeviceMemory, codes: Ints, growing: Collection[int]) -> Flags:
    """Which blocks a growing place leaves behind."""
    found: Flags = np.isin(codes, list(growing)) & (memory.blocks.freed == memory.events)
    return found
