"""The regions of one rank: nested ranges of its CPU threads, each with its path and phase.

A region is a range that somebody named: record_function, NVTX, nn.Module, a compiled region. Its path is its name after
those of the regions around it.

A backward operator belongs to the path in which its forward operator ran. The two share the number that autograd gives
them (`Sequence number`), which it counts thread by thread. Several forward operators have one number, where most of
them made no node of autograd's graph; the last one before the backward operator made it. Source: torch
aten/src/ATen/SequenceNumber.h, torch/csrc/autograd/profiler_kineto.cpp (`Sequence number`, `Fwd thread id`), and
libkineto's flow `fwdbwd`, which joins them so.

Inside a backward operator, operators that autograd records (which have such a number of their own, because gradients
are enabled) are forward operators that run again: activation checkpointing. Docs: docs/design/0038-regions.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core import markers
from ...core.arrays import Flags, Ints
from ...core.intervals import Times
from ...core.kinds import COMPUTE
from ...core.schema import bare, combined, flags_of_texts, text_codes
from ..causes.cpu_work import plain_name

DIRECT, BACKWARD, RECOMPUTE = 0, 1, 2
PHASES = (None, "backward", "recompute")
"""Names of these phases; the first one is what is called directly: forward pass, optimizer, data."""
NO_REGION, NOT_LAUNCHED = 0, 1
"""Paths of work outside all regions, and of work whose launch is not in the trace."""
BETWEEN_NAMES = " > "
"""Between the names of a path."""
NAMES = ("(outside any region)", "(no launch in the trace)")

_NONE = -1
_COMPILED_RANGES = (*markers.TORCH_RANGES, "## ")
_WANTED = (markers.EVALUATE, *_COMPILED_RANGES)
_NO_REGIONS = (
    markers.PROFILER_STEP,
    markers.C10D,
    markers.GLOO_MARK,
    *markers.OF_BACKENDS,
    markers.PYTHON_GC,
    markers.C10D_FRAME,
    *markers.DETAILS,
)
_OF_TORCH = re.compile(r"::|Backward\d*\Z")
_GRAPH = re.compile(r"## Call (CompiledFxGraph) \w+ ##")
_NUMBER = re.compile(r"(?<![^\W_])(?<!\d/)\d+(?!/\d)(?![^\W_])")
"""A number that stands by itself: `layers.17.mlp`, `Linear_3`; not of `conv1`, nor of the compiler's `Region: 4/5`."""
_ROUNDING_NS = 2_000
"""Starts and durations may each be rounded to us, so that an end may be off by so much."""
_KINDS = _OF_BACKWARD, _REGION, _OF_FORWARD = 0, 1, 2
"""In the order in which they nest where their times are equal."""


