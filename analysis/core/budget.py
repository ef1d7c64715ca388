"""Budgets for reading: memory, drawn before it is allocated, and work, so that harmful files are refused.

Every reader draws from a `Budget`, whatever its format. Both are counted from what the file asks for, never measured:
the same file is refused, or read, on every machine with the same limit.
"""

from __future__ import annotations

import os

from ...common.memory import free_bytes
from ..errors import DamagedTrace, TooLarge

GB = 10**9
_SHARE = 0.8  # of what is free; the rest is for other programs
# A sound file takes far less work. What takes more refers to one of its parts again and again.
_STEPS, _STEPS_PER_BYTE = 5_000_000, 4


class Budget:
    """Memory and work that reading may take. Memory has no limit if it is None."""

    def __init__(self, limit_bytes: int | None, file_bytes: int = 0) -> None:
        """Start with a limit; the more `file_bytes` the files have, the more work they may take."""
        self._limit_bytes = limit_bytes
        self._drawn_bytes = 0
        self._steps_left = _STEPS + _STEPS_PER_BYTE * file_bytes

    @property
    def left_bytes(self) -> int | None:
        """Bytes that may still be drawn; None without limit."""
        return None if self._limit_bytes is None else max(0, self._limit_bytes - self._drawn_bytes)

    def check(self, what: str, needed_bytes: int) -> None:
        """Raise TooLarge unless `needed_bytes` fit beside what was drawn. `what` begins the message."""
        total_bytes = self._drawn_bytes + needed_bytes
        if self._limit_bytes is not None and total_bytes > self._limit_bytes:
            raise TooLarge(
                f"{what} would take {_size(total_bytes)} of memory or more, and {_size(self._limit_bytes)} may be used "
                "here; give fewer files at once, record shorter windows, or allow more with --memory GB"
            )

    def draw(self, what: str, needed_bytes: int) -> None:
        """Draw `needed_bytes`, or raise TooLarge. `what` begins the message."""
        self.check(what, needed_bytes)
        self._drawn_bytes += needed_bytes

    def give_back(self, freed_bytes: int) -> None:
        """Return `freed_bytes` to the budget."""
        self._drawn_bytes -= freed_bytes

    def work(self, what: str, steps: int) -> None:
        """Count `steps`, each of which handles a value. Raises DamagedTrace; `what` begins the message."""
        self._steps_left -= steps
        if self._steps_left < 0:
            raise DamagedTrace(f"{what} takes more work to read than any file of its size; write it again")


def default_limit_bytes() -> int:
    """Four fifths of the free memory of this container or machine, in bytes."""
    free = free_bytes()
    return int(_SHARE * (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if free is None else free))


def _size(number: int) -> str:
    """The size in GB, with at least three digits."""
    return f"{number / GB:,.0f} GB" if number >= 100 * GB else f"{number / GB:.3g} GB"
