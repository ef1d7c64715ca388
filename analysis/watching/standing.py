"""Who of a running job is late, since when, and what else its ranks do: from their pulses, which are all there is.

See docs/design/0073-who-is-late-while-it-runs.md. All ranks of a job that waits for its last one take the same time
for a step. So ranks are compared by how long each works before it needs another rank (`Pulse.alone_ns`), where this
is known, and one is late only if it is late in each of the last steps that were looked at.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from ...common.trigger import Beside, Need, Pulse

# A rank is late once it was in so many steps in a row, until their median is below half of the least.
_IN_A_ROW = 5
_LEAST_FRAC = 0.05
"""Of a step: a rank that is late by less costs less than steps differ."""
_CLEARLY = 5
"""In the order of ranks, step lengths are rounded to this part of a usual step: a fifth."""
# Pulses that tell how long steps usually are, and those in a row that are longer, or short again.
_LEAST_BEFORE, _MOST_BEFORE, _LONGER_IN_A_ROW = 5, 100, 3
_LONGER, _SHORT_AGAIN = 1.2, 1.1


@dataclass(frozen=True)
class Onset:
    """When something began, in ns since 1970 on that host's clock; `or_earlier` where it was so at the first look."""

    unix_ns: int
    or_earlier: bool


@dataclass(frozen=True)
class RankStanding:
    """One rank: its last steps, the median time of some before it needs another rank, and by how much it is late.

    `late_ns` is 0 for a rank that is not late, and None where that is not known: too few of its steps were looked at,
    or none can tell, or there is no other rank of which that is known.
    """

    rank: int
    host: str
    step: int
    step_ns: int | None
    alone_ns: int | None
    need: Need | None
    late_ns: int | None
    since: Onset | None
    beside: Beside | None
    silent_s: float | None


@dataclass(frozen=True)
class JobStanding:
    """All ranks of a job at one moment. `usual_ns` is a step before `longer_since`, from which on they are longer."""

    ranks: tuple[RankStanding, ...]
    step_ns: int | None
    usual_ns: int | None
    longer_since: Onset | None

    @property
    def late(self) -> list[RankStanding]:
        """The ranks that are late, the latest first."""
        return sorted((one for one in self.ranks if one.late_ns), key=lambda one: -(one.late_ns or 0))

    @property
    def compared(self) -> int:
        """How many ranks were compared by what they do alone."""
        return sum(one.late_ns is not None for one in self.ranks)

    @property
    def worst_first(self) -> list[RankStanding]:
        """The ranks: who is silent longest, who is latest, whose steps are clearly longer than most, then by number.

        So the order stays from look to look while nothing happens.
        """
        return sorted(self.ranks, key=self._place)

    def _place(self, one: RankStanding) -> tuple[float, ...]:
        longer = round(_CLEARLY * (one.step_ns or 0) / self.step_ns) if self.step_ns else 0
        return -(one.silent_s or 0.0), -(one.late_ns or 0), -longer, one.rank

    def by_host(self) -> dict[str, list[RankStanding]]:
        """Ranks by host; hosts and ranks with the worst first."""
        hosts: dict[str, list[RankStanding]] = {}
        for one in self.worst_first:
            hosts.setdefault(one.host, []).append(one)
        return hosts


@dataclass
class _Known:
    """What is known of one rank: times of steps before it needed another one, and since when it is late."""

    alone: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_IN_A_ROW))
    need: Need | None = None
    compared: bool = False
    since: Onset | None = None
    step_ns: int | None = None

    def add(self, pulse: Pulse) -> None:
        """Add a pulse. Steps beside which something else was done tell nothing."""
        self.step_ns = pulse.step_ns or self.step_ns
        if pulse.alone_ns is None or pulse.beside is not None:
            return
        if pulse.need != self.need:
            self.alone.clear()
            self.need, self.since, self.compared = pulse.need, None, False
        self.alone.append((pulse.unix_ns, pulse.alone_ns))

    @property
    def is_full(self) -> bool:
        return len(self.alone) == _IN_A_ROW

    @property
    def usual_ns(self) -> int | None:
        return round(statistics.median(alone_ns for _, alone_ns in self.alone)) if self.alone else None