@dataclass
class RegionPaths:
    """All paths of a run, each with a number: its last name, and the number of the path around it."""

    names: list[str] = field(default_factory=lambda: list(NAMES))
    parents: list[int] = field(default_factory=lambda: [NO_REGION, NO_REGION])
    depths: list[int] = field(default_factory=lambda: [0, 1])
    _known: dict[tuple[int, str], int] = field(default_factory=dict)

    def inside(self, path: int, name: str) -> int:
        """The number of the path with this name after those of `path`."""
        number = self._known.get((path, name))
        if number is None:
            number = self._known[path, name] = len(self.names)
            self.names.append(name)
            self.parents.append(path)
            self.depths.append(self.depths[path] + 1)
        return number

    def add(self, others: RegionPaths) -> Ints:
        """The number here of each path of `others`."""
        here = list(range(len(NAMES)))
        for name, parent in zip(others.names[len(NAMES) :], others.parents[len(NAMES) :], strict=True):
            here.append(self.inside(here[parent], name))
        return np.array(here, dtype=np.int64)

    def again(self, path: int, name: str) -> int:
        """The path that a range which runs again had at first; a backward operator of `path` is around it.

        That operator stands somewhere in what runs again, or beside it: so the range is `path`, or lies in it, or in
        the path around that, and so on.
        """
        around = path
        while around != NO_REGION:
            if self.names[around] == name:
                return around
            if (around, name) in self._known:
                return self._known[around, name]
            around = self.parents[around]
        return self._known.get((NO_REGION, name)) or self.inside(path, name)

    def text(self, path: int) -> str:
        """Its names, the outermost first."""
        names = [self.names[path]]
        while (path := self.parents[path]) != NO_REGION:
            names.append(self.names[path])
        return BETWEEN_NAMES.join(reversed(names))

    def cut(self, depth: int) -> Ints:
        """The path of at most `depth` names that each path lies in."""
        result = list(range(len(self.names)))
        for path, names in enumerate(self.depths):  # a path comes after the one around it
            if names > depth:
                result[path] = result[self.parents[path]]
        return np.array(result, dtype=np.int64)

    def folded(self) -> tuple[RegionPaths, Ints]:
        """Paths with `*` in place of the numbers in which names differ, and which of them each path is."""
        classes, class_of = RegionPaths(), list(range(len(NAMES)))
        first: dict[int, str] = {}
        for name, parent in zip(self.names[len(NAMES) :], self.parents[len(NAMES) :], strict=True):
            starred = without_numbers(name)
            number = classes.inside(class_of[parent], starred)
            class_of.append(number)
            if first.setdefault(number, name) != name:
                first[number] = starred
        for number, name in first.items():
            classes.names[number] = name
        return classes, np.array(class_of, dtype=np.int64)


@dataclass(frozen=True)
class CpuRanges:
    """What a rank's CPU did in one cycle, as tables of these names.

    `operators` are those that are ranges around others, or the engine of the backward pass. Exports of Nsight have NVTX
    ranges among the operators, and no sequence numbers: there every name is a range that is not one of torch's, and
    every one where torch did not run.
    """

    annotations: pd.DataFrame
    modules: pd.DataFrame
    operators: pd.DataFrame
    operator_calls: pd.DataFrame

    @classmethod
    def of(
        cls,
        *,
        activities: pd.DataFrame,
        annotations: pd.DataFrame,
        modules: pd.DataFrame,
        cpu_operators: pd.DataFrame,
        operator_calls: pd.DataFrame,
    ) -> CpuRanges:
        """From the tables of a rank; on runs without a GPU, operators are among its activities."""
        on_cpu = activities[(bare(activities["device"]) == "cpu") & (bare(activities["kind"]) == COMPUTE)]
        on_cpu = on_cpu.rename(columns={"stream": "thread"})
        wanted = [
            table.loc[_begins_with(table, _WANTED), _COLUMNS] for table in (cpu_operators, on_cpu, operator_calls)
        ]
        if not len(operator_calls):
            of_torch = _begins_with(cpu_operators, (markers.ATEN,)).any()  # else `::` is of other C++
            of_user = flags_of_texts(cpu_operators["name"], lambda name: not (of_torch and _OF_TORCH.search(name)))
            wanted.append(cpu_operators.loc[of_user, _COLUMNS])
        return cls(annotations, modules, _together(wanted), operator_calls)


_COLUMNS = ["thread", "name", "start_ns", "dur_ns"]


class _Events(NamedTuple):
    """Ranges of one kind, all of shape (ranges,): `name` is a place in `names`; `began_ns` and `began_on` say where the
    forward operator of a backward one began, thread -1 if that is not known."""

    thread: Ints
    start: Times
    end: Times
    name: Ints
    names: list[str]
    began_on: Ints
    began_ns: Times


