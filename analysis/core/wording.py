"""Words for people that depend on a number."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """`1 trace`, `2 traces`, `1,000 traces`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if words[1:] else "".join(words)


def ranges_of(values: Sequence[int], most: int | None = 12) -> str:
    """`0-3, 5`; at `most` so many ranges."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    parts = [str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs]
    return ", ".join(parts[:most]) + (", ..." if most is not None and len(parts) > most else "")
