"""Where text is shown: a terminal of some width, or a place without a limit."""

from __future__ import annotations

from dataclasses import dataclass

MOST_RANKS = 16
"""Of more ranks, the worst are shown, so many as `WORST`."""
WORST = 8


@dataclass(frozen=True)
class Screen:
    """Properties of the place where text is shown."""

    width: int | None = None
    """In columns; None: as wide as it needs to be."""
    worst_only: bool = False
    """Of many ranks the worst only, with minimum, median and maximum of all."""
    everything: bool = False
    """All rows, however many, where otherwise only the first, or the worst, are shown."""
    wanted: tuple[str, ...] = ()
    """Columns that somebody asked for, which are shown before all others."""
    first: int | None = None
    """Of a table whose rows add up to a step, so many rows are shown."""
    of_each: tuple[str, ...] = ()
    """Columns for each combination of which that many are."""
    how_to_see_all: str = "--all shows all"
    """What is said where something is left out."""
    colour: bool = False
    ascii_only: bool = False


PAPER = Screen()
"""No terminal: everything as wide as it needs to be, without colours."""
