"""Captures of a job on demand, each analysed once, when all of its ranks have ended it."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...common import trigger
from ...common.trigger import folder_of_plan
from ..core.schema import Row
from ..errors import AnalysisError
from ..results.analysis import Analysis
from .done import DoneCycles, open_cycles
from .files import Listing, RunFolder
from .pulses import Pulses
from .rows import cycle_row

_MOST_BEFORE = 3
_STEP = re.compile(r"-step([0-9]{1,18})\Z")


@dataclass(frozen=True)
class OnDemand:
    """A capture on demand: its folder, and its row as of `cycles`; None with the reason where nothing can be used."""

    folder: Path
    row: Row | None
    why: str | None = None

    def sentence(self, before: Path) -> str:
        """What it shows, in a sentence, and how to compare it with the run `before`."""
        if self.row is None:
            return f"{self.folder}: {self.why}"
        row = self.row
        parts = [
            None if row.get("step_ns") is None else f"a step takes {row['step_ns'] / 1e6:,.1f} ms",
            row.get("verdict"),
            None
            if row.get("blamed_rank") is None
            else f"others wait for rank {row['blamed_rank']} ({row['caused_wait_frac']:.0%})",
            row.get("note"),
        ]
        compared = f"commtrace compare {shlex.quote(str(before))} {shlex.quote(str(self.folder))}"
        return f"{self.folder.name}: {', '.join(part for part in parts if part)}; next: {compared}"


class CapturesOnDemand:
    """Follows the captures on demand of the job that `pulses` are of. `told` are the folders that were looked into."""

    def __init__(self, pulses: Pulses, analyse: Callable[[Sequence[Path], bool], Analysis]) -> None:
        self._pulses, self._analyse = pulses, analyse
        self.told: set[Path] = set()
        self.before: list[OnDemand] = []
        """Those that were over at the first look, the last few only."""
        self._looked = False

    def look(self) -> list[OnDemand]:
        """Those that have ended since the last look."""
        over = [(folder, listing) for folder, listing in self._open() if self._is_over(folder, listing)]
        self.told |= {folder for folder, _ in over}
        is_first, self._looked = not self._looked, True
        found = [self._captured(folder, listing) for folder, listing in (over[-_MOST_BEFORE:] if is_first else over)]
        if is_first:
            self.before, found = found, []
        return found

    def _open(self) -> Iterator[tuple[Path, Listing]]:
        named = ((_STEP.search(path.name), path) for path in _beside(self._pulses.run))
        for _, folder in sorted((int(match[1]), path) for match, path in named if match is not None):
            if folder not in self.told and not folder.is_symlink():
                try:
                    listing = RunFolder(folder).listing(DoneCycles().is_done)
                except OSError:
                    continue
                if listing is not None and listing.sides:
                    yield folder, listing

    def _is_over(self, folder: Path, listing: Listing) -> bool:
        """Whether all ranks of a capture have ended it, or the job has."""
        if not self._pulses.is_alive:
            return True
        run = self._pulses.run
        plan = trigger.plan_of(run)
        wanted = len(listing.sides)
        if plan is not None and plan.number and folder_of_plan(run, plan) == folder:
            wanted = len(self._pulses.last) if plan.ranks is None else len(plan.ranks)
        return sum(side.has_ended for side in listing.sides.values()) >= wanted

    def _captured(self, folder: Path, listing: Listing) -> OnDemand:
        cycle = next(iter(open_cycles(listing.traces, DoneCycles()).values()), {})
        names = [listing.traces[worker][number] for worker, number in cycle.items()]
        if not names:
            return OnDemand(folder, None, "holds no trace")
        try:
            return OnDemand(folder, cycle_row(self._analyse(RunFolder(folder).paths(names), True)))
        except (AnalysisError, OSError) as err:
            return OnDemand(folder, None, str(err))


def _beside(run: Path) -> list[Path]:
    named = run.resolve() if run.name in ("", "..") else run
    try:
        return list(named.parent.glob(f"{glob.escape(named.name)}-step*"))
    except OSError:
        return []
