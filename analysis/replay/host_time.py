"""What a rank's CPU does besides its calls, for scenarios that change it: loading data, allocating, and so on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from ..core import markers
from ..core.arrays import Flags
from ..core.intervals import Spans, Times, last, spans, union
from ..metrics.clocks.table import aligned
from ..metrics.device.idle import Host, HostTables
from ..metrics.device.unusual import Event, UnusualEvents, unusual_events

NO_TIME = Spans(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class HostTime:
    """The CPU of a rank in one cycle, and names and kinds of all activities, by `row` of a program.

    `gone` is what scenarios have taken away of the CPU's time, on the common clock. Tables of whole runs are looked at
    only if asked, and when the CPU did what is `known` once for all scenarios: by cause and threads.
    """

    rank: int
    cycle: int
    tables: HostTables
    clocks: pd.DataFrame
    names: pd.Series[str]
    is_copy: Flags
    gone: Spans = field(default=NO_TIME)
    known: dict[tuple[str, tuple[int, ...] | None], list[Spans]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def host(self) -> Host:
        """The activity of the CPU, as tables."""
        return self.tables.host(self.rank, self.cycle)

    def loading(self, threads: Collection[int] | None = None) -> list[Spans]:
        """When each of these threads, or any, was getting a batch."""
        return self._once(
            "loading", threads, lambda: self._annotated(lambda names: names.str.startswith(markers.LOADING), threads)
        )

    def collecting(self, threads: Collection[int] | None = None) -> list[Spans]:
        """When each of these threads, or any, collected Python's garbage."""
        return self._once(
            "collecting", threads, lambda: self._annotated(lambda names: names == markers.PYTHON_GC, threads)
        )

    def unusual(self, threads: Collection[int]) -> list[Spans]:
        """When each of these threads was in an operator that takes unusually long by itself, after the usual time."""
        return self._once("unusual", threads, lambda: self._of_events(self._unusual.long, threads))

    def compiling(self, threads: Collection[int]) -> list[Spans]:
        """When each of these threads compiled, and did nothing meanwhile that is priced by itself."""
        return self._once("compiling", threads, lambda: self._of_events(self._unusual.compiling, threads))

    def _once(self, what: str, threads: Collection[int] | None, find: Callable[[], list[Spans]]) -> list[Spans]:
        key = what, None if threads is None else tuple(threads)
        if key not in self.known:
            self.known[key] = find()
        return self.known[key]

    @property
    def _unusual(self) -> UnusualEvents:
        return self.tables.once(unusual_events, self.rank, self.cycle)

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

    def _annotated(
        self, are_wanted: Callable[[pd.Series[str]], pd.Series[bool]], threads: Collection[int] | None
    ) -> list[Spans]:
        which = are_wanted(self.host.annotations["name"]).fillna(False).to_numpy(dtype=bool)
        marks = self._on_common_clock(self.host.annotations[which])
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
