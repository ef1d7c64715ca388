"""The tables of a run that grow with its device activity, and what is known of them without every event."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core import markers
from ..core.intervals import Times
from ..core.kinds import NEXT
from ..core.schema import Row, Schema, bare, grouped, records
from ..core.steps import LATER_STEPS, NEVER, NO_STEP
from ..core.tables.communication import ANNOTATIONS, COMM_ARGS
from ..core.tables.events import (
    ACTIVITIES,
    COUNTER_SAMPLES,
    CPU_OPERATORS,
    FUNCTIONS,
    LAUNCHES,
    MEMORY_EVENTS,
    MODULES,
    OPERATOR_CALLS,
    RUNTIME_CALLS,
    STREAM_WAITS,
)

if TYPE_CHECKING:
    from .rank_files import ReadFile

_T = TypeVar("_T")
_P = ParamSpec("_P")

EVENT_SCHEMAS: dict[str, Schema] = {
    "activities": ACTIVITIES,
    "launches": LAUNCHES,
    "annotations": ANNOTATIONS,
    "comm_args": COMM_ARGS,
    "cpu_operators": CPU_OPERATORS,
    "operator_calls": OPERATOR_CALLS,
    "runtime_calls": RUNTIME_CALLS,
    "memory_events": MEMORY_EVENTS,
    "stream_waits": STREAM_WAITS,
    "modules": MODULES,
    "functions": FUNCTIONS,
    "counter_samples": COUNTER_SAMPLES,
}
AT_RANKS = (*EVENT_SCHEMAS, "whole_files")
"""What functions are given of a rank wherever its events are."""


class MarkedSteps(NamedTuple):
    """What a CPU marked: its steps, each a ProfilerStep annotation, gradients, and garbage collection."""

    cpu_ns: dict[int, int]
    """How long the CPU took for each step."""
    with_gradients: frozenset[int]
    """The steps in which a gradient of a parameter became ready."""
    has_gc: bool
    """Whether runs of Python's garbage collector were recorded."""


_NO_STEPS = MarkedSteps({}, frozenset(), has_gc=False)


class RanInCycle(NamedTuple):
    """A summary of what a rank's devices did in one cycle. Without activities there is none."""

    rank: int
    cycle: int
    activities: int
    outside_steps: int
    devices: tuple[str, ...]
    steps: tuple[int, ...]
    marked: MarkedSteps
    began_ns: int
    step_began_ns: dict[int, int]
    """When each step began (`core.steps.step_windows`), if none of a later one began before."""
    ended_ns: int