class Standings:
    """Follows a job from pulse to pulse."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Known] = {}
        self._steps: deque[tuple[int, int]] = deque(maxlen=_MOST_BEFORE)
        self._longer: tuple[Onset, int] | None = None

    def add(
        self,
        new: Sequence[Pulse],
        last: Mapping[int, Pulse],
        silent_s: Callable[[Pulse], float | None] = lambda _: None,
    ) -> JobStanding:
        """Add the new pulses, and return how all ranks stand by their last ones."""
        for pulse in new:
            self._ranks.setdefault(pulse.rank, _Known()).add(pulse)
        self._ranks = {rank: self._ranks[rank] for rank in last if rank in self._ranks}
        step_ns = _median(known.step_ns for known in self._ranks.values())
        training = [pulse for pulse in new if pulse.step_ns is not None and pulse.beside is None]
        if training and step_ns is not None:
            self._steps.append((max(pulse.unix_ns for pulse in training), _median_of(training)))
        self._notice_longer()
        late = self._late(step_ns)
        ranks = tuple(
            RankStanding(
                rank,
                pulse.host,
                pulse.step,
                known.step_ns,
                known.usual_ns,
                known.need,
                late.get(rank),
                known.since,
                pulse.beside,
                silent_s(pulse),
            )
            for rank, pulse in sorted(last.items())
            if (known := self._ranks.get(rank)) is not None
        )
        longer, usual_ns = self._longer or (None, None)
        return JobStanding(ranks, step_ns, usual_ns, longer)

    def _late(self, step_ns: int | None) -> dict[int, int]:
        """By how much each rank is late, in ns: its usual time beside that of the others; 0 for one that is not."""
        late: dict[int, int] = {}
        for need in get_args(Need):
            alike = {rank: known for rank, known in self._ranks.items() if known.need == need and known.is_full}
            usual = sorted(known.usual_ns or 0 for known in alike.values())
            for rank, known in alike.items():
                found = self._late_by(known, _median_without(usual, known.usual_ns or 0), step_ns)
                if found is not None:
                    late[rank] = found
        for rank, known in self._ranks.items():
            if not late.get(rank):
                known.since = None
        return late

    def _late_by(self, known: _Known, others_ns: int | None, step_ns: int | None) -> int | None:
        if others_ns is None or step_ns is None:
            return None
        is_first, known.compared = not known.compared, True
        late_ns = (known.usual_ns or 0) - others_ns
        least_ns = round(_LEAST_FRAC * step_ns)
        if known.since is None and min(alone_ns for _, alone_ns in known.alone) - others_ns > least_ns:
            known.since = Onset(known.alone[0][0], is_first)
        return late_ns if known.since is not None and late_ns > least_ns / 2 else 0

    def _notice_longer(self) -> None:
        """Notice that steps have become longer, or short again."""
        recent = list(self._steps)[-_LONGER_IN_A_ROW:]
        if self._longer is not None:
            if all(step_ns <= _SHORT_AGAIN * self._longer[1] for _, step_ns in recent):
                self._longer = None
            return
        before = list(self._steps)[:-_LONGER_IN_A_ROW]
        if len(before) < _LEAST_BEFORE:
            return
        usual_ns = round(statistics.median(step_ns for _, step_ns in before))
        if all(step_ns > _LONGER * usual_ns for _, step_ns in recent):
            self._longer = Onset(recent[0][0], or_earlier=False), usual_ns


def _median(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known)) if known else None


def _median_of(pulses: Sequence[Pulse]) -> int:
    return round(statistics.median(pulse.step_ns or 0 for pulse in pulses))


def _median_without(ordered: Sequence[int], one: int) -> int | None:
    """The median of ascending numbers without one that is among them; None if there is no other one."""
    place, others = bisect_left(ordered, one), len(ordered) - 1
    if others < 1:
        return None
    low, high = (ordered[middle + (middle >= place)] for middle in ((others - 1) // 2, others // 2))
    return (low + high) // 2
