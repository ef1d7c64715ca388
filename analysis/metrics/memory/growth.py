"""What grows from step to step: memory that each step leaves behind at one place.

Growth of a step is what a place holds at the end of the step, less what it held at its beginning. Only what grows in
every step is said to grow: what is made once, such as the optimizer's state, what is replaced, such as a batch, and a
cache that becomes full, do not. The first step tells nothing: what it replaces is older than the events and has no
place, so all that is held from step to step seems to grow there. So does in later steps what replaces older blocks,
as a queue of several batches: there a place grows only by more than is released of older ones. Of sizes that are
drawn, three ascend once in six times; so where a place does not grow by the same in each step, a block of each must
be left, or five steps be seen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.steps import Mark
from ..clocks.frame import Flags, Ints
from .categories import step_events
from .held import BEFORE, DeviceMemory
from .places import Places

LEAST_STEPS = 3
"""Steps of which growth can be told: two after the first one."""
_NO_CHANCE = 5
"""Steps in which sizes that are drawn hardly ascend each time."""


class AllocatedAt(NamedTuple):
    """Where blocks are allocated: a region by its number in `RegionPaths`, a phase, an operator, a line of code."""

    region: int
    phase: int
    operator: str | None
    line: str | None


class Growth(NamedTuple):
    """By how much the memory of a place grows in a step: the mean over `steps` successive ones without the first."""

    per_step_bytes: int
    steps: int


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


def growth_of_places(memory: DeviceMemory, codes: Ints, places: int, marks: Sequence[Mark]) -> dict[int, Growth]:
    """The growth of those places that grow, by their number; `codes` says at which each block was allocated."""
    steps = list(step_events(memory, marks).values())
    if len(steps) < LEAST_STEPS or not places:
        return {}
    blocks = memory.blocks
    known = codes >= 0

    def held(event: int) -> Ints:
        here = known & blocks.held_at(event)
        return np.bincount(codes[here], blocks.size_bytes[here], places).astype(np.int64)

    at_ends = np.array([held(steps[0][0]), *(held(last) for _, last in steps)])
    grown = np.diff(at_ends, axis=0)
    left = np.array([_left(memory, codes, places, first, last) for first, last in steps[:-1]])
    released = np.array([0, *(_released_of_older(memory, codes, first, last) for first, last in steps[1:])])
    found = {}
    for place in np.flatnonzero((grown > released[:, np.newaxis]).all(axis=0)).tolist():
        if _is_steady(grown[:, place], leaves=bool((left[:, place] > 0).all())):
            found[place] = Growth(int(grown[1:, place].mean()), len(steps))
    return found


def growth_in_all(memory: DeviceMemory, marks: Sequence[Mark]) -> Growth | None:
    """The growth of all that is allocated on a device; None if it does not grow, or too few steps are marked."""
    steps = list(step_events(memory, marks).values())
    if len(steps) < LEAST_STEPS:
        return None
    at_ends = [_allocated_at(memory, event) for event in (steps[0][0], *(last for _, last in steps))]
    grown = np.diff(np.array(at_ends, dtype=np.int64))
    if not (grown > 0).all() or not _is_steady(grown, leaves=False):
        return None
    return Growth(int(grown[1:].mean()), len(steps))


def _allocated_at(memory: DeviceMemory, event: int) -> int:
    """What is allocated once this event has happened; before the first one, what it found."""
    if event != BEFORE:
        return int(memory.allocated_bytes[event])
    return memory.found_bytes


def _left(memory: DeviceMemory, codes: Ints, places: int, first: int, last: int) -> Ints:
    """Bytes of each place that were allocated between two events and are never released."""
    blocks = memory.blocks
    here = (codes >= 0) & (blocks.allocated > first) & (blocks.allocated <= last) & (blocks.freed == memory.events)
    return np.bincount(codes[here], blocks.size_bytes[here], places).astype(np.int64)


def _released_of_older(memory: DeviceMemory, codes: Ints, first: int, last: int) -> int:
    """Bytes of blocks without a known place that are released between two events."""
    blocks = memory.blocks
    return int(blocks.size_bytes[(codes < 0) & (blocks.freed > first) & (blocks.freed <= last)].sum())


def _is_steady(grown: Ints, *, leaves: bool) -> bool:
    """Whether growth in each step is no chance; `leaves` says that a block of each step is left."""
    return leaves or len(set(grown[1:].tolist())) == 1 or len(grown) >= _NO_CHANCE


def growing_blocks(memory: DeviceMemory, codes: Ints, growing: Collection[int]) -> Flags:
    """Which blocks a growing place leaves behind."""
    found: Flags = np.isin(codes, list(growing)) & (memory.blocks.freed == memory.events)
    return found
