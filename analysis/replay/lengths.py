"""Lengths of steps, as measured and as replayed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .engine import Playing, play_all
from .programs import RankProgram

Lengths = dict[int, float]
"""Step -> its length in ns, mean over ranks."""
Variants = Callable[[list[Playing]], Iterable[list[Playing]]]
"""The members of a cycle -> the same, changed in different ways."""


def measured_lengths(cycles: Sequence[list[Playing]]) -> Lengths:
    """Measured length of each step, in ns."""
    of_steps: dict[int, list[int]] = defaultdict(list)
    for members in cycles:
        for member in members:
            for step, length in member.program.windows.lengths(member.program.start, member.program.end):
                of_steps[step].append(length)
    return _mean(of_steps)


def played_lengths(cycles: Sequence[list[Playing]], *, of_comm: bool = True) -> Lengths:
    """Replayed length of each step, in ns; without communication if `of_comm` is false."""
    every = lengths_of_all(cycles, lambda members: [members], of_comm=of_comm)
    return every[0] if every else {}


def lengths_of_all(cycles: Sequence[list[Playing]], variants: Variants, *, of_comm: bool = True) -> list[Lengths]:
    """Replayed lengths of each variant; all cycles have as many variants, and no cycles give none."""
    of_variants: list[dict[int, list[int]]] = []
    for members in cycles:
        made: list[list[RankProgram]] = []

        def noted(members: list[Playing] = members, made: list[list[RankProgram]] = made) -> Iterable[list[Playing]]:
            for variant in variants(members):
                made.append([member.program for member in variant])
                yield variant

        for number, times in enumerate(play_all(noted(), whole=False)):
            if number == len(of_variants):
                of_variants.append(defaultdict(list))
            for program, (start, end) in zip(made[number], times, strict=True):
                windows = program.windows if of_comm else program.windows_without_comm
                for step, length in windows.lengths(start, end):
                    of_variants[number][step].append(length)
    return [_mean(of_steps) for of_steps in of_variants]


def _mean(of_steps: dict[int, list[int]]) -> Lengths:
    return {step: float(np.mean(lengths)) for step, lengths in of_steps.items()}
