"""Lengths of steps, as measured and as replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.steps import LATER_STEPS, NO_STEP
from ..metrics.clocks.frame import Ints
from .engine import Playing, play_all
from .programs import RankProgram, steps_of

Lengths = dict[int, float]
"""Step -> its length in ns, mean over ranks."""
Variants = Callable[[list[Playing]], Iterable[list[Playing]]]
"""The members of a cycle -> the same, changed in different ways."""


def measured_lengths(cycles: Sequence[list[Playing]]) -> Lengths:
    """Measured length of each step, in ns."""
    every = _Sum()
    for members in cycles:
        for member in members:
            every.add(_windows(member.program), member.program.start, member.program.end)
    return every.mean()


def played_lengths(cycles: Sequence[list[Playing]], *, of_comm: bool = True) -> Lengths:
    """Replayed length of each step, in ns; without communication if `of_comm` is false."""
    every = lengths_of_all(cycles, lambda members: [members], of_comm=of_comm)
    return every[0] if every else {}


def lengths_of_all(cycles: Sequence[list[Playing]], variants: Variants, *, of_comm: bool = True) -> list[Lengths]:
    """Replayed lengths of each variant; all cycles have as many variants, and no cycles give none."""
    sums: list[_Sum] = []
    for members in cycles:
        known = {id(member.program): _windows(member.program, of_comm=of_comm) for member in members}
        made: list[list[RankProgram]] = []

        def noted(members: list[Playing] = members, made: list[list[RankProgram]] = made) -> Iterable[list[Playing]]:
            for variant in variants(members):
                made.append([member.program for member in variant])
                yield variant

        for number, times in enumerate(play_all(noted())):
            if number == len(sums):
                sums.append(_Sum())
            for program, (start, end) in zip(made[number], times, strict=True):
                sums[number].add(known.get(id(program)) or _windows(program, of_comm=of_comm), start, end)
    return [each.mean() for each in sums]


@dataclass(frozen=True)
class _Windows:
    """Activities of a rank that belong to steps, step by step, and the first of each step.

    `by_start` are all activities as they began when they were measured. In each of the steps `waiting`, positions in
    `steps`, the devices waited for their host before its first activity: the first `before` of those had ended `after`
    ns earlier than they were idle in that step. Where none is known, it began at `after`, whatever is played.
    """

    steps: Sequence[int]
    activities: Ints
    first: Ints
    by_start: Ints
    waiting: Ints
    before: Ints
    after: Ints


def _windows(program: RankProgram, *, of_comm: bool = True) -> _Windows:
    step = steps_of(program)
    counted = of_comm | ~program.is_comm
    inside = np.flatnonzero((step != NO_STEP) & counted)
    inside = inside[np.argsort(step[inside], kind="stable")]
    steps, first = np.unique(step[inside], return_index=True)
    by_start = np.flatnonzero(counted)
    by_start = by_start[np.argsort(program.start[by_start], kind="stable")]
    begins = _begins(program.start[inside], first)
    done = np.maximum.accumulate(program.end[by_start])
    waiting: list[tuple[int, int, int]] = []
    for place, (number, begin) in enumerate(zip(steps.tolist(), begins.tolist(), strict=True)):
        since = program.idle_since.get(number, begin)
        if since < begin:
            before = int(np.searchsorted(program.start[by_start], begin, side="left"))
            waiting.append((place, before, since - int(done[before - 1]) if before else since))
    places, befores, afters = np.array(waiting, dtype=np.int64).reshape(-1, 3).T
    return _Windows(steps.tolist(), inside, first, by_start, places, befores, afters)


def _begins(start: Ints, first: Ints) -> Ints:
    """The earliest start of an activity of each step, or of a later one; `first` has the place of each step's first."""
    begins = np.minimum.reduceat(start, first) if len(first) else start
    earliest: Ints = np.minimum.accumulate(begins[::-1])[::-1]
    return earliest


class _Sum:
    """Sums of step lengths over ranks."""

    def __init__(self) -> None:
        self._lengths: dict[int, list[int]] = {}

    def add(self, windows: _Windows, start: Ints, end: Ints) -> None:
        """Add the devices of a rank, whose steps begin as in `core.steps.step_windows`."""
        if not len(windows.steps):
            return
        begins = _begins(start[windows.activities], windows.first)
        if len(windows.waiting):
            done = np.maximum.accumulate(end[windows.by_start])
            at = begins[windows.waiting]
            since = np.where(windows.before > 0, done[windows.before - 1], 0) + windows.after
            begins[windows.waiting] = np.minimum(at, since)
        begins = np.append(begins, end[windows.activities].max())
        for step, length in zip(windows.steps, np.diff(begins).tolist(), strict=True):
            if step != LATER_STEPS:
                self._lengths.setdefault(step, []).append(length)

    def mean(self) -> Lengths:
        return {step: float(np.mean(lengths)) for step, lengths in self._lengths.items()}
