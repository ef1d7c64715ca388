"""Bounds of the numbers in side files: beyond them they are mistakes, or attempts to break sums."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ..small_files import RANK_LIMIT

_MOST = 2**62

Count = Annotated[int, Meta(ge=1, le=_MOST)]
"""A number of things, at least one; or a time that cannot be 0."""

FromZero = Annotated[int, Meta(ge=0, le=_MOST)]
"""A time in ns, or a number, which may be 0."""

Instant = Annotated[int, Meta(ge=1, lt=_MOST)]
"""A time of a clock, in ns since 1970."""

ClockAhead = Annotated[int, Meta(gt=-_MOST, lt=_MOST)]
"""A difference between two clocks, in ns."""

Rank = Annotated[int, Meta(ge=0, le=RANK_LIMIT)]
"""Of a job."""

Ranks = Annotated[int, Meta(ge=1, le=RANK_LIMIT)]
"""How many a job has."""

Fraction = Annotated[float, Meta(ge=0, le=1)]
"""From 0 to 1."""

EpochPhase = Literal["warmup", "timed"]
"""Whether an epoch is one that counts."""
