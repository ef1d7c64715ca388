"""Files that are waited for: since when they are as they are, and in which state they could not be read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .files import FileStates


@dataclass
class Attempt:
    """The files of one cycle. `failed` is the state in which they could not be read, `why` what was wrong."""

    stamp: FileStates
    since: float
    is_settled: bool = False
    failed: FileStates | None = None
    why: str = ""

    @property
    def is_worth_it(self) -> bool:
        """Files that could not be read are tried again once they have changed, and stopped changing."""
        return self.failed is None or (self.is_settled and self.failed != self.stamp)

    def fail(self, why: str) -> None:
        """The files could not be read as they are."""
        self.failed, self.why = self.stamp, why


class Attempts:
    """Attempts to read each cycle that was not reported."""

    def __init__(self) -> None:
        self._of: dict[int, Attempt] = {}

    def look(self, cycle: int, stamp: FileStates, now: float) -> Attempt:
        """The files of a cycle, which are in this state now."""
        known = self._of.get(cycle)
        if known is None:
            known = self._of[cycle] = Attempt(stamp, now)
        elif known.stamp != stamp:
            known.stamp, known.since, known.is_settled = stamp, now, False
        else:
            known.is_settled = True
        return known

    def keep(self, cycles: Collection[int]) -> None:
        """Forget all cycles but these."""
        self._of = {cycle: one for cycle, one in self._of.items() if cycle in cycles}

    def __getitem__(self, cycle: int) -> Attempt:
        return self._of[cycle]

    def state(self) -> tuple[tuple[int, FileStates], ...]:
        """The present state of all files."""
        return tuple((cycle, one.stamp) for cycle, one in self._of.items())
