"""sweep.json: the cells of a sweep."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .limits import Count, Ranks
from .modes import Mode


class SweepCell(Struct, frozen=True):
    """One cell, and how it ended."""

    run: str
    model: str
    parallel: Mode
    workers: Ranks
    batch_size_per_rank: Count
    status: Literal["open", "done", "out_of_memory", "out_of_data", "failed", "skipped"]
    reason: str | None = None


class SweepRecord(Struct, frozen=True):
    """All of it that is read."""

    schema_version: int
    cells: list[SweepCell]
