"""A job that becomes slower than it was, noticed by the pulses of its ranks, and then captured: two steps, on demand.

See docs/design/0040-capture-on-demand.md. No step of the job is profiled for that: each rank writes about once a second
how long its last steps took.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from ...common import trigger
from ...common.trigger import Plan, Pulse, Request, folder_of_plan
from ...common.wording import ranks_in_words
from ...contract.rank import META_SUFFIX
from ..run.side_files import rank_file
from .captures import CapturesOnDemand
from .pulses import Pulses

_STEPS = 2
# Pulses of a rank that make its history, at least and at most, and those in a row that have left it. One long pulse is
# an evaluation, or a checkpoint.
_LEAST, _MOST = 5, 100
_IN_A_ROW = 2


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
    """Has the job that `pulses` are of captured when steps of a rank take `above` times what they took.

    The next capture follows when it has been as fast as before in between, or its history has come to be the new one.
    """

    def __init__(self, pulses: Pulses, above: float, captures: CapturesOnDemand) -> None:
        self._pulses, self._above, self._captures = pulses, above, captures
        self._histories: dict[int, _History] = {}
        self._is_slow = False
        self._known: Plan | None = None
        self._awaited: Plan | None = None

    def look(self) -> Iterator[str]:
        """Consider the pulses as they are; yield what is to be said."""
        for rank, pulse in self._pulses.last.items():
            self._histories.setdefault(rank, _History()).add(pulse)
        if self._awaited is not None:
            if folder_of_plan(self._pulses.run, self._awaited) in self._captures.told:
                self._awaited = None
        elif self._known is not None:
            yield from self._planned(self._known)
        else:
            yield from self._noticed()

    def _noticed(self) -> Iterator[str]:
        """Ask for a capture if a rank has left its history."""
        changes = {rank: change for rank, one in self._histories.items() if (change := one.change()) is not None}
        slow = {rank: change for rank, change in changes.items() if change[1] > self._above * change[0]}
        was_slow, self._is_slow = self._is_slow, bool(slow)
        if not slow or was_slow:
            return
        run = self._pulses.run
        worst = max(slow, key=lambda rank: slow[rank][1] / slow[rank][0])
        before_ns, now_ns = slow[worst]
        chosen = slice_through(worst, run)
        self._known = trigger.plan_of(run) or Plan()
        of = "all ranks" if chosen is None else ranks_in_words(chosen)
        took = f"steps take {now_ns / 1e6:,.1f} ms, and took {before_ns / 1e6:,.1f} ms"
        yield f"{ranks_in_words(slow)}: {took}; asking for {_STEPS} steps of {of}"
        try:
            trigger.ask(run, Request(_STEPS, chosen))
        except OSError as err:
            self._known = None
            yield f"{run}: nothing can be written there, so no capture: {err.strerror or err}"

    def _planned(self, known: Plan) -> Iterator[str]:
        run = self._pulses.run
        plan = trigger.plan_of(run)
        if plan is not None and plan not in (Plan(), known):
            self._known, self._awaited = None, plan
            last = plan.from_step + plan.steps - 1
            yield f"steps {plan.from_step:,} to {last:,} are traced into {folder_of_plan(run, plan)}"
        elif refusal := trigger.refusal_of(run):
            self._known = None
            yield f"{run}: {refusal}"
        elif not self._pulses.is_alive:
            self._known = None


def slice_through(rank: int, run: Path) -> tuple[int, ...] | None:
    """The ranks that show a whole group of every kind around this one, as `plan-ranks` does; None for all of them.

    They are those of its process groups that are smaller than the job.
    """
    for path in run.glob(f"*_{rank}{META_SUFFIX}"):
        record = rank_file(path, []).record
        smaller = [group.ranks for group in record.process_groups if 1 < len(group.ranks) < (record.world_size or 0)]
        return tuple(sorted({rank, *(each for group in smaller for each in group)})) if smaller else None
    return None