class Regions(NamedTuple):
    """Regions of one rank in one cycle, with the backward operators and those that run again, which have paths too.

    In order of thread and start, the outer one of two first; all of shape (ranges,). They nest exactly: where ranges of
    a trace overlap only in part, they are cut. `path` is a number in `RegionPaths`, `phase` one of DIRECT, BACKWARD,
    RECOMPUTE; `self_ns` is a range's time without those nested in it; `is_region` tells regions from operators.
    `bounds` are the moments at which the innermost range of a thread changes, by thread, to `innermost`, -1 for none.
    The `main` thread marks the steps; `engines` are the others that ran backward operators.
    """

    thread: Ints
    start: Times
    end: Times
    path: Ints
    phase: Ints
    self_ns: Times
    is_region: Flags
    bounds: dict[int, Times]
    innermost: dict[int, Ints]
    main: int
    engines: frozenset[int]

    def at(self, thread: int, times: Times) -> Ints:
        """The innermost range of a thread at each time, -1 for none; of shape (times,)."""
        bounds = self.bounds.get(thread)
        if bounds is None:
            return np.full(len(times), _NONE)
        place = np.searchsorted(bounds, times, side="right") - 1
        return np.where(place >= 0, self.innermost[thread][place], _NONE)

    def around(self, threads: Ints, times: Times) -> Ints:
        """The same for several threads: `threads` and `times` are of one shape."""
        result = np.full(len(times), _NONE)
        for thread in np.unique(threads).tolist():
            here = threads == thread
            result[here] = self.at(thread, times[here])
        return result

    def places(self, threads: Ints, times: Times) -> tuple[Ints, Ints]:
        """Path and phase of a launch, by its thread and time.

        What a thread of the backward pass launches outside of its operators, such as the end of a hook, belongs to the
        region in which the main thread waits for it.
        """
        innermost = self.around(threads, times)
        beside = (innermost < 0) & np.isin(threads, list(self.engines))
        innermost[beside] = self.at(self.main, times[beside])
        path, phase = (
            np.append(column, value)[innermost] for column, value in ((self.path, NO_REGION), (self.phase, DIRECT))
        )
        return path, np.where(beside, BACKWARD, phase)


def without_numbers(text: str) -> str:
    """A name or path with `*` for each number that stands by itself."""
    return _NUMBER.sub("*", text)


def regions_of(cpu: CpuRanges, paths: RegionPaths) -> Regions:
    """The regions of one rank in one cycle; new paths are added to `paths`."""
    backward = _backward_operators(cpu)
    events = [backward, _named_ranges(cpu), _rerun_operators(cpu, backward)]
    kind = np.repeat(_KINDS, [len(each.start) for each in events])
    thread, start, end, began_on, began_ns = (
        np.concatenate([getattr(each, name) for each in events])
        for name in ("thread", "start", "end", "began_on", "began_ns")
    )
    name = np.concatenate([each.name for each in events])
    order = np.lexsort((kind, -end, start, thread))
    kind, thread, start, end, name = kind[order], thread[order], start[order], end[order], name[order]
    nested = _nested(thread, start, end)
    regions = Regions(
        thread, start, nested.end, np.full(len(start), _NONE), np.zeros(len(start), dtype=np.int64),
        nested.self_ns, kind == _REGION, nested.bounds, nested.innermost, _NONE, frozenset(),
    )  # fmt: skip
    main = _main_thread(cpu, regions)
    regions = regions._replace(main=main, engines=frozenset(backward.thread.tolist()) - {main})
    began_on, began_ns = began_on[order], began_ns[order]
    joined = began_on != _NONE
    origin = np.full(len(start), _NONE)
    origin[joined] = regions.around(began_on[joined], began_ns[joined])
    # Backward operators without a forward one: whoever called the backward pass stands in a region meanwhile.
    calling = regions.at(main, start)
    again = _runs_again(regions, kind)
    _give_paths(regions, nested.parent, kind, name, events[_REGION].names, origin, calling, again, paths)
    return regions


