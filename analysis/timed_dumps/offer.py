"""What dumps of the flight recorder offer besides hangs. Needs no pandas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import NothingMeasured

TIMED_TABLES = ("calls", "collectives", "participation", "bandwidth", "fits")
"""The tables that dumps with durations have."""


def no_such_table(name: str) -> NothingMeasured:
    """The error for a table that dumps cannot give."""
    return NothingMeasured(
        f"{name}: dumps of the flight recorder say when calls were issued and how long they took, not when they ran, "
        f"nor what was computed; of tables there are {', '.join(TIMED_TABLES)}, and commtrace hang says who is missing"
    )


def name_of_dumps(paths: Sequence[Path]) -> str:
    """The name of the dumps in messages."""
    return paths[0].name or str(paths[0])
