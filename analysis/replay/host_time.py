"""What a rank's CPU does besides its calls, for scenarios that change it: loading data, allocating, and so on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from ..core import markers
from ..core.intervals import Spans, Times, last, spans, union
from ..metrics.clocks.frame import Flags
from ..metrics.clocks.table import aligned
from ..metrics.device.idle import Host, HostTables
from ..metrics.device.unusual import Event, unusual_events

NO_TIME = Spans(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class HostTime:
    """The CPU of a rank in one cycle, and names and kinds of all activities, by `row` of a program.

    `gone` is what scenarios have taken away of the CPU's time, on the common clock. Tables of whole runs are looked at
    only if asked.
    """

    rank: int
    cycle: int
    tables: HostTables
    clocks: pd.DataFrame
    names: pd.Series[str]
    is_copy: Flags
    gone: Spans = field(default=NO_TIME)

    @property
    def host(self) -> Host:
        """The activity of the CPU, as tables."""
        return self.tables.host(self.rank, self.cycle)

    def loading(self, threads: Collection[int] | None = None) -> list[Spans]:
        """When each of these threads, or any, was getting a batch."""
        return self._annotated(self.host.annotations["name"].str.startswith(markers.LOADING), threads)

    def collecting(self, threads: Collection[int] | None = None) -> list[Spans]:
        """When each of these threads, or any, collected Python's garbage."""
        return self._annotated(self.host.annotations["name"] == markers.PYTHON_GC, threads)

    def unusual(self, threads: Collection[int]) -> list[Spans]:
        """When each of these threads was in an operator that takes unusually long by itself, after the usual time."""
        return self._of_events(self.tables.once(unusual_events, self.rank, self.cycle).long, threads)

    def compiling(self, threads: Collection[int]) -> list[Spans]:
        """When each of these threads compiled, and did nothing meanwhile that is priced by itself."""
        return self._of_events(self.tables.once(unusual_events, self.rank, self.cycle).compiling, threads)

    def inside(self, operator: str, threads: Collection[int]) -> dict[int, Spans]:
        """When each of these threads was in an operator of this name."""
        named = self._operators[self._operators["name"] == operator]
        return {thread: _spans(named[named["thread"] == thread]) for thread in threads}

    def _of_events(self, events: Sequence[Event], threads: Collection[int]) -> list[Spans]:
        """What each of these threads did for longer than usual in its events."""
        by_thread: dict[int, list[Spans]] = {thread: [] for thread in threads}
        for each in events:
            if each.thread in by_thread:
                by_thread[each.thread].append(last(each.own, each.over_ns))
        return [self._shifted(union(NO_TIME, *of_thread)) for of_thread in by_thread.values()]

    def _shifted(self, when: Spans) -> Spans:
        """These spans of the rank's own clock on the common one."""
        return _spans(self._on_common_clock(pd.DataFrame({"start_ns": when.starts, "dur_ns": when.ends - when.starts})))

    def _annotated(self, which: pd.Series[bool], threads: Collection[int] | None) -> list[Spans]:
        marks = self._on_common_clock(self.host.annotations[which.fillna(False).to_numpy(dtype=bool)])
        if threads is None:
            return [_spans(marks)]
        return [_spans(marks[marks["thread"] == thread]) for thread in threads]

    @cached_property
    def _operators(self) -> pd.DataFrame:
        return self._on_common_clock(self.host.operators)

    def _on_common_clock(self, events: pd.DataFrame) -> pd.DataFrame:
        if not len(events):
            return events
        ranks = pd.Series(self.rank, index=events.index)
        return events.assign(start_ns=aligned(events["start_ns"], ranks, self.clocks))


def _spans(events: pd.DataFrame) -> Spans:
    starts: Times = events["start_ns"].to_numpy(dtype=np.int64)
    return spans(starts, starts + events["dur_ns"].to_numpy(dtype=np.int64))
