"""The difference of a price in two runs, and its interval.

Each run's price is wrong by what its replay is wrong by. Runs of one program are so in nearly the same way, and what
their replays are wrong by differently is known: by so much does the difference of their lengths miss the measured one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, sqrt
from statistics import fmean
from typing import NamedTuple

import numpy as np

from ..core.student import PAIRS_NEEDED, student_quantile
from ..metrics.prices import Gain
from .lengths import Lengths
from .scenarios.scenario import Scenario
from .table import UNSURE, Case, Replay, standard_error

_LEVEL = 0.05
"""Of chance: the interval holds the truth in 95 of 100."""


class Price(NamedTuple):
    """What a step of one side gains: the mean over its captures, and how it is played in each; by nothing if None."""

    gain: Gain
    played: Sequence[tuple[Replay, Scenario | None]]


def difference_bounds(a: Price, b: Price) -> tuple[float, float]:
    """The interval of how much more a step of B gains than one of A, in ns, at a level of 95 %."""
    ns = b.gain.ns - a.gain.ns
    sides = [[_cases(*each) for each in side.played] for side in (a, b)]
    every = dict.fromkeys(case for side in sides for of_capture in side for case in of_capture)
    means = {case: [fmean(_mean(_known(each, case)) for each in side) for side in sides] for case in every}
    of_cases = [ns, *(in_b - in_a for in_a, in_b in means.values())]
    leaves_out = any(scenario is not None and scenario.leaves_out for side in (a, b) for _, scenario in side.played)
    unsure = UNSURE * abs(ns) if leaves_out else 0.0
    slack = _chance(a, b, sides) + _differing_error(a, b)
    return min(*of_cases, ns - unsure) - slack, max(*of_cases, ns + unsure) + slack


def _cases(replay: Replay, scenario: Scenario | None) -> dict[Case, Lengths]:
    return {Case(): dict.fromkeys(replay.errors_ns, 0.0)} if scenario is None else replay.less_by_case(scenario)


def _known(of_cases: dict[Case, Lengths], case: Case) -> Lengths:
    """The gains of a case; where this run was not played so, those of the most similar case."""
    for nearest in (case, case._replace(waiting=False), case._replace(usual=False), Case(way=case.way)):
        if nearest in of_cases:
            return of_cases[nearest]
    return next(iter(of_cases.values()))


def _mean(lengths: Lengths) -> float:
    return fmean(lengths.values()) if lengths else 0.0


def _differing_error(a: Price, b: Price) -> float:
    """By how much the difference of the replayed steps may miss that of the measured ones, in ns."""
    of_sides = [[replay.errors_ns for replay, _ in side.played] for side in (a, b)]
    means = [fmean(_mean(each) for each in side) for side in of_sides]
    return abs(means[1] - means[0])


def _chance(a: Price, b: Price, sides: Sequence[Sequence[dict[Case, Lengths]]]) -> float:
    """By how much the difference may be off since steps differ, or captures, whichever is more, in ns."""
    if any(scenario is not None and scenario.limit for side in (a, b) for _, scenario in side.played):
        return 0.0
    gains = [[next(iter(each.values())) for each in side] for side in sides]
    lengths = [[replay.lengths_ns for replay, _ in side.played] for side in (a, b)]
    by_step = [[_by_step(side) for side in both] for both in (gains, lengths)]
    return max(_of_steps(*by_step), _of_captures(gains))


def _by_step(captures: Sequence[Lengths]) -> Lengths:
    """The mean over captures of each step."""
    steps = sorted({step for capture in captures for step in capture})
    return {step: fmean(capture[step] for capture in captures if step in capture) for step in steps}


def _of_steps(gains: Sequence[Lengths], lengths: Sequence[Lengths]) -> float:
    """Of the same steps, their differences tell; else each side by itself."""
    shared = sorted(gains[0].keys() & gains[1].keys())
    if len(shared) >= PAIRS_NEEDED:
        less, of_lengths = (np.array([both[1][step] - both[0][step] for step in shared]) for both in (gains, lengths))
        return standard_error(less, of_lengths) * student_quantile(len(shared) - 1, _LEVEL)
    errors = [
        standard_error(np.array([*of.values()]), np.array([in_all[step] for step in of]))
        for of, in_all in zip(gains, lengths, strict=True)
    ]
    freedom = sum(max(len(of) - 1, 0) for of in gains)
    return hypot(*errors) * student_quantile(freedom, _LEVEL) if freedom else 0.0


def _of_captures(gains: Sequence[Sequence[Lengths]]) -> float:
    """Known where a side has several."""
    means = [np.array([_mean(each) for each in side]) for side in gains]
    freedom = sum(len(each) - 1 for each in means)
    if not freedom:
        return 0.0
    spread = sqrt(sum(float(((each - each.mean()) ** 2).sum()) for each in means) / freedom)
    return spread * sqrt(sum(1 / len(each) for each in means)) * student_quantile(freedom, _LEVEL)
