"""Words for people that depend on numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


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


def bytes_text(size: int | None) -> str:
    """`144 MiB`, `2.25 KiB`, `192 B`; `unknown size` for None."""
    if size is None:
        return "unknown size"
    number, unit = float(size), 0
    while number >= 1024 and unit < len(_BYTES) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:,.3g} {_BYTES[unit]}" if number < 1000 else f"{number:,.0f} {_BYTES[unit]}"


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
