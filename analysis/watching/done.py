"""Which cycles of a run are done with, which traces make the next ones, and which of these are whole. Reads no file.

What is kept does not grow with the cycles: ranges of numbers, and of each process the last trace that was reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

_LONG_AGO_MS = 10**12
"""Numbers from here on, in 2001, are times in ms at least: torch names traces by them, a capture counts cycles."""


class LastTrace(NamedTuple):
    """The number in the name of the last trace of a process that was reported, and the cycle it belonged to."""

    number: int
    cycle: int


@dataclass(frozen=True)
class DoneCycles:
    """Cycles that were reported, as ranges in order, and the last trace in them of each process."""

    ranges: tuple[tuple[int, int], ...] = ()
    last: Mapping[str, LastTrace] = field(default_factory=dict)

    def has(self, cycle: int) -> bool:
        """Whether the cycle was reported."""
        return any(first <= cycle <= last for first, last in reversed(self.ranges))

    def is_done(self, worker: str, number: int) -> bool:
        """Whether the trace of a process with this number needs no more attention, as far as the number tells."""
        if number < _LONG_AGO_MS:
            return self.has(number)
        return worker in self.last and number <= self.last[worker].number

    def with_cycle(self, cycle: int, traces: Mapping[str, int]) -> DoneCycles:
        """Add a reported cycle, which consists of these traces, by process."""
        last = dict(self.last)
        for worker, number in traces.items():
            before = last.get(worker, LastTrace(-1, -1))
            # Where traces are counted, those before one that is still to be reported may not be forgotten.
            if number < _LONG_AGO_MS or all(map(self.has, range(before.cycle + 1, cycle))):
                last[worker] = max(before, LastTrace(number, cycle))
        return replace(self, ranges=joined_ranges([*self.ranges, (cycle, cycle)]), last=last)

    @property
    def newest(self) -> int:
        """The last cycle of which the processes are known; -1 without one."""
        return max((trace.cycle for trace in self.last.values()), default=-1)

    @property
    def alive(self) -> frozenset[str]:
        """The processes that had a trace of it: of them, the next one is expected."""
        return frozenset(worker for worker, trace in self.last.items() if trace.cycle == self.newest)


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges of whole numbers in order, those that touch as one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


Cycle = dict[str, int]
"""The traces of a cycle: the number in the name of each, by process."""


def open_cycles(traces: Mapping[str, Iterable[int]], done: DoneCycles) -> dict[int, Cycle]:
    """The cycles, in order, that these traces belong to and that were not reported; by process, numbers in their names.

    A number below 10^12 is that of the cycle. Above, it is a time, which differs by rank: then traces of a process are
    counted, from those on that were reported. A process that is new then, of a job that was started again in the same
    folder, goes on with the next cycle.
    """
    found: dict[int, Cycle] = {}
    newest = LastTrace(-1, done.newest)
    for worker, numbers in traces.items():
        ascending = sorted(numbers)
        before = done.last.get(worker, newest)
        by_time = bool(ascending) and ascending[-1] >= _LONG_AGO_MS
        later = [number for number in ascending if number > before.number] if by_time else ascending
        for place, number in enumerate(later, before.cycle + 1):
            cycle = place if by_time else number
            if not done.has(cycle):
                found.setdefault(cycle, {})[worker] = number
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Writers:
    """Who writes traces: how many ranks there are if that is known, and which processes have ended."""

    world_size: int | None
    ended: frozenset[str]


def is_whole(cycle: int, opened: Mapping[int, Cycle], done: DoneCycles, writers: Writers) -> bool:
    """Whether no more traces of the cycle are to come.

    One of each rank is there; or the processes without one have ended, or have one of a later cycle. Of ranks that had
    none of the last cycle, none is expected: they died, or only some ranks are traced.
    """
    there = set(opened[cycle])
    past = {worker for later, traces in opened.items() if later > cycle for worker in traces}
    past |= {worker for worker, last in done.last.items() if last.cycle > cycle}
    none_to_come = there | past | writers.ended
    if writers.world_size is not None and len(none_to_come) >= writers.world_size:
        return True
    return bool(done.alive) and done.alive <= none_to_come