def _give_paths(
    regions: Regions,
    parent: Ints,
    kind: Ints,
    name: Ints,
    names: list[str],
    origin: Ints,
    calling: Ints,
    again: Flags,
    paths: RegionPaths,
) -> None:
    """Fill in path and phase, in order of start: a forward operator comes before its backward one."""
    path, phase = [_NONE] * len(kind), [DIRECT] * len(kind)
    rows = zip(
        parent.tolist(), kind.tolist(), name.tolist(), origin.tolist(), calling.tolist(), again.tolist(), strict=True
    )
    listed = list(rows)
    for i in np.lexsort((np.arange(len(kind)), regions.start)).tolist():
        around, of_kind, of_name, begun_in, called_in, is_again = listed[i]
        base, base_phase = (path[around], phase[around]) if around >= 0 else (NO_REGION, DIRECT)
        if of_kind == _REGION and is_again and base_phase == BACKWARD:
            path[i], phase[i] = paths.again(base, names[of_name]), RECOMPUTE
        elif of_kind == _REGION:
            path[i], phase[i] = paths.inside(base, names[of_name]), base_phase
        elif of_kind == _OF_FORWARD:
            path[i], phase[i] = base, RECOMPUTE
        else:
            if begun_in >= 0 and path[begun_in] >= 0:
                base = path[begun_in]
            elif around < 0 and called_in >= 0 and path[called_in] >= 0:
                base = path[called_in]
            path[i], phase[i] = base, BACKWARD
    regions.path[:] = path
    regions.phase[:] = phase


def _named_ranges(cpu: CpuRanges) -> _Events:
    """The ranges that are regions."""
    marks = cpu.annotations[~_begins_with(cpu.annotations, _NO_REGIONS)]
    compiled = cpu.operators[~_begins_with(cpu.operators, (markers.EVALUATE,))]
    table = _together([marks[_COLUMNS], cpu.modules[_COLUMNS], compiled[_COLUMNS]])
    codes, names = text_codes(table["name"])
    return _events(table, codes, [_region_name(name) for name in names])


def _region_name(name: str) -> str:
    """The name of a region, the same on all ranks: `Linear_3`, and `CompiledFxGraph` without its hash.

    ` > ` in a name would look like two: it is `>`.
    """
    graph = _GRAPH.fullmatch(name)
    return graph[1] if graph else plain_name(name.removeprefix(markers.MODULE)).replace(" > ", ">")


def _backward_operators(cpu: CpuRanges) -> _Events:
    """The backward operators, with the beginning of the forward operator of each."""
    calls = cpu.operator_calls
    forward_thread = calls["forward_thread"].fillna(0).to_numpy(dtype=np.int64)
    with_number = calls[forward_thread > 0]
    others = cpu.operators[_begins_with(cpu.operators, (markers.EVALUATE,))]
    both = [np.append(bare(with_number[key]), bare(others[key])) for key in ("thread", "start_ns", "dur_ns")]
    number, _ = combined(pd.factorize(column)[0] for column in both)
    others = others[~np.isin(number[len(with_number) :], number[: len(with_number)])]
    began_on, began_ns = _forward_of(calls, forward_thread > 0)
    count = len(others)
    table = pd.concat([with_number[_COLUMNS], others], ignore_index=True)
    return _events(table, np.zeros(len(table), dtype=np.int64), [])._replace(
        began_on=np.append(began_on, np.full(count, _NONE)), began_ns=np.append(began_ns, np.zeros(count, np.int64))
    )


