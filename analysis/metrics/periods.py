"""Loops that are longer than a step: every few steps one differs, as by a rollout, a sync, an evaluation, a checkpoint.

In such a loop no step is like the others, and what counts is a whole period of it. A period is believed where the work
of steps repeats: how many collectives they have, how many kernels, or what annotations say of them; each step of the
period must have been seen twice. Lengths alone prove less, for two hiccups always lie some number of steps apart: there
each step must have been seen three times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from ...common.repeats import SEEN_BY_WORK, repeats_after

_WORK_APART, _LENGTHS_APART = 1.1, 1.25
"""Counts, and lengths, of two sorts of steps are apart if all of one sort are larger by this factor."""
_LEAST_APART = 1.1
"""Where the means of no two steps of a period are apart by this factor, any step stands for all."""
_SEEN_BY_LENGTH = 3
"""How often each step of a period must have been seen, where only lengths tell steps apart."""
_OF_TRAINING = frozenset({None, "train", "eval", "checkpoint"})
START_UP_STEPS = 2
"""The first steps allocate memory, pick algorithms and rebuild DDP's buckets: they say nothing about the others."""


class StepWork(NamedTuple):
    """What a step is: its number, kind, collectives and kernels on all devices together, and its length."""

    step: int
    kind: str | None
    collectives: int
    kernels: int
    window_ns: int


class Period(NamedTuple):
    """So many `steps` repeat; those whose number has a remainder in `long`, divided by `steps`, take longer."""

    steps: int
    long: frozenset[int]

    def place(self, step: int) -> int:
        """Which of the period a step is, from 0."""
        return step % self.steps

    def is_long(self, step: int) -> bool:
        """Whether a step is of those that take longer."""
        return self.place(step) in self.long

    def whole(self, steps: Collection[int]) -> list[int]:
        """Of these steps, ascending, those that make up whole periods without a gap."""
        found: list[int] = []
        run: list[int] = []
        for step in sorted(steps):
            if run and step != run[-1] + 1:
                run = []
            run.append(step)
            if len(run) == self.steps:
                found += run
                run = []
        return found


def may_repeat(kinds: Iterable[str | None]) -> bool:
    """Whether steps of these kinds may be those of a loop. Requests come when they come: what serves has no period."""
    return set(kinds) <= _OF_TRAINING


def period_of(steps: Sequence[StepWork]) -> Period | None:
    """The shortest period in which these steps repeat; None if they do not, or if none of it takes longer."""
    kinds = [each.kind for each in steps]
    collectives = _levels([each.collectives for each in steps], _WORK_APART)
    communicating = _larger([each.collectives for each in steps], _WORK_APART)
    kernels = _larger([each.kernels for each in steps], _WORK_APART)
    lengths = _larger([each.window_ns for each in steps], _LENGTHS_APART)
    # All that repeats first: of a rollout every 4 steps and an evaluation every 8, the period is 8.
    for seen, sorts in (
        (SEEN_BY_WORK, list(zip(kinds, collectives, kernels, strict=True))),
        *((SEEN_BY_WORK, sorts) for sorts in (kinds, collectives, communicating, kernels)),
        (_SEEN_BY_LENGTH, lengths),
    ):
        count = repeats_after([each.step for each in steps], sorts, seen)
        if count is not None and (long := _long_places(steps, count)):
            return Period(count, long)
    return None


def _levels(values: Sequence[int], factor: float) -> list[int]:
    """A number for each value, the same for those with no gap between them that is as wide as the factor.

    For what the program fixes, as calls of collectives.
    """
    ordered = sorted(set(values))
    borders = [after for before, after in pairwise(ordered) if _ratio(before, after) >= factor]
    return [bisect_right(borders, value) for value in values]


def _larger(values: Sequence[int], factor: float) -> list[bool]:
    """Whether each value is beyond the widest gap among them, all False where none is as wide as the factor.

    What data decide, as how much is generated, differs each time, but less than what else a step does.
    """
    border = _widest_gap(values, factor)
    return [border is not None and value >= border for value in values]


def _widest_gap(values: Collection[float], factor: float) -> float | None:
    """The first value beyond the widest gap; None where none is as wide."""
    ratios = {after: _ratio(before, after) for before, after in pairwise(sorted(set(values)))}
    widest = max(ratios, key=ratios.__getitem__, default=None)
    return widest if widest is not None and ratios[widest] >= factor else None


def _ratio(less: float, more: float) -> float:
    """How far apart two values are; 0 and 1 as far as 1 and 2."""
    return (more + 1) / (less + 1)


def _long_places(steps: Sequence[StepWork], count: int) -> frozenset[int]:
    lengths: dict[int, list[int]] = defaultdict(list)
    for each in steps:
        lengths[each.step % count].append(each.window_ns)
    means = {place: fmean(own) for place, own in lengths.items()}
    border = _widest_gap(means.values(), _LEAST_APART)
    return frozenset(place for place, mean in means.items() if border is not None and mean >= border)
