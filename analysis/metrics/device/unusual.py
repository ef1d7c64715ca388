"""What mostly happens once: calls and operators that take far longer than others of their name, and compiling.

A first use loads a module, creates a handle or tries algorithms: a training loop that has warmed up does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core import markers
from ...core.arrays import Flags, Ints
from ...core.intervals import Spans, Times, covered, spans, subtract, total, union
from ...core.schema import bare, text_codes
from ...core.steps import NO_STEP, Mark, steps_at
from .idle import Host
from .launches import enclosing, names_around

_SEVERAL = 3  # of one name, from where their median tells what is usual
_TIMES_MEDIAN, _LEAST_NS = 100, 1_000_000
"""What a long one takes at least. A first use takes milliseconds."""
_BEFORE_COMPILING = ("sync", "alloc", "data", "gc", "cpu_comm")
"""What a thread may do while it compiles that counts first, as in idle time."""
_WAITING = (markers.LOADING, markers.C10D, *markers.FUNCTIONAL)
"""How operators begin that take as long as what they wait for."""


def over_usual(codes: Ints, names: Iterable[str], took_ns: Times) -> Times:
    """How much longer each call takes than usual, if that is far longer, in ns; else 0. `codes` are places in `names`.

    Usual is the median of its name, and of all calls for one that is made once or twice, such as loading a module, and
    launches nothing: a graph may take long each time. It may be any call that does not copy: how long a copy takes
    depends on its size.
    """
    by_name = pd.Series(took_ns).groupby(codes)
    usual = by_name.transform("median").to_numpy()
    copies, launches = (
        np.array([word in str(name) for name in [*names, ""]], dtype=bool)[codes]
        for word in (markers.COPYING_CALL, markers.LAUNCHING_CALL)
    )
    if len(took_ns):
        is_rare = (by_name.transform("size").to_numpy() < _SEVERAL) & ~launches
        usual = np.where(is_rare, np.minimum(usual, np.median(took_ns)), usual)
    return np.where(_is_far_over(took_ns, usual) & ~copies, took_ns - usual, 0).astype(np.int64)


class Event(NamedTuple):
    """An operator or a range with its `own` time, of which `over_ns` is more than usual; `within` is what is around."""

    name: str
    within: str | None
    thread: int
    start_ns: int
    own: Spans
    over_ns: int


class UnusualEvents(NamedTuple):
    """What mostly happens once on the threads of a rank that make calls of the runtime, thread by thread."""

    long: list[Event]
    """Operators that take far longer by themselves than usual.

    The own time of an operator is that without operators in it, and without what else has a name and a price: calls
    that block, allocate, copy or are long, loading, collecting garbage, communicating and compiling. One that is as
    long in most steps, such as one that sorts on the CPU, is part of a step, and none of these. Of a name that is seen
    once or twice nothing tells what is usual.
    """
    compiling: list[Event]
    """Ranges of compiling, each without what is listed by itself; of ranges within each other only the outer one."""


def unusual_events(host: Host) -> UnusualEvents:
    """The events on the CPU of one rank in one cycle."""
    codes, unique = text_codes(host.runtime_calls["name"])
    copies = np.array([*(markers.COPYING_CALL in name for name in unique), False], dtype=bool)[codes]
    listed = copies | (over_usual(codes, unique, host.calls.end_ns - host.calls.start_ns) > 0)
    of_threads = [_Thread.of(host, thread, listed) for thread in np.unique(host.calls.thread).tolist()]
    compiling = [event for thread in of_threads for event in _compilations(host, thread)]
    return UnusualEvents(_long_operators(host, [_operators(host, thread) for thread in of_threads]), compiling)


class _Thread(NamedTuple):
    """When a thread did each cause of idle time, and was in calls that are `listed` by themselves."""

    number: int
    did: Mapping[str, Spans]
    listed: Spans

    @classmethod
    def of(cls, host: Host, number: int, listed: Flags) -> _Thread:
        """A thread of a host; `listed` are flags of the calls of all its threads."""
        calls, chosen = host.calls, listed & (host.calls.thread == number)
        return cls(number, host.spans_of(number), spans(calls.start_ns[chosen], calls.end_ns[chosen]))

    def elsewhere(self, causes: Sequence[str]) -> Spans:
        """When it did what has a name, and a price, of its own: these causes, and listed calls."""
        return union(self.listed, *(self.did[cause] for cause in causes))


def _compilations(host: Host, thread: _Thread) -> Iterator[Event]:
    ranges = [events.on(thread.number) for events in host.compiling]
    names = [each.names[code] for each in ranges for code in each.codes.tolist()]
    start, end = (np.concatenate([getattr(each, times) for each in ranges]) for times in ("start_ns", "end_ns"))
    order = np.lexsort((-end, start))
    outer = order[enclosing(start[order], end[order] - 1) < 0]
    if not len(outer):
        return
    within = names_around(host.operator_ranges, np.full(len(outer), thread.number), start[outer] - 1)
    elsewhere = thread.elsewhere(_BEFORE_COMPILING)
    for at, around in zip(outer.tolist(), within, strict=True):
        own = subtract(spans(start[[at]], end[[at]]), elsewhere)
        yield Event(names[at], None if pd.isna(around) else around, thread.number, int(start[at]), own, total(own))


def _long_operators(host: Host, of_threads: Sequence[_Operators]) -> list[Event]:
    if not sum(len(each.name) for each in of_threads):
        return []
    name, start, own = (
        np.concatenate([getattr(each, key) for each in of_threads]) for key in ("name", "start_ns", "own_ns")
    )
    codes, unique = pd.factorize(name)
    by_name = pd.Series(own).groupby(codes)
    usual = by_name.transform("median").to_numpy()
    is_long = _is_far_over(own, usual) & (by_name.transform("size").to_numpy() >= _SEVERAL)
    is_long &= np.array([_may_be_long(each) for each in unique], dtype=bool)[codes]
    is_long &= ~_is_in_most_steps(codes, is_long, start, host.step_marks)
    found, begins = [], np.cumsum([0, *(len(each.name) for each in of_threads)])
    for place in np.flatnonzero(is_long).tolist():
        at = int(np.searchsorted(begins, place, side="right")) - 1
        found.append(of_threads[at].long(place - int(begins[at]), int(own[place] - usual[place])))
    return found


class _Operators(NamedTuple):
    """Operators of a thread in order of start, and the position of the one around each, -1 for none."""

    thread: int
    name: NDArray[Any]
    start_ns: Times
    end_ns: Times
    around: Ints
    own_ns: Times
    not_own: Spans

    def long(self, at: int, over_ns: int) -> Event:
        """The operator at this position."""
        inner, outer = self.around == at, int(self.around[at])
        own = subtract(
            spans(self.start_ns[[at]], self.end_ns[[at]]),
            union(spans(self.start_ns[inner], self.end_ns[inner]), self.not_own),
        )
        within = None if outer < 0 else str(self.name[outer])
        return Event(str(self.name[at]), within, self.thread, int(self.start_ns[at]), own, over_ns)


def _operators(host: Host, thread: _Thread) -> _Operators:
    events = host.operator_ranges[bare(host.operator_ranges["thread"]) == thread.number]
    start = events["start_ns"].to_numpy()
    end = start + events["dur_ns"].to_numpy()
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    # In traces with whole microseconds one often begins when the one before it ends: that is not around it.
    around = enclosing(start, end - 1)
    end = np.where(around >= 0, np.minimum(end, end[around]), end)
    not_own = thread.elsewhere((*_BEFORE_COMPILING, "compile"))
    own = end - start - covered(not_own, start, end)
    inner = np.zeros(len(own), dtype=np.int64)
    np.add.at(inner, around[around >= 0], own[around >= 0])
    name = events["name"].astype("string").fillna("").to_numpy(dtype=object)[order]
    return _Operators(thread.number, name, start, end, around, own - inner, not_own)


def _is_far_over(took_ns: Times, usual_ns: NDArray[Any]) -> Flags:
    flags: Flags = (took_ns >= _LEAST_NS) & (took_ns >= _TIMES_MEDIAN * usual_ns)
    return flags


def _may_be_long(operator: str) -> bool:
    """Whether how long an operator takes depends neither on what it waits for, nor on how much it copies."""
    return not operator.startswith(_WAITING) and operator not in markers.COPYING_OPERATORS


def _is_in_most_steps(codes: Ints, is_long: Flags, start_ns: Times, marks: list[Mark]) -> Flags:
    """Whether each operator has a name that is long in more than half of the steps that have it, two or more."""
    step = steps_at(start_ns, marks)
    steps = pd.DataFrame({"name": codes, "step": step, "long": is_long})[step != NO_STEP]
    by_name = steps.groupby(["name", "step"])["long"].any().groupby("name").agg(["size", "sum"])
    often = by_name.index[(by_name["size"] > 1) & (2 * by_name["sum"] > by_name["size"])]
    flags: Flags = np.isin(codes, often)
    return flags
