"""Which of many like cases `make test` runs; `make test-all` runs the others too (docs/testing.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random
from typing import Any

import pytest


def with_slow(quick: Iterable[Any], slow: Iterable[Any]) -> list[Any]:
    """All cases, each a value or a tuple of values, those of `slow` marked as such."""
    return [*quick, *(pytest.param(*_values(case), marks=pytest.mark.slow) for case in slow)]


def a_sample(cases: Collection[Any], count: int, seed: int = 0) -> list[Any]:
    """All cases in their order; but for so many, which are the same every time, they are marked as slow."""
    quick = set(Random(seed).sample(range(len(cases)), min(count, len(cases))))
    return [
        case if number in quick else pytest.param(*_values(case), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