def _forward_of(calls: pd.DataFrame, is_backward: Flags) -> tuple[Ints, Times]:
    """Thread and start of the forward operator of each backward one; thread -1 where it is not in the trace.

    A trace gives threads other numbers than autograd does. The thread that autograd calls so is the one that began most
    of these sequence numbers before they were used, and each thread has one number. Where several began as many, as the
    threads of nn.DataParallel do, which count alike, the trace does not tell whose a number is.
    """
    thread, start = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    sequence = calls["sequence"].fillna(_NONE).to_numpy(dtype=np.int64)
    called_by = calls["forward_thread"].fillna(0).to_numpy(dtype=np.int64)
    forward = np.flatnonzero(~is_backward & (sequence >= 0))
    backward = np.flatnonzero(is_backward)
    began_on, began_ns = np.full(len(backward), _NONE), np.zeros(len(backward), dtype=np.int64)
    begun: dict[int, dict[int, Times]] = {}
    for number in np.unique(called_by[backward]).tolist():
        wanted = backward[called_by[backward] == number]
        begun[number] = {}
        for candidate in np.unique(thread[forward]).tolist():
            on_it = forward[thread[forward] == candidate]
            times = _last_before(sequence[on_it], start[on_it], sequence[wanted], start[wanted])
            if (times >= 0).any():
                begun[number][candidate] = times
    joined = {number: {one: int((of[one] >= 0).sum()) for one in of} for number, of in begun.items()}
    for number, candidate in _thread_of(joined).items():
        wanted = np.flatnonzero(called_by[backward] == number)
        times = begun[number][candidate]
        known = times >= 0
        began_on[wanted[known]], began_ns[wanted[known]] = candidate, times[known]
    return began_on, began_ns


def _thread_of(joined: dict[int, dict[int, int]]) -> dict[int, int]:
    """The thread of the trace that each number of autograd stands for, where one is likelier than all others.

    `joined` says how many operators each thread explains. A thread that is taken is no candidate of other numbers.
    """
    open_numbers = {number: dict(threads) for number, threads in joined.items()}
    found: dict[int, int] = {}
    while True:
        clear = []
        for number, threads in open_numbers.items():
            most = max(threads.values(), default=0)
            best = [thread for thread, count in threads.items() if count == most]
            if len(best) == 1:
                clear.append((most, number, best[0]))
        if not clear:
            return found
        _, number, thread = max(clear)
        found[number] = thread
        del open_numbers[number]
        for threads in open_numbers.values():
            threads.pop(thread, None)


def _last_before(sequence: Ints, start: Times, wanted: Ints, before: Times) -> Times:
    """The last of these starts with each wanted number that is before a time; -1 if there is none."""
    # Numbers and times as their ranks, so that a pair of them fits into one integer.
    number, moment = (
        np.unique(np.concatenate(both), return_inverse=True)[1].reshape(-1)
        for both in ((sequence, wanted), (start, before))
    )
    keys = number * (len(moment) + 1) + moment
    known, asked = keys[: len(start)], keys[len(start) :]
    order = np.argsort(known, kind="stable")
    place = np.searchsorted(known[order], asked, side="left") - 1
    last = order[np.maximum(place, 0)]
    is_same = (place >= 0) & (sequence[last] == wanted)
    return np.where(is_same, start[last], _NONE)


def _rerun_operators(cpu: CpuRanges, backward: _Events) -> _Events:
    """The operators that autograd records inside a backward operator of their thread.

    Functions that are written in Python, as `_AlltoAllSingle`, have a number even where no gradients are enabled.
    """
    calls = cpu.operator_calls
    is_forward = (calls["sequence"].notna() & (calls["forward_thread"].fillna(0) == 0)).to_numpy(dtype=bool)
    calls = calls[is_forward & flags_of_texts(calls["name"], lambda name: "::" in name)]
    start, thread = calls["start_ns"].to_numpy(), calls["thread"].to_numpy()
    inside = np.zeros(len(calls), dtype=bool)
    for number in np.unique(backward.thread).tolist():
        on_it = backward.thread == number
        order = np.argsort(backward.start[on_it], kind="stable")
        starts, reach = backward.start[on_it][order], np.maximum.accumulate(backward.end[on_it][order])
        place = np.searchsorted(starts, start, side="right") - 1
        inside |= (thread == number) & (place >= 0) & (start < reach[place])
    rerun = calls[inside]
    return _events(rerun, np.zeros(len(rerun), dtype=np.int64), [])


