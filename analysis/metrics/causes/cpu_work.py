"""What the CPU of one rank did while its device had no work: in which range, operator and blocking call it was.

Only the thread that launches the device's next work counts: whatever others do, it is this one that the device waits
for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd

from ...core import markers
from ...core.arrays import Flags, Ints
from ...core.intervals import Spans, Times, covered, intersect, spans, total
from ...core.kinds import COMM, COMPUTE
from ...core.schema import combined, flags_of_texts, records, text_codes
from ...core.steps import steps_at
from ..functions import first_step_ns, in_functions

OUTSIDE = "outside of any operator"
WORK, RANGE, IN_OPERATOR, IN_CALL = "work", "range", "operator", "call"
IN_MODULE, IN_FUNCTION = "module", "function"
IN_PYTHON, OF_THREAD = "python", "thread"
BLOCKED, NO_CPU, GARBAGE, COMPUTING = "blocked", "waiting for a CPU", "collecting garbage", "computing"
"""What a thread does in Python outside of any operator: of the kind `python`, where its side file can tell."""
_NO_RANGES = (markers.PROFILER_STEP, markers.NCCL_MARK, markers.GLOO_MARK, markers.C10D)
_SAME = 0.05
"""Part by which a step in the trace and in the side file may differ."""
_HASH = re.compile(r"(?<!\s)\s*\b[a-z0-9]{24,}\b")
"""In the name of a compiled graph, which is another one on each rank."""

Did = tuple[str, str, str | None, str | None]
"""Kind of a row and what was done; for the kind `work`, also the operator and the range that it was in."""


class Detailed(Protocol):
    """The tables of one rank, read with details of its CPU."""

    @property
    def activities(self) -> pd.DataFrame: ...  # noqa: D102 - as `EventTables`
    @property
    def launches(self) -> pd.DataFrame: ...  # noqa: D102
    @property
    def annotations(self) -> pd.DataFrame: ...  # noqa: D102
    @property
    def cpu_operators(self) -> pd.DataFrame: ...  # noqa: D102
    @property
    def operator_calls(self) -> pd.DataFrame: ...  # noqa: D102
    @property
    def runtime_calls(self) -> pd.DataFrame: ...  # noqa: D102
    @property
    def modules(self) -> pd.DataFrame: ...  # noqa: D102
    @property
    def functions(self) -> pd.DataFrame: ...  # noqa: D102


class Counted(NamedTuple):
    """What a side file says of the thread that ran a step; `ready_ns` is None where the system did not count that."""

    wall_ns: int
    cpu_ns: int
    ready_ns: int | None
    gc_ns: int

    @property
    def blocked_ns(self) -> int:
        """How long the thread was neither on a CPU nor ready for one."""
        return max(self.wall_ns - self.cpu_ns - (self.ready_ns or 0), 0)

    def outside(self, outside_ns: float, elsewhere_ns: float) -> InPython:
        """How the thread spent the time outside of any operator, if it was blocked elsewhere for so long at most."""
        most = min(outside_ns, self.blocked_ns)
        least = min(max(self.blocked_ns - elsewhere_ns, 0), most)
        unsure = most - least if self.ready_ns is not None else outside_ns
        blocked = (least + most) / 2
        garbage = min(self.gc_ns, outside_ns - blocked)
        rest, wanted = outside_ns - blocked - garbage, self.cpu_ns + (self.ready_ns or 0)
        no_cpu = rest * (self.ready_ns or 0) / wanted if wanted else 0.0
        return InPython({BLOCKED: blocked, NO_CPU: no_cpu, GARBAGE: garbage, COMPUTING: rest - no_cpu}, unsure)


class InPython(NamedTuple):
    """How a thread spent its time outside of any operator while its device had no work, in a step.

    `took_ns` adds up to that time. Where it was blocked is not recorded: `unsure_ns` is how much more or less that may
    be than `took_ns` says, in all.
    """

    took_ns: dict[str, float]
    unsure_ns: float

    @property
    def whole_ns(self) -> float:
        """All of that time."""
        return sum(self.took_ns.values())


def in_idle(breakdown_steps: pd.DataFrame, counted: Mapping[tuple[int, int], Counted]) -> InPython | None:
    """What the threads of runs without a GPU did while they computed nothing, mean over the rows of `breakdown_steps`.

    Elsewhere a thread is blocked in exposed communication at most. None where side files do not say it of all rows.
    """
    each: list[InPython] = []
    for row in records(breakdown_steps):
        one = counted.get((row["rank"], row["step"]))
        if one is None or row["device"] != "cpu" or row["idle_ns"] is None:
            return None
        each.append(one.outside(row["idle_ns"], row["exposed_comm_ns"]))
    if not each:
        return None
    took = {name: sum(one.took_ns[name] for one in each) / len(each) for name in each[0].took_ns}
    return InPython(took, sum(one.unsure_ns for one in each) / len(each))


class CpuWork:
    """What the launching threads of a rank did; `is_known` if the trace shows operators or ranges of the CPU."""

    def __init__(self, detailed: Detailed) -> None:
        operators, marks = _operators(detailed), detailed.annotations[_COLUMNS]
        is_range = _begins(operators, markers.TORCH_RANGES)
        of_user = marks[marks["name"].notna() & ~_begins(marks, _NO_RANGES)]
        c10d = marks[_begins(marks, markers.C10D)]
        calls = detailed.runtime_calls[_COLUMNS]
        blocking = calls[flags_of_texts(calls["name"], lambda name: markers.BLOCKING.match(name) is not None)]
        self.is_known = len(operators) > 0
        self.steps = marks[_begins(marks, markers.PROFILER_STEP)]
        ranges = pd.concat([of_user, operators[is_range]])
        self._layers = {
            RANGE: _by_thread(ranges),
            IN_OPERATOR: _by_thread(pd.concat([operators[~is_range], c10d])),
            IN_CALL: _by_thread(blocking),
        }
        self._modules = {thread: _InOrder.of(own, markers.MODULE) for thread, own in _threads(detailed.modules)}
        self._functions = detailed.functions
        self._main = _main_thread(self.steps, ranges)
        self._launched_ns, self._threads = _launching(detailed)

    def by_step(self, idle: Spans) -> dict[int, int]:
        """How much of the idle time lies in each step of the CPU, in ns; steps without any are left out."""
        steps, starts, ends = self._steps
        return {step: took for step, took in zip(steps, covered(idle, starts, ends).tolist(), strict=True) if took}

    @cached_property
    def _steps(self) -> tuple[list[int], Times, Times]:
        """Number, start and end of each step of the CPU."""
        starts = self.steps["start_ns"].to_numpy(dtype=np.int64)
        marks = zip(self.steps["name"], starts.tolist(), self.steps["dur_ns"], strict=True)
        return steps_at(starts, list(marks)).tolist(), starts, starts + self.steps["dur_ns"].to_numpy(dtype=np.int64)

    def in_python(self, gaps: Spans, step: int, counted: Counted, elsewhere_ns: int) -> InPython | None:
        """What the main thread did outside of any operator in the part of a step in which its device had no work.

        The thread is blocked in this time, or elsewhere, there for `elsewhere_ns` at most. In operators it is not,
        unless these are in a blocking call or a collective. None if the counters are of other times than the step.
        """
        own = self.steps[
            (self.steps["thread"] == self._main) & (self.steps["name"] == f"{markers.PROFILER_STEP}{step}")
        ]
        if len(own) != 1:
            return None
        begin, lasted = int(own["start_ns"].iloc[0]), int(own["dur_ns"].iloc[0])
        if abs(lasted - counted.wall_ns) > _SAME * lasted:
            return None
        nothing = _Nested.nothing()
        operators, calls = (self._layers[kind].get(self._main, nothing) for kind in (IN_OPERATOR, IN_CALL))
        pieces = _cut(_cut(Spans(np.array([begin]), np.array([begin + lasted])), operators.bounds), calls.bounds)
        innermost, blocking = operators.at(pieces.starts), calls.at(pieces.starts) >= 0
        waits = np.array([name.startswith(markers.C10D) for name in operators.names], dtype=bool)
        runs = (innermost >= 0) & ~blocking
        runs[runs] = ~waits[innermost[runs]]
        in_operators = int((pieces.ends - pieces.starts)[runs].sum())
        python = (innermost < 0) & ~blocking
        outside = total(intersect(self._given_by_main(gaps), Spans(pieces.starts[python], pieces.ends[python])))
        return counted.outside(outside, min(elsewhere_ns, lasted - outside - in_operators))

    def _given_by_main(self, gaps: Spans) -> Spans:
        """The part of the gaps after which it is the main thread that gives the device work."""
        pieces = _cut(gaps, self._launched_ns)
        mine = self._given_by(pieces) == self._main
        return Spans(pieces.starts[mine], pieces.ends[mine])

    def _given_by(self, pieces: Spans) -> Times:
        """The thread that gives the device work after each piece of time, none of which holds a launch."""
        if not len(self._threads):
            return np.full(len(pieces.starts), self._main)
        next_launch = np.searchsorted(self._launched_ns, pieces.starts, side="right")
        given: Times = self._threads[np.minimum(next_launch, len(self._threads) - 1)]
        return given

    def during(self, idle: Spans) -> dict[Did, int]:
        """How long the launching thread did what during the idle time, in ns.

        Entries of kind `work` add up to all of it. Those of other kinds include what is nested in them.
        """
        pieces = _cut(idle, self._launched_ns)
        threads = self._given_by(pieces)
        took: dict[Did, int] = defaultdict(int)
        for thread in np.unique(threads).tolist():
            mine = threads == thread
            self._add(took, int(thread), Spans(pieces.starts[mine], pieces.ends[mine]))
        return dict(took)

    def _add(self, took: dict[Did, int], thread: int, pieces: Spans) -> None:
        """Add to `took` what a thread did during these pieces of time."""
        nothing = _Nested.nothing()
        layers = {kind: self._layers[kind].get(thread, nothing) for kind in _LAYERS}
        layers[IN_MODULE] = self._modules_during(thread, pieces)
        # A backward pass runs on a thread of its own, while the one that began it stands inside its range.
        outer = self._layers[RANGE].get(self._main, nothing)
        for layer in (*layers.values(), outer):
            pieces = _cut(pieces, layer.bounds)
        inner = {kind: layer.at(pieces.starts) for kind, layer in layers.items()}
        around = np.where(inner[RANGE] >= 0, -1, outer.at(pieces.starts))
        columns = [*(inner[kind] for kind in (RANGE, IN_OPERATOR, IN_CALL, IN_MODULE)), around]
        number, first = combined(columns)
        lasted = np.bincount(number, pieces.ends - pieces.starts, len(first)).astype(np.int64)
        distinct = zip(*(column[first].tolist() for column in columns), strict=True)
        for (region, operator, call, module, beyond), took_ns in zip(distinct, lasted.tolist(), strict=True):
            ranges = layers[RANGE].chain(region) if region >= 0 else outer.chain(beyond)
            operators, calls = layers[IN_OPERATOR].chain(operator), layers[IN_CALL].chain(call)
            here = ranges[0] if ranges else None
            if calls:
                took[WORK, calls[0], operators[0] if operators else None, here] += took_ns
            else:
                took[WORK, operators[0] if operators else OUTSIDE, None, here] += took_ns
            modules = layers[IN_MODULE].chain(module)
            for kind, names in (
                (RANGE, ranges), (IN_OPERATOR, operators or [OUTSIDE]), (IN_CALL, calls), (IN_MODULE, modules)
            ):  # fmt: skip
                for name in set(names):
                    took[kind, name, None, None] += took_ns
        functions = self._functions[self._functions["thread"].to_numpy() == thread]
        for name, took_ns in in_functions(functions, pieces, first_step_ns(self.steps)).items():
            took[IN_FUNCTION, name, None, None] += took_ns

    def _modules_during(self, thread: int, pieces: Spans) -> _Nested:
        """The modules of a thread that last into these pieces of time; a model has many, most of them elsewhere."""
        own = self._modules.get(thread)
        return _Nested.nothing() if own is None else _Nested.of(own.those(covered(pieces, own.starts, own.ends) > 0))


class _InOrder(NamedTuple):
    """Events of a thread in order of start, the outer one of two first; `codes` are places in `texts`."""

    starts: Times
    ends: Times
    codes: Ints
    texts: list[str]

    @classmethod
    def of(cls, events: pd.DataFrame, prefix: str = "") -> _InOrder:
        """The events, their names without the prefix, and as `plain_name`."""
        starts = events["start_ns"].to_numpy(dtype=np.int64)
        ends = starts + events["dur_ns"].to_numpy(dtype=np.int64)
        order = np.lexsort((-ends, starts))
        codes, texts = text_codes(events["name"])
        names = [*(plain_name(text.removeprefix(prefix)) for text in texts), str(pd.NA)]  # -1, for NA, takes the last
        return cls(starts[order], ends[order], codes[order], names)

    def those(self, chosen: Flags) -> _InOrder:
        """Some of the events."""
        return _InOrder(self.starts[chosen], self.ends[chosen], self.codes[chosen], self.texts)


class _Nested(NamedTuple):
    """Nested events of a thread.

    From each bound to the next one, ascending, `innermost` is what runs there, -1 for none: a place in `names`, which
    has each name once for each chain of names around it. `parents` says where in them the name around each stands.
    """

    bounds: Times
    innermost: Times
    parents: list[int]
    names: list[str]

    @classmethod
    def nothing(cls) -> _Nested:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), [], [])

    @classmethod
    def of(cls, events: _InOrder) -> _Nested:
        bounds, innermost = [], []
        places: dict[tuple[int, int], int] = {}  # by what is around, and the name
        ends, stack = [_NEVER], [-1]
        for start, end, code in zip(events.starts.tolist(), events.ends.tolist(), events.codes.tolist(), strict=True):
            while ends[-1] <= start:
                bounds.append(ends.pop())
                stack.pop()
                innermost.append(stack[-1])
            place = places.setdefault((stack[-1], code), len(places))
            ends.append(min(end, ends[-1]))  # clocks are cut to microseconds: the end of a nested one may stick out
            stack.append(place)
            bounds.append(start)
            innermost.append(place)
        while len(stack) > 1:
            bounds.append(ends.pop())
            stack.pop()
            innermost.append(stack[-1])
        parents, names = [around for around, _ in places], [events.texts[code] for _, code in places]
        return cls(np.array(bounds, np.int64), np.array(innermost, np.int64), parents, names)

    def at(self, times: Times) -> Times:
        """Which of them runs at each time, by its place; -1 where none does."""
        if not len(self.bounds):
            return np.full(len(times), -1, np.int64)
        place = np.searchsorted(self.bounds, times, side="right") - 1
        result: Times = np.where(place >= 0, self.innermost[place], -1)
        return result

    def chain(self, place: int) -> list[str]:
        """The name at a place, and of all that is around it, the innermost first."""
        names = []
        while place >= 0:
            names.append(self.names[place])
            place = self.parents[place]
        return names


_COLUMNS = ["thread", "name", "start_ns", "dur_ns"]
_LAYERS = (RANGE, IN_OPERATOR, IN_CALL)
_NEVER = np.iinfo(np.int64).max


def plain_name(name: str) -> str:
    """A name that is the same on all ranks: without the hash of a compiled graph."""
    return _HASH.sub("", name)


def _operators(detailed: Detailed) -> pd.DataFrame:
    """The operators; on runs without a GPU the outermost ones, which are their activities."""
    if len(detailed.cpu_operators):
        return detailed.cpu_operators[_COLUMNS]
    ran = detailed.activities
    ran = ran[(ran["device"] == "cpu") & (ran["kind"] == COMPUTE)]
    return ran.rename(columns={"stream": "thread"})[_COLUMNS]


def _begins(events: pd.DataFrame, beginnings: str | tuple[str, ...]) -> Flags:
    """Whether the name of each event begins so."""
    return flags_of_texts(events["name"], lambda name: name.startswith(beginnings))


def _threads(events: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    return ((int(str(thread)), own) for thread, own in events.groupby("thread"))


def _by_thread(events: pd.DataFrame) -> dict[int, _Nested]:
    return {thread: _Nested.of(_InOrder.of(own)) for thread, own in _threads(events)}


def _main_thread(steps: pd.DataFrame, ranges: pd.DataFrame) -> int:
    """The thread that runs the steps; if none are marked, the one with most ranges."""
    threads = (steps if len(steps) else ranges)["thread"].mode()
    return int(threads.iloc[0]) if len(threads) else -1


def _launching(detailed: Detailed) -> tuple[Times, Times]:
    """When work was launched on the main stream or for communication, and by which thread, in order of time."""
    ran, launches = detailed.activities, detailed.launches
    if len(ran) and (ran["device"] == "cpu").all():
        given = ran[ran["kind"] == COMPUTE].sort_values("start_ns", kind="stable")
        return given["start_ns"].to_numpy(dtype=np.int64), given["stream"].to_numpy(dtype=np.int64)
    computing = ran[ran["kind"] == COMPUTE].groupby("stream")["dur_ns"].sum()
    main = ran["stream"] == (computing.idxmax() if len(computing) else -1)
    wanted = ran.loc[main | (ran["kind"] == COMM), "correlation"].dropna().astype("int64")
    given = launches[launches["correlation"].isin(wanted)].sort_values("start_ns", kind="stable")
    return given["start_ns"].to_numpy(dtype=np.int64), given["thread"].to_numpy(dtype=np.int64)


def _cut(pieces: Spans, at: Times) -> Spans:
    """The same time in smaller pieces, which also end and begin at these times, ascending."""
    if not len(pieces.starts) or not len(at):
        return pieces
    first, last = np.searchsorted(at, pieces.starts[0], side="right"), np.searchsorted(at, pieces.ends[-1])
    inside = np.unique(at[first:last])
    place = np.searchsorted(pieces.starts, inside, side="right") - 1
    keep = (inside > pieces.starts[place]) & (inside < pieces.ends[place])
    starts = np.sort(np.concatenate((pieces.starts, inside[keep])))
    ends = np.sort(np.concatenate((pieces.ends, inside[keep])))
    return Spans(starts, ends)


def within(gaps: Spans, times: Iterable[tuple[int, int]]) -> Spans:
    """The part of the gaps that lies between any of these times."""
    given = np.array(list(times), dtype=np.int64).reshape(-1, 2)
    return intersect(gaps, spans(given[:, 0], given[:, 1]))
