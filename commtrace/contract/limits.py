"""Bounds of the numbers in side files: beyond them they are mistakes, or attempts to break sums."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

RANK_LIMIT = 1 << 20
"""No job has more: a larger number of ranks is a mistake, or an attempt to fill the memory."""

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
"""The number of ranks of a job."""

Fraction = Annotated[float, Meta(ge=0, le=1)]
"""From 0 to 1."""