class RunTables(Protocol):
    """The tables of a run, in this process or others."""

    @property
    def ran(self) -> tuple[RanInCycle, ...]:
        """Summaries of the devices' activity, by rank and cycle."""

    @property
    def whole(self) -> EventTables:
        """All tables, in this process."""

    def of_rank(self, rank: int) -> EventTables:
        """The tables of one rank, in this process."""

    def by_rank(
        self, work: Callable[Concatenate[EventTables, _P], _T], given: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[_T]:
        """Yield the result of `work`, a module's function, for the tables and arguments of each rank."""


@dataclass(frozen=True, kw_only=True)
class EventTables:
    """The tables, rows in order of rank and cycle; those of details are empty unless they were read.

    Where the tables of a rank are made for a visit to it, `whole_files` are the files that they are made of, if these
    have all steps.
    """

    activities: pd.DataFrame = field(default_factory=ACTIVITIES.empty)
    launches: pd.DataFrame = field(default_factory=LAUNCHES.empty)
    annotations: pd.DataFrame = field(default_factory=ANNOTATIONS.empty)
    comm_args: pd.DataFrame = field(default_factory=COMM_ARGS.empty)
    cpu_operators: pd.DataFrame = field(default_factory=CPU_OPERATORS.empty)
    operator_calls: pd.DataFrame = field(default_factory=OPERATOR_CALLS.empty)
    runtime_calls: pd.DataFrame = field(default_factory=RUNTIME_CALLS.empty)
    memory_events: pd.DataFrame = field(default_factory=MEMORY_EVENTS.empty)
    stream_waits: pd.DataFrame = field(default_factory=STREAM_WAITS.empty)
    modules: pd.DataFrame = field(default_factory=MODULES.empty)
    functions: pd.DataFrame = field(default_factory=FUNCTIONS.empty)
    counter_samples: pd.DataFrame = field(default_factory=COUNTER_SAMPLES.empty)
    whole_files: tuple[ReadFile, ...] = field(default=(), repr=False, compare=False)
    _of_ranks: dict[int, EventTables] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def whole(self) -> EventTables:
        """These tables."""
        return self

    def of_rank(self, rank: int) -> EventTables:
        """The tables of one rank."""
        if rank not in self._of_ranks:
            own: dict[str, Any] = {name: _rows(getattr(self, name), rank) for name in EVENT_SCHEMAS}
            self._of_ranks[rank] = EventTables(**own)
        return self._of_ranks[rank]

    def by_rank(
        self, work: Callable[Concatenate[EventTables, _P], _T], given: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[_T]:
        """Yield the result of `work` for the tables and arguments of each rank."""
        call: Callable[..., _T] = work
        return (call(self.of_rank(rank), *arguments) for rank, arguments in given.items())

    @cached_property
    def ran(self) -> tuple[RanInCycle, ...]:
        """Summaries of the devices' activity, by rank and cycle."""
        names = self.annotations["name"]
        known = names.isin([markers.GRADIENT, markers.PYTHON_GC])
        marks = self.annotations[known | names.str.startswith(markers.PROFILER_STEP)]
        marked = {key: marked_steps(records(own)) for key, own in grouped(marks, ["rank", "cycle"])}
        return tuple(ran_in_cycles(self.activities, marked))


def _rows(table: pd.DataFrame, rank: int) -> pd.DataFrame:
    begin, end = np.searchsorted(table["rank"].to_numpy(), [rank, rank + 1])
    rows = table.iloc[begin:end]  # which copies nothing
    rows.index = pd.RangeIndex(len(rows))
    return rows


def ran_in_cycles(activities: pd.DataFrame, marked: Mapping[tuple[int, ...], MarkedSteps]) -> Iterator[RanInCycle]:
    """Yield a summary of the activities of each rank and cycle; `marked` are their `marked_steps`."""
    for (rank, cycle), own in grouped(activities, ["rank", "cycle"]):
        step = own["step"].to_numpy(dtype=np.int64, na_value=cast("Any", NO_STEP))
        start_ns, dur_ns, kinds = own["start_ns"].to_numpy(), own["dur_ns"].to_numpy(), bare(own["kind"])
        # The devices may have waited in a step before they ran anything.
        begun_ns = np.minimum(start_ns, own["idle_since_ns"].to_numpy(dtype=np.int64, na_value=cast("Any", NEVER)))
        step_began_ns = _step_began(step, begun_ns)
        yield RanInCycle(
            rank=rank,
            cycle=cycle,
            activities=int((kinds != NEXT).sum()),
            outside_steps=int((step == NO_STEP).sum()),
            devices=tuple(sorted(set(bare(own["device"]).tolist()))),
            steps=tuple(step_began_ns),
            marked=marked.get((rank, cycle), _NO_STEPS),
            began_ns=int(begun_ns.min()),
            step_began_ns=step_began_ns,
            ended_ns=int((start_ns + dur_ns).max()),
        )


def _step_began(step: NDArray[np.int64], begun_ns: Times) -> dict[int, int]:
    """The earliest begin of each step, ascending, without those that were left out."""
    inside = (step != NO_STEP) & (step != LATER_STEPS)
    steps, which = np.unique(step[inside], return_inverse=True)
    began_ns = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(began_ns, which, begun_ns[inside])
    return dict(zip(steps.tolist(), began_ns.tolist(), strict=True))


def marked_steps(annotations: Iterable[Row]) -> MarkedSteps:
    """The steps that the annotations of one rank and cycle mark, by their numbers."""
    rows = list(annotations)
    gradients = sorted(row["start_ns"] for row in rows if row["name"] == markers.GRADIENT)
    cpu_ns, with_gradients = {}, set()
    for row in rows:
        if row["name"].startswith(markers.PROFILER_STEP):
            step = int(row["name"].removeprefix(markers.PROFILER_STEP))
            cpu_ns[step] = row["dur_ns"]
            begin, end = row["start_ns"], row["start_ns"] + row["dur_ns"]
            if bisect_left(gradients, begin) < bisect_left(gradients, end):
                with_gradients.add(step)
    has_gc = any(row["name"] == markers.PYTHON_GC for row in rows)
    return MarkedSteps(cpu_ns, frozenset(with_gradients), has_gc)
