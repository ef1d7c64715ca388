"""What the CPU of one rank did while its device had no work: in which range, operator and blocking call it was.

Only the thread that launches the device's next work counts: whatever others do, it is this one that the device waits
for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd

from ...core import markers
from ...core.intervals import Spans, Times, covered, intersect, spans, total
from ...core.kinds import COMM, COMPUTE
from ...core.schema import records
from ...core.steps import steps_at

OUTSIDE = "outside of any operator"
WORK, RANGE, IN_OPERATOR, IN_CALL = "work", "range", "operator", "call"
IN_MODULE = "module"
IN_PYTHON = "python"
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
        operators = _operators(detailed)
        is_range = operators["name"].str.startswith(markers.TORCH_RANGES).fillna(False).astype(bool)
        marks = detailed.annotations[_COLUMNS]
        of_user = marks[~marks["name"].str.startswith(_NO_RANGES).fillna(True).astype(bool)]
        c10d = marks[marks["name"].str.startswith(markers.C10D).fillna(False).astype(bool)]
        calls = detailed.runtime_calls
        blocking = calls[calls["name"].str.match(markers.BLOCKING).fillna(False).astype(bool)]
        self.is_known = len(operators) > 0
        steps = marks[marks["name"].str.startswith(markers.PROFILER_STEP).fillna(False).astype(bool)]
        self.steps = steps[_COLUMNS]
        ranges = pd.concat([of_user, operators[is_range]])
        self._layers = {
            RANGE: _by_thread(ranges),
            IN_OPERATOR: _by_thread(pd.concat([operators[~is_range], c10d])),
            IN_CALL: _by_thread(blocking[_COLUMNS]),
        }
        self._modules = detailed.modules
        self._main = _main_thread(self.steps, ranges)
        self._launched_ns, self._threads = _launching(detailed)

    def by_step(self, idle: Spans) -> dict[int, int]:
        """How much of the idle time lies in each step of the CPU, in ns; steps without any are left out."""
        starts = self.steps["start_ns"].to_numpy(dtype=np.int64)
        inside = covered(idle, starts, starts + self.steps["dur_ns"].to_numpy(dtype=np.int64))
        marks = zip(self.steps["name"], starts.tolist(), self.steps["dur_ns"], strict=True)
        steps = steps_at(starts, list(marks)).tolist()
        return {step: took for step, took in zip(steps, inside.tolist(), strict=True) if took}

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
        columns = np.stack([*(inner[kind] for kind in (RANGE, IN_OPERATOR, IN_CALL, IN_MODULE)), around])
        distinct, number = np.unique(columns, axis=1, return_inverse=True)
        lasted = np.bincount(number.ravel(), pieces.ends - pieces.starts, distinct.shape[1]).astype(np.int64)
        for (region, operator, call, module, beyond), took_ns in zip(distinct.T.tolist(), lasted.tolist(), strict=True):
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

    def _modules_during(self, thread: int, pieces: Spans) -> _Nested:
        """The modules of a thread that last into these pieces of time; a model has many, most of them elsewhere."""
        modules = self._modules
        starts = modules["start_ns"].to_numpy(dtype=np.int64)
        inside = covered(pieces, starts, starts + modules["dur_ns"].to_numpy(dtype=np.int64)) > 0
        own = modules[inside & (modules["thread"].to_numpy() == thread)]
        return _Nested.of(own.assign(name=own["name"].str.removeprefix(markers.MODULE)))


class _Nested(NamedTuple):
    """Nested events of a thread.

    From each bound to the next one, ascending, `innermost` is the event that runs there, -1 for none; `parents`
    is the event around each event. Both are positions in `names`.
    """

    bounds: Times
    innermost: Times
    parents: list[int]
    names: list[str]

    @classmethod
    def nothing(cls) -> _Nested:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), [], [])

    @classmethod
    def of(cls, events: pd.DataFrame) -> _Nested:
        starts = events["start_ns"].to_numpy(dtype=np.int64)
        ends = starts + events["dur_ns"].to_numpy(dtype=np.int64)
        order = np.lexsort((-ends, starts))
        names = [plain_name(str(name)) for name in events["name"].to_numpy()[order]]
        bounds, innermost, parents = [], [], []
        stack: list[int] = []
        begin, end = starts[order].tolist(), ends[order].tolist()
        for i, start in enumerate(begin):
            while stack and end[stack[-1]] <= start:
                bounds.append(end[stack.pop()])
                innermost.append(stack[-1] if stack else -1)
            parents.append(stack[-1] if stack else -1)
            if stack:  # clocks of events are cut to microseconds: the end of a nested one may stick out
                end[i] = min(end[i], end[stack[-1]])
            stack.append(i)
            bounds.append(start)
            innermost.append(i)
        while stack:
            bounds.append(end[stack.pop()])
            innermost.append(stack[-1] if stack else -1)
        return cls(np.array(bounds, np.int64), np.array(innermost, np.int64), parents, names)

    def at(self, times: Times) -> Times:
        """The innermost event at each time, -1 for none."""
        if not len(self.bounds):
            return np.full(len(times), -1, np.int64)
        place = np.searchsorted(self.bounds, times, side="right") - 1
        result: Times = np.where(place >= 0, self.innermost[place], -1)
        return result

    def chain(self, event: int) -> list[str]:
        """The name of an event, and of all that it is nested in, the innermost first."""
        names = []
        while event >= 0:
            names.append(self.names[event])
            event = self.parents[event]
        return names


_COLUMNS = ["thread", "name", "start_ns", "dur_ns"]
_LAYERS = (RANGE, IN_OPERATOR, IN_CALL)


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


def _by_thread(events: pd.DataFrame) -> dict[int, _Nested]:
    return {int(str(thread)): _Nested.of(of_thread) for thread, of_thread in events.groupby("thread")}


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
