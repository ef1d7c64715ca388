"""A scenario, and several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from statistics import fmean

from ..engine import Playing

Change = Callable[[Sequence[Playing]], list[Playing]]
"""Members of a cycle -> the same with other durations, or fewer waits."""
Cycles = Sequence[Sequence[Playing]]
"""The members of each cycle."""


@dataclass(frozen=True)
class Scenario:
    """A change of a run, and the ways to make it.

    Where it is not known how exactly, there are several ways, between which the truth should lie: in the middle, or by
    the way that is the likeliest.
    """

    name: str
    """In words."""
    assumes: str
    changes: tuple[Change, ...]
    """A way each; without any, nothing can be said."""
    unknown: str = ""
    """Why nothing can be said between the ways, or at all."""
    ranks_times: float | None = None
    """With how many times as many ranks; None for as many."""
    work_times: float = 1.0
    """How many times as much a step then does."""
    limit: bool = False
    """Steps run into each other: a mean over them is all that can be said."""
    likeliest: int | None = None
    """Which of the ways."""
    tightest: bool = False
    """Each way is a bound: the tightest counts."""
    leaves_out: bool = False
    """It makes no step longer; what goes with that is not known exactly."""
    never_longer: bool = False
    """It makes no step longer."""
    of_ranks: bool = False
    """Ranks become like others."""
    least: Callable[[Cycles], dict[int, float]] | None = None
    """How long steps are at least, in ns by step."""
    ends: tuple[tuple[Change, ...], ...] = ()
    """The same ways at other costs: the gain lies between theirs."""

    @property
    def likely(self) -> Scenario:
        """The same by its likeliest way alone, if there is one: enough for a gain without its bounds."""
        return self if self.likeliest is None else replace(self, changes=(self.changes[self.likeliest],), likeliest=0)

    def most_likely(self, of_ways: Sequence[float]) -> float:
        """The gain to report, given that of each way."""
        if self.tightest:
            return min(of_ways)
        return fmean(of_ways) if self.likeliest is None else of_ways[self.likeliest]


def all_at_once(name: str, scenarios: Sequence[Scenario]) -> Scenario:
    """Combine scenarios, applied one after the other."""
    assumes = "; ".join(dict.fromkeys(each.assumes for each in scenarios))
    unknown = "; ".join(dict.fromkeys(each.unknown for each in scenarios if each.unknown))
    ways = _combined([each.changes for each in scenarios])
    ends = [
        _combined([end if one is each else one.changes for one in scenarios]) for each in scenarios for end in each.ends
    ]
    grown = [each for each in scenarios if each.ranks_times is not None]
    return Scenario(
        name,
        assumes,
        ways,
        unknown,
        prod(each.ranks_times or 1.0 for each in grown) if grown else None,
        prod(each.work_times for each in scenarios),
        limit=any(each.limit for each in scenarios),
        likeliest=_likeliest(scenarios),
        tightest=any(each.tightest for each in scenarios),
        leaves_out=all(each.leaves_out for each in scenarios),
        never_longer=all(each.leaves_out or each.never_longer for each in scenarios),
        of_ranks=any(each.of_ranks for each in scenarios),
        least=_least(scenarios),
        ends=tuple(ends),
    )


def _least(scenarios: Sequence[Scenario]) -> Callable[[Cycles], dict[int, float]] | None:
    """How long steps are at least; None if nothing bounds them. What bounds them is as the other scenarios make it."""
    bounding = [each for each in scenarios if each.least is not None]
    if not bounding:
        return None

    def least(cycles: Cycles) -> dict[int, float]:
        found: dict[int, float] = {}
        for each in bounding:
            others = [one.changes[one.likeliest or 0] for one in scenarios if one is not each and one.changes]
            change = _one_after_the_other(others)
            assert each.least is not None
            for step, ns in each.least([change(members) for members in cycles]).items():
                found[step] = max(found.get(step, 0.0), ns)
        return found

    return least


def _combined(ways: Sequence[Sequence[Change]]) -> tuple[Change, ...]:
    """Each combination of a way of each scenario."""
    return tuple(_one_after_the_other(changes) for changes in product(*ways))


def _likeliest(scenarios: Sequence[Scenario]) -> int | None:
    """Index, as `product` counts, of the combination of the likeliest ways; None if one has none."""
    number = 0
    for each in scenarios:
        if each.likeliest is None and len(each.changes) != 1:
            return None
        number = number * len(each.changes) + (each.likeliest or 0)
    return number


def _one_after_the_other(changes: Sequence[Change]) -> Change:
    def change(members: Sequence[Playing]) -> list[Playing]:
        changed = list(members)
        for each in changes:
            changed = each(changed)
        return changed

    return change
