"""Words for people that depend on numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def counted(number: int, noun: str) -> str:
    """`1 trace`, `2 traces`, `1,000 traces`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `4th`, `12th`."""
    is_teen = number % 100 in (11, 12, 13)
    return f"{number:,}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if words[1:] else "".join(words)


def shortened(values: Sequence[object], most: int) -> str:
    """`a, b`, or `a, b, ...` where there are more than `most`."""
    return ", ".join(map(str, values[:most])) + (", ..." if len(values) > most else "")


def ranges_of(values: Sequence[int], most: int | None = 12) -> str:
    """Ascending numbers as ranges: `0-3, 5`; no more than `most` of them."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1][1:] = [value]
        else:
            runs.append([value])
    return shortened(["-".join(map(str, run)) for run in runs], len(runs) if most is None else most)


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0, 4-7`."""
    ordered = sorted(ranks)
    return f"rank{'s' if len(ordered) > 1 else ''} {ranges_of(ordered, None)}"
