"""What a scenario is, and several of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from ..engine import Playing

Change = Callable[[Sequence[Playing]], list[Playing]]
"""Members of a cycle -> the same with other durations, or fewer waits."""


@dataclass(frozen=True)
class Scenario:
    """What is different, in words; what that takes for granted; and how it is done.

    Where it is not known how exactly, there are several ways, between which the truth should lie.
    """

    name: str
    assumes: str
    changes: tuple[Change, ...]


def all_at_once(name: str, scenarios: Sequence[Scenario]) -> Scenario:
    """All of them at once, one after the other."""
    assumes = "; ".join(dict.fromkeys(each.assumes for each in scenarios))
    ways = product(*(each.changes for each in scenarios))
    return Scenario(name, assumes, tuple(_one_after_the_other(changes) for changes in ways))


def _one_after_the_other(changes: Sequence[Change]) -> Change:
    def change(members: Sequence[Playing]) -> list[Playing]:
        changed = list(members)
        for each in changes:
            changed = each(changed)
        return changed

    return change
