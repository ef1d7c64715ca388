"""A job that becomes slower than it was, noticed by the pulses of its ranks, and then captured: two steps, on demand.

See docs/design/0040-capture-on-demand.md. No step of the job is profiled for that: each rank writes about once a second
how long its last steps took.
"""

from __future__ import annotations

import math
import shlex
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ...common import trigger
from ...common.trigger import Plan, Pulse, Request, folder_of_plan
from ...common.wording import ranks_in_words
from ...contract.rank import META_SUFFIX
from ..core.schema import Row
from ..errors import AnalysisError
from ..results.analysis import Analysis
from ..run.side_files import rank_file
from .done import DoneCycles, open_cycles
from .files import RunFolder
from .rows import cycle_row

_STEPS = 2
# Pulses of a rank that make its history, at least and at most, and those in a row that have left it. One long pulse is
# an evaluation, or a checkpoint.
_LEAST, _MOST = 5, 100
_IN_A_ROW = 2
_QUIET_S = 60.0


class _History:
    """How long steps of one rank took, from pulse to pulse."""

    def __init__(self) -> None:
        self._all: deque[int] = deque(maxlen=_MOST)
        self._last_unix_ns = 0

    def add(self, pulse: Pulse) -> None:
        """Add a pulse, once."""
        if pulse.unix_ns != self._last_unix_ns:
            self._last_unix_ns = pulse.unix_ns
            if pulse.step_ns:
                self._all.append(pulse.step_ns)

    def change(self) -> tuple[int, int] | None:
        """A step before and a step now, in ns: the median, and the shortest of the last pulses; None if too young."""
        before = list(self._all)[:-_IN_A_ROW]
        if len(before) < _LEAST:
            return None
        return round(statistics.median(before)), min(list(self._all)[-_IN_A_ROW:])


class Slowdowns:
    """Watches the pulses of a job, and has it captured when steps of a rank take `above` times what they took.

    The next capture follows when it has been as fast as before in between, or its history has come to be the new one.
    """

    def __init__(self, run: Path, above: float, analyse: Callable[[Sequence[Path], bool], Analysis]) -> None:
        self._run, self._above, self._analyse = run, above, analyse
        self._histories: dict[int, _History] = {}
        self._is_slow = False
        self._known: Plan | None = None
        self._awaited: Plan | None = None
        self._pulses: dict[int, Pulse] = {}
        self._changed_s = -math.inf
        self.captured = 0
        """Captures that were asked for and made."""

    @property
    def is_alive(self) -> bool:
        """Whether the job still makes steps, or a capture of it is still to be reported."""
        if not self._pulses:
            return False
        every_s = max(pulse.every_s for pulse in self._pulses.values())
        return time.monotonic() - self._changed_s < _QUIET_S + 3 * every_s

    def look(self) -> Iterator[str]:
        """Look at the pulses once; yield what is to be said."""
        before, self._pulses = self._pulses, trigger.pulses_of(self._run)
        if self._pulses != before:
            self._changed_s = time.monotonic()
            if not before:  # of those that were there before this watch, only the clock tells how old they are
                newest_ns = max(pulse.unix_ns for pulse in self._pulses.values())
                self._changed_s -= max(time.time() - newest_ns / 1e9, 0.0)
        for rank, pulse in self._pulses.items():
            self._histories.setdefault(rank, _History()).add(pulse)
        if self._known is not None:
            yield from self._planned(self._known)
        elif self._awaited is not None:
            yield from self._captured(self._awaited)
        else:
            yield from self._noticed()

    def _noticed(self) -> Iterator[str]:
        """Ask for a capture if a rank has left its history."""
        changes = {rank: change for rank, one in self._histories.items() if (change := one.change()) is not None}
        slow = {rank: change for rank, change in changes.items() if change[1] > self._above * change[0]}
        was_slow, self._is_slow = self._is_slow, bool(slow)
        if not slow or was_slow:
            return
        worst = max(slow, key=lambda rank: slow[rank][1] / slow[rank][0])
        before_ns, now_ns = slow[worst]
        chosen = slice_through(worst, self._run)
        self._known = trigger.plan_of(self._run) or Plan()
        of = "all ranks" if chosen is None else ranks_in_words(chosen)
        took = f"steps take {now_ns / 1e6:,.1f} ms, and took {before_ns / 1e6:,.1f} ms"
        yield f"{ranks_in_words(slow)}: {took}; asking for {_STEPS} steps of {of}"
        try:
            trigger.ask(self._run, Request(_STEPS, chosen))
        except OSError as err:
            self._known = None
            yield f"{self._run}: nothing can be written there, so no capture: {err.strerror or err}"

    def _planned(self, known: Plan) -> Iterator[str]:
        plan = trigger.plan_of(self._run)
        if plan is not None and plan not in (Plan(), known):
            self._known, self._awaited = None, plan
            last = plan.from_step + plan.steps - 1
            yield f"steps {plan.from_step:,} to {last:,} are traced into {self._folder(plan)}"
        elif refusal := trigger.refusal_of(self._run):
            self._known = None
            yield f"{self._run}: {refusal}"
        elif not self.is_alive:
            self._known = None

    def _captured(self, plan: Plan) -> Iterator[str]:
        """Say what the capture shows, once all of its ranks have ended it."""
        folder = RunFolder(self._folder(plan))
        try:
            listing = folder.listing(DoneCycles().is_done)
            wanted = sum(map(plan.has, self._pulses)) if plan.ranks is None else len(plan.ranks)
            whole = listing is not None and sum(side.has_ended for side in listing.sides.values()) >= wanted
            if not whole and self.is_alive:
                return
            cycle = next(iter(open_cycles(listing.traces, DoneCycles()).values()), {}) if listing is not None else {}
            names = [listing.traces[worker][number] for worker, number in cycle.items()] if listing is not None else []
            row = cycle_row(self._analyse(folder.paths(names), True)) if names else None
        except (AnalysisError, OSError) as err:
            yield f"{folder.path}: {err}"
            row = None
        self._awaited = None
        if row is not None:
            self.captured += 1
            yield _told(row, folder.path, self._run)

    def _folder(self, plan: Plan) -> Path:
        return folder_of_plan(self._run, plan)


def slice_through(rank: int, run: Path) -> tuple[int, ...] | None:
    """The ranks that show a whole group of every kind around this one, as `plan-ranks` does; None for all of them.

    They are those of its process groups that are smaller than the job.
    """
    for path in run.glob(f"*_{rank}{META_SUFFIX}"):
        record = rank_file(path, []).record
        smaller = [group.ranks for group in record.process_groups if 1 < len(group.ranks) < (record.world_size or 0)]
        return tuple(sorted({rank, *(each for group in smaller for each in group)})) if smaller else None
    return None


def _told(row: Row, folder: Path, before: Path) -> str:
    """What a capture shows, in a sentence."""
    parts = [
        None if row.get("step_ns") is None else f"a step takes {row['step_ns'] / 1e6:,.1f} ms",
        row.get("verdict"),
        None
        if row.get("blamed_rank") is None
        else f"others wait for rank {row['blamed_rank']} ({row['caused_wait_frac']:.0%})",
        row.get("note"),
    ]
    compared = f"commtrace compare {shlex.quote(str(before))} {shlex.quote(str(folder))}"
    return f"{folder.name}: {', '.join(part for part in parts if part)}; next: {compared}"
