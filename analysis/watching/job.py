"""A running job: how its ranks stand, its captures on demand, and what is to be said of either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..results.analysis import Analysis
from .captures import CapturesOnDemand, OnDemand
from .pulses import Pulses
from .slowdowns import Slowdowns
from .standing import JobStanding, Standings


class Job:
    """The job of `commtrace run` whose run directory is `run`. With `above`, it is captured when its steps take longer.

    `standing` is how its ranks stood when any were there last, None before the first pulse; `has_ranks` is whether some
    were at the last look; `captures` are those on demand that are over, the oldest first.
    """

    def __init__(
        self, run: Path, analyse: Callable[[Sequence[Path], bool], Analysis], above: float | None = None
    ) -> None:
        self.run = run.resolve() if run.name in ("", "..") else run
        self.standing: JobStanding | None = None
        self.has_ranks = False
        self.captures: list[OnDemand] = []
        self._pulses = Pulses(run)
        self._standings = Standings()
        self._captures = CapturesOnDemand(self._pulses, analyse)
        self._slowdowns = None if above is None else Slowdowns(self._pulses, above, self._captures)

    @property
    def is_alive(self) -> bool:
        """Whether it still makes steps."""
        return self._pulses.is_alive

    def look(self) -> list[str]:
        """Look once; return what is to be said."""
        new = self._pulses.look()
        self.has_ranks = bool(self._pulses.last)
        if self.has_ranks:
            self.standing = self._standings.add(new, self._pulses.last, self._pulses.silent_s)
        found = self._captures.look()
        self.captures += [*self._captures.before, *found]
        self._captures.before = []
        notes = [capture.sentence(self.run) for capture in found]
        return notes if self._slowdowns is None else [*notes, *self._slowdowns.look()]
