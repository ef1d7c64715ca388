"""Words for people that depend on a number."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """`1 trace`, `2 traces`, `1,000 traces`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0, 4-7`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    plural = len(runs) > 1 or any(len(run) > 1 for run in runs)
    return f"rank{'s' if plural else ''} {', '.join('-'.join(map(str, run)) for run in runs)}"
