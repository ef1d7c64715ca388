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
"""Step -> its length in ns, mean over devices."""
Variants = Callable[[list[Playing]], Iterable[list[Playing]]]
"""The members of a cycle -> the same, changed in different ways."""


def measured_lengths(cycles: Sequence[list[Playing]]) -> Lengths:
    """Measured length of each step, in ns."""
    every = _Sum()
    for members in cycles:
        for member in members:
            for windows in _windows(member.program):
                every.add(windows, member.program.start, member.program.end)
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
                for windows in known.get(id(program)) or _windows(program, of_comm=of_comm):
                    sums[number].add(windows, start, end)
    return [each.mean() for each in sums]


@dataclass(frozen=True)
class _Windows:
    """Activities of one device that belong to steps, step by step, and the first of each step."""

    steps: Sequence[int]
    activities: Ints
    first: Ints


def _windows(program: RankProgram, *, of_comm: bool = True) -> list[_Windows]:
    step = steps_of(program)
    windows = []
    for device in sorted(set(program.device.tolist())):
        inside = np.flatnonzero((program.device == device) & (step != NO_STEP) & (of_comm | ~program.is_comm))
        inside = inside[np.argsort(step[inside], kind="stable")]
        steps, first = np.unique(step[inside], return_index=True)
        if len(steps):
            windows.append(_Windows(steps.tolist(), inside, first))
    return windows


class _Sum:
    """Sums of step lengths over devices."""

    def __init__(self) -> None:
        self._lengths: dict[int, list[int]] = {}

    def add(self, windows: _Windows, start: Ints, end: Ints) -> None:
        """Add a device: as in `core.steps.step_windows`, a step lasts until the first activity of a later one."""
        begins = np.minimum.reduceat(start[windows.activities], windows.first)
        begins = np.append(np.minimum.accumulate(begins[::-1])[::-1], end[windows.activities].max())
        for step, length in zip(windows.steps, np.diff(begins).tolist(), strict=True):
            if step != LATER_STEPS:
                self._lengths.setdefault(step, []).append(length)

    def mean(self) -> Lengths:
        return {step: float(np.mean(lengths)) for step, lengths in self._lengths.items()}