def _runs_again(regions: Regions, kind: Ints) -> Flags:
    """Whether each range would be one that runs again: it has operators that autograd records."""
    result = np.zeros(len(kind), dtype=bool)
    for thread in regions.bounds:
        here = np.flatnonzero(regions.thread == thread)
        begun = regions.start[here][kind[here] == _OF_FORWARD]
        result[here] = np.searchsorted(begun, regions.end[here]) > np.searchsorted(begun, regions.start[here])
    return result


def _main_thread(cpu: CpuRanges, regions: Regions) -> int:
    """The thread that marks the steps; without steps, the one with most regions."""
    steps = cpu.annotations[_begins_with(cpu.annotations, (markers.PROFILER_STEP,))]["thread"].to_numpy()
    threads = steps if len(steps) else regions.thread[regions.is_region]
    if not len(threads):
        return _NONE
    numbers, counts = np.unique(threads, return_counts=True)
    return int(numbers[counts.argmax()])


def _together(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all tables, each once: an operator may be in several of them."""
    some = [table for table in tables if len(table)]
    return pd.concat(some, ignore_index=True).drop_duplicates(ignore_index=True) if some else tables[0]


def _begins_with(table: pd.DataFrame, prefixes: tuple[str, ...]) -> Flags:
    """Whether the name of each row begins so."""
    return flags_of_texts(table["name"], lambda name: name.startswith(prefixes))


def _events(table: pd.DataFrame, name: NDArray[np.int64], names: list[str]) -> _Events:
    start = table["start_ns"].to_numpy(dtype=np.int64)
    return _Events(
        thread=table["thread"].to_numpy(dtype=np.int64),
        start=start,
        end=start + table["dur_ns"].to_numpy(dtype=np.int64),
        name=name,
        names=names,
        began_on=np.full(len(table), _NONE),
        began_ns=np.zeros(len(table), dtype=np.int64),
    )


class _Nesting(NamedTuple):
    """Ranges nested exactly: the end of each, the range around it, and its time without those nested in it."""

    end: Times
    parent: Ints
    self_ns: Times
    bounds: dict[int, Times]
    innermost: dict[int, Ints]


def _nested(thread: Ints, start: Times, end: Times) -> _Nesting:
    """Nest ranges in order of thread and start, the outer one of two first.

    The innermost one is the latest begun: one that ends after the range around it follows that one, which ends where it
    begins. Unless it ends later by no more than rounding, with most of it inside: then it is cut.
    """
    ends, parent = end.tolist(), [_NONE] * len(start)
    bounds: dict[int, Times] = {}
    innermost: dict[int, Ints] = {}
    starts = start.tolist()
    changes = [0, *(np.flatnonzero(np.diff(thread)) + 1).tolist(), len(thread)] if len(thread) else [0]
    for first, last in pairwise(changes):
        at: list[int] = []
        inner: list[int] = []
        stack: list[int] = []
        for i in range(first, last):
            begin = starts[i]
            while stack:
                until = ends[stack[-1]]
                over = ends[i] - until
                if until > begin and (over <= 0 or (over <= _ROUNDING_NS and over < until - begin)):
                    break
                ends[stack[-1]] = min(until, begin)
                at.append(ends[stack.pop()])
                inner.append(stack[-1] if stack else _NONE)
            if stack:
                parent[i] = stack[-1]
                ends[i] = min(ends[i], ends[stack[-1]])
            stack.append(i)
            at.append(begin)
            inner.append(i)
        while stack:
            at.append(ends[stack.pop()])
            inner.append(stack[-1] if stack else _NONE)
        number = int(thread[first])
        bounds[number], innermost[number] = np.array(at, dtype=np.int64), np.array(inner, dtype=np.int64)
    cut, around = np.array(ends, dtype=np.int64), np.array(parent, dtype=np.int64)
    self_ns = cut - start
    np.subtract.at(self_ns, around[around >= 0], (cut - start)[around >= 0])
    return _Nesting(cut, around, self_ns, bounds, innermost)
