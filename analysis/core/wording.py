"""Words for people that depend on a number."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 trace`, `2 traces`, `1,000 traces`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
