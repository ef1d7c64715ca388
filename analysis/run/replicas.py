"""Which ranks of a serving engine serve the same requests: with data parallelism, each replica serves its own."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence

_NAMED = re.compile(r"(?<![A-Za-z0-9])dp[-_]?(?:rank[-_]?)?([0-9]{1,6})(?![A-Za-z0-9])", re.IGNORECASE)
"""The replica in the name of a file of vLLM (`dp1_pp0_tp0_rank2`) or SGLang (`1743-TP-0-DP-1`)."""


def replicas(said: Mapping[int, Mapping[int, Hashable]], names: Mapping[int, str]) -> dict[int, int] | None:
    """The replica of each rank, by what its annotations say of each step, and by the name of its file.

    Ranks of one replica say the same of all steps. None where ranks may only seem to differ, since their captures begin
    with different steps, or as they are stages of a pipeline: what some say is what others say some steps later.
    """
    named = {rank: match[1] for rank in said if (match := _NAMED.search(names[rank]))}
    if len(named) == len(said) and len(set(named.values())) > 1:
        numbers = sorted(set(named.values()), key=int)
        return {rank: numbers.index(number) for rank, number in named.items()}
    firsts: list[int] = []
    found: dict[int, int] = {}
    for rank in sorted(said):
        alike = [place for place, first in enumerate(firsts) if _agree(said[first], said[rank])]
        if not alike:
            firsts.append(rank)
        found[rank] = alike[0] if alike else len(firsts) - 1
    of_steps = [[said[rank][step] for step in sorted(said[rank])] for rank in firsts]
    return None if any(_is_later(own, of_steps[0]) for own in of_steps[1:]) else found


def _agree(first: Mapping[int, Hashable], second: Mapping[int, Hashable]) -> bool:
    return all(first[step] == said for step, said in second.items() if step in first)


def _is_later(first: Sequence[Hashable], second: Sequence[Hashable]) -> bool:
    """Whether one says some steps later what the other says, and that is not just always the same."""
    for early, late in ((first, second), (second, first)):
        for shift in range(1, len(late) // 2 + 1):
            both = list(zip(early, late[shift:], strict=False))
            same = all(a == b for a, b in both)
            if same and (len(first) != len(second) or len({a for a, _ in both}) > 1):
                return True
    return False
