"""After how many steps those of a loop repeat: its period, by what tells sorts of steps apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

SEEN_BY_WORK = 2
"""How often each step of a period must have been seen, where what tells them apart is what they do."""


def repeats_after(numbers: Sequence[int], sorts: Sequence[Hashable], seen: int = SEEN_BY_WORK) -> int | None:
    """The least number of steps after which their sorts repeat, each seen so often; None if they never do.

    `numbers` are those of the steps, ascending, and may have gaps. If all steps are of one sort, none repeats.
    """
    if len(set(sorts)) < 2:
        return None
    return next((n for n in range(2, len(numbers) // seen + 1) if _repeats(numbers, sorts, n, seen)), None)


def _repeats(numbers: Sequence[int], sorts: Sequence[Hashable], count: int, seen: int) -> bool:
    found: dict[int, Hashable] = {}
    often: Counter[int] = Counter()
    for number, sort in zip(numbers, sorts, strict=True):
        place = number % count
        if found.setdefault(place, sort) != sort:
            return False
        often[place] += 1
    return len(often) == count and min(often.values()) >= seen
