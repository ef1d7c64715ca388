"""What repeats in the memory of a device: marked steps, or else cycles of forward and backward passes, or else time.

What is kept from one round to the next shows what grows and what a block is not for. Where steps are marked they are
the rounds. Else a backward pass ends each: what it frees is gone by then. Where there are none of these either, as in
inference, what was recorded is cut in equal parts, in which a program may stand anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core import markers
from ...core.arrays import Ints
from ...core.steps import Mark
from ..regions.nesting import BACKWARD, RECOMPUTE
from .held import BEFORE, NOT_RECORDED, DeviceMemory
from .places import Places

IN_STEPS, IN_CYCLES, IN_PARTS = "step", "cycle", "part"
LEAST_ROUNDS = 3
"""Rounds of which growth can be told: two after the first one."""
_PARTS = 8


class Rounds(NamedTuple):
    """Rounds of one kind, `per`: the last event before each began, BEFORE if there is none, and the last one in it."""

    per: str
    bounds: list[tuple[int, int]]

    @property
    def tell_growth(self) -> bool:
        """Whether they are enough to tell what grows."""
        return len(self.bounds) >= LEAST_ROUNDS

    def of(self, event: Ints) -> Ints:
        """The number of the round of each event, from 0; that of all rounds for what is later."""
        found: Ints = np.searchsorted([last for _, last in self.bounds], event, side="left")
        return found


def growth_rounds(memory: DeviceMemory, places: Places, marks: Sequence[Mark]) -> Rounds:
    """The rounds by which growth is told. Of few marked steps nothing is told, whatever repeats within them."""
    rounds = passes(memory, places, marks)
    return rounds if rounds.per == IN_STEPS or rounds.tell_growth else Rounds(IN_PARTS, _parts(memory))


def passes(memory: DeviceMemory, places: Places, marks: Sequence[Mark]) -> Rounds:
    """The steps, if any are marked, or else the cycles."""
    steps = step_events(memory, marks)
    return Rounds(IN_STEPS, list(steps.values())) if steps else Rounds(IN_CYCLES, _cycles(places))


def step_events(memory: DeviceMemory, marks: Sequence[Mark]) -> dict[int, tuple[int, int]]:
    """The last event before each step began, and the last one in it; by the number of the step, ascending."""
    found = {}
    for name, start, dur in marks:
        if name.startswith(markers.PROFILER_STEP):
            number = int(name.removeprefix(markers.PROFILER_STEP))
            found[number] = memory.event_at(start - 1), memory.event_at(start + dur)
    return dict(sorted(found.items()))


def segments(places: Places) -> tuple[Ints, Ints]:
    """The number and the phase of the segment that each event is in; recomputation is part of a backward pass.

    Segments follow each other. Threads beside that of the steps and autograd's, such as those of gloo, have none of
    their own.
    """
    alike = np.where(places.phase == RECOMPUTE, BACKWARD, places.phase)
    last = np.maximum.accumulate(np.where(places.is_main, np.arange(len(alike)), 0))
    alike = alike[last]
    return np.append(0, np.cumsum(alike[1:] != alike[:-1]))[: len(alike)], alike


def _cycles(places: Places) -> list[tuple[int, int]]:
    """From the end of each backward pass to that of the next one."""
    _, phase = segments(places)
    is_last = (phase[:-1] == BACKWARD) & (phase[1:] != BACKWARD)
    ends = np.flatnonzero(np.append(is_last, phase[-1:] == BACKWARD)).tolist()
    return list(zip([BEFORE, *ends], ends, strict=False))


def _parts(memory: DeviceMemory) -> list[tuple[int, int]]:
    """Equal parts of the time, or of the events where their times are not known."""
    if memory.events <= _PARTS:
        return []
    times = np.arange(memory.events) if memory.time_ns[0] == NOT_RECORDED else memory.time_ns
    begin, whole = int(times[0]), int(times[-1] - times[0])
    edges = [begin + whole * part // _PARTS for part in range(1, _PARTS + 1)]
    ends = (np.searchsorted(times, edges, side="right") - 1).tolist()
    return list(zip([BEFORE, *ends], ends, strict=False))
