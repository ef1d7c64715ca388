"""Why a device was idle: what the host did before launching the activity that ends each gap.

The activity that ends a gap [g, a) was launched by the runtime or driver call [l, m) of the same correlation. Up to l
nothing was queued (`starved`), up to m the call was running (`launching`), and from m on the device could begin
(`queued`). One call launches all kernels of a CUDA graph, so the gaps between them are queued.

Source: HolisticTraceAnalysis, get_idle_time_breakdown, calls a gap host_wait if the call begins after the kernel before
it ended, stream by stream and as a whole; here all streams together, and to the ns. Examples: docs/metrics/idle.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from ...core import markers
from ...core.arrays import Flags, Ints
from ...core.intervals import Spans, Times, clip, complement, covered, spans, union
from ...core.schema import Row, bare, flags_of_texts, grouped, text_codes
from ...core.steps import Mark, Window, windows_by_process
from ...core.tables.events import FUNCTIONS, MODULES
from .holders import Ranges

NOT_READ = (
    "the causes need runtime calls and operators, which were not read; recordings have them unless packed --no-details"
)
ON_CPU = "a run without a GPU has no launches"
NO_CALLS = "no call of the runtime is in the trace, so nothing is known of launches"
NO_OPERATORS = "no operators in the trace: capture with ProfilerActivity.CPU to tell data, operators and Python apart"

_SYNC, _ALLOC = re.compile(markers.BLOCKING_CALL), re.compile(markers.ALLOCATING_CALL)
_UNKNOWN = np.iinfo(np.int64).min
_NEVER = np.iinfo(np.int64).max

QUEUE = ("starved", "launching", "queued", "unknown")
"""The parts of idle time, by what was queued on the device."""
HOST = ("sync", "alloc", "data", "operator", "outside")
"""The parts of starved time, by what the launching thread did. Where they nest, the first of this list counts."""
OF_WHICH = ("gc", "cpu_comm", "compile")
"""Special parts of `operator` and `outside`. Where they nest, the first of this list counts."""


def is_sync(call: str) -> bool:
    """Whether a runtime or driver call returns only once the device has finished something."""
    return _SYNC.match(call) is not None


def is_alloc(call: str) -> bool:
    """Whether a runtime or driver call allocates or frees memory."""
    return _ALLOC.match(call) is not None


_RANGE = ["thread", "name", "start_ns", "dur_ns"]
NEEDED = ["rank", "device", "cycle", "start_ns", "dur_ns", "step", "correlation", "stream", "kind", "name"]
"""Columns of activities that idle time is measured from."""


class HostCalls(NamedTuple):
    """Runtime and driver calls of one rank in one cycle, all of shape (calls,)."""

    thread: Ints
    correlation: Ints
    start_ns: Times
    end_ns: Times
    is_sync: Flags
    is_alloc: Flags


class HostEvents(NamedTuple):
    """Operators or annotations of one rank in one cycle, all of shape (events,); `codes` are places in `names`."""

    thread: Ints
    start_ns: Times
    end_ns: Times
    codes: Ints
    names: Sequence[str]

    @classmethod
    def of(cls, events: pd.DataFrame) -> HostEvents:
        """The events of a table."""
        start = events["start_ns"].to_numpy()
        return cls(bare(events["thread"]), start, start + events["dur_ns"].to_numpy(), *text_codes(events["name"]))

    def where(self, flags: Flags) -> HostEvents:
        """Those of them that are flagged."""
        thread, start, end, codes, names = self
        return HostEvents(thread[flags], start[flags], end[flags], codes[flags], names)

    def on(self, thread: int) -> HostEvents:
        """Those of a thread."""
        return self.where(self.thread == thread)

    def named(self, is_wanted: Callable[[str], bool]) -> HostEvents:
        """Those whose names are wanted; each distinct name is asked once."""
        wanted = np.array([*map(is_wanted, self.names), False], dtype=bool)  # the last one is for -1, no name
        return self.where(wanted[self.codes])

    @property
    def spans(self) -> Spans:
        """The time of at least one of them."""
        return spans(self.start_ns, self.end_ns)


@dataclass(frozen=True)
class Host:
    """What the CPU of one rank did in one cycle, as tables of these names."""

    runtime_calls: pd.DataFrame
    operators: pd.DataFrame
    annotations: pd.DataFrame
    modules: pd.DataFrame
    functions: pd.DataFrame
    has_gc: bool
    """Whether runs of Python's garbage collector were recorded, on this rank or any other."""
    _of_threads: dict[int, dict[str, Spans]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def calls(self) -> HostCalls:
        """The runtime and driver calls."""
        calls = self.runtime_calls
        start = calls["start_ns"].to_numpy()
        sync, alloc = (flags_of_texts(calls["name"], of) for of in (is_sync, is_alloc))
        return HostCalls(
            thread=calls["thread"].to_numpy(),
            correlation=calls["correlation"].to_numpy(dtype=np.int64, na_value=_UNKNOWN),
            start_ns=start,
            end_ns=start + calls["dur_ns"].to_numpy(),
            is_sync=sync,
            is_alloc=alloc & ~sync,
        )

    def spans_of(self, thread: int) -> Mapping[str, Spans]:
        """When a thread did each of HOST and OF_WHICH but `outside`, which is the rest."""
        if thread not in self._of_threads:
            self._of_threads[thread] = self._did(thread)
        return self._of_threads[thread]

    def _did(self, thread: int) -> dict[str, Spans]:
        calls, here = self.calls, self.calls.thread == thread
        did = {cause: events.on(thread).spans for cause, events in self._of_causes.items()}
        return {
            "sync": spans(calls.start_ns[here & calls.is_sync], calls.end_ns[here & calls.is_sync]),
            "alloc": spans(calls.start_ns[here & calls.is_alloc], calls.end_ns[here & calls.is_alloc]),
            "data": did["data"],
            "operator": union(self._ran.on(thread).spans, did["handing"]),
            "gc": did["gc"],
            "cpu_comm": union(did["communicating"], self._waits_for_gloo(thread)),
            "compile": union(*(events.on(thread).spans for events in self.compiling)),
        }

    @cached_property
    def _marks(self) -> HostEvents:
        return HostEvents.of(self.annotations)

    @cached_property
    def _ran(self) -> HostEvents:
        return HostEvents.of(self.operators)

    @cached_property
    def _of_causes(self) -> dict[str, HostEvents]:
        return {
            "data": self._marks.named(lambda name: name.startswith(markers.LOADING)),
            # Operators that hand a collective over are kept with the annotations.
            "handing": self._marks.named(lambda name: name.startswith((markers.C10D, markers.RECORD))),
            "gc": self._marks.named(lambda name: name == markers.PYTHON_GC),
            "communicating": self._marks.named(_is_communicating),
        }

    @cached_property
    def compiling(self) -> tuple[HostEvents, HostEvents]:
        """Annotations and operators in which a thread compiled; they may nest."""
        return self._marks.named(_is_compiling), self._ran.named(_is_compiling)

    def _waits_for_gloo(self, thread: int) -> Spans:
        """When a thread waited for a collective that it had handed to gloo.

        Gloo works on threads of its own, and no trace shows its caller waiting. But a caller that does nothing else
        before the operation ends has waited for it.
        """
        work, handed = self._of_gloo, self._marks.on(thread).named(lambda name: name.startswith(markers.C10D))
        work = work.where(work.thread != thread)
        if not len(work.codes) or not len(handed.codes):
            return spans(work.start_ns[:0], work.end_ns[:0])
        own_calls = self.calls.start_ns[self.calls.thread == thread]
        begins = np.sort(np.concatenate((self._marks.on(thread).start_ns, self._ran.on(thread).start_ns, own_calls)))
        order = np.argsort(work.start_ns)
        start, end = (np.append(times[order], _NEVER) for times in (work.start_ns, work.end_ns))
        since, returned = handed.start_ns, handed.end_ns
        first = np.searchsorted(start[:-1], since)
        until = end[first]
        stood_still = until <= np.append(begins, _NEVER - 1)[np.searchsorted(begins, returned)]
        return spans(since[stood_still], until[stood_still])

    @cached_property
    def _of_gloo(self) -> HostEvents:
        return self._marks.named(lambda name: name.startswith(markers.GLOO_MARK))

    @cached_property
    def operator_ranges(self) -> pd.DataFrame:
        """The operators, including those that hand over a collective, which are stored as annotations."""
        handing = self._begun_by(markers.C10D)
        return pd.concat([table[_RANGE] for table in (self.operators, handing) if len(table)] or [handing[_RANGE]])

    @cached_property
    def user_ranges(self) -> pd.DataFrame:
        """The annotations without steps and operators."""
        beginnings = (markers.PROFILER_STEP, markers.C10D)
        others = flags_of_texts(
            self.annotations["name"], lambda name: name.startswith(beginnings) or name in markers.DETAILS
        )
        return self.annotations.loc[~others, _RANGE]

    def operators_of(self, thread: int) -> Ranges:
        """The operators of a thread."""
        return Ranges.of(self.operator_ranges[bare(self.operator_ranges["thread"]) == thread])

    def ranges_of(self, thread: int) -> Ranges:
        """The operators and annotations of a thread, without batches and garbage, which are parts of idle time."""
        tables = [self.operator_ranges, self.user_ranges]
        ranges = Ranges.of(pd.concat([table[bare(table["thread"]) == thread] for table in tables]))
        return ranges.without(lambda name: name.startswith(markers.LOADING) or name == markers.PYTHON_GC)

    @cached_property
    def step_marks(self) -> list[Mark]:
        """The annotations of steps."""
        steps = self._begun_by(markers.PROFILER_STEP)
        return list(zip(*(steps[name].tolist() for name in ("name", "start_ns", "dur_ns")), strict=True))

    def _begun_by(self, beginning: str) -> pd.DataFrame:
        """The annotations whose names begin so."""
        return _named(self.annotations, lambda name: name.startswith(beginning))

    @cached_property
    def launches(self) -> Ints:
        """The position in `calls` of the first call of each correlation, sorted by correlation."""
        order = np.lexsort((self.calls.start_ns, self.calls.correlation))
        sorted_ids = self.calls.correlation[order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = sorted_ids[1:] != sorted_ids[:-1]
        launches: Ints = order[first & (sorted_ids != _UNKNOWN)]
        return launches

    def launch_of(self, correlation: Ints) -> Ints:
        """The position in `calls` of the call that launched each activity, by its correlation; -1 for none."""
        launches = self.launches
        if not len(launches):
            return np.full(len(correlation), -1)
        known = self.calls.correlation[launches]
        at = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
        return np.where(known[at] == correlation, launches[at], -1)

    def was_blocked(self, thread: Ints, times: Times) -> Flags:
        """Whether each `thread` was, at the time given for it, in a blocking call that had begun before; (times,)."""
        result = np.zeros(len(times), dtype=bool)
        for number in np.unique(thread):
            here, syncs = thread == number, np.flatnonzero((self.calls.thread == number) & self.calls.is_sync)
            syncs = syncs[np.argsort(self.calls.start_ns[syncs], kind="stable")]
            if len(syncs):
                until = np.maximum.accumulate(self.calls.end_ns[syncs])
                before = np.searchsorted(self.calls.start_ns[syncs], times[here], side="left") - 1
                result[here] = (before >= 0) & (until[before] > times[here])
        return result


class Gaps(NamedTuple):
    """Idle time of a device in one cycle, cut into pieces that each lie in one step; all of shape (pieces,).

    A piece is starved in [start_ns, begun_ns), launching in [begun_ns, done_ns), and queued in [done_ns, end_ns), if it
    `is_known` which call launched the activity that ends it; `thread` made that call. A piece `is_drained` if that
    thread was in a blocking call when the gap began. The rest are positions: of the step in `windows`, -1 outside of
    steps; of the `call` in the host's calls, -1 for none; and of the activity that ends the gap (`ender`).
    """

    start_ns: Times
    begun_ns: Times
    done_ns: Times
    end_ns: Times
    thread: Ints
    is_known: Flags
    is_drained: Flags
    window: Ints
    call: Ints
    ender: Ints


def gaps_of(activities: pd.DataFrame, host: Host | None, windows: list[Window]) -> tuple[int, Gaps]:
    """The time from the first to the last activity of a device in one cycle, in ns, and its idle pieces.

    `windows` are those of the steps of its process, which may begin before and end after what this device did; without
    a `host` no call is known.
    """
    starts = activities["start_ns"].to_numpy()
    ends = starts + activities["dur_ns"].to_numpy()
    first, last = int(starts.min()), int(ends.max())
    begin, end = (min(first, windows[0].start_ns), max(last, windows[-1].end_ns)) if windows else (first, last)
    idle = clip(complement(spans(starts, ends)), begin, end)
    call = np.full(len(starts), -1)
    if host is not None:
        call = host.launch_of(activities["correlation"].to_numpy(dtype=np.int64, na_value=_UNKNOWN))
    known = call >= 0
    issued = np.full(len(starts), _NEVER)
    if host is not None:
        issued[known] = host.calls.start_ns[call[known]]
    # Of several activities that begin at the end of a gap, the one issued first ends it; unknown calls come last.
    order = np.lexsort((issued, starts))
    place = np.searchsorted(starts[order], idle.ends)
    ender = order[np.minimum(place, len(order) - 1)]
    known, call = known[ender] & (place < len(order)), call[ender]  # nothing ends a gap behind the last activity
    begun, done, thread = idle.ends.copy(), idle.ends.copy(), np.full(len(ender), -1)
    drained = np.zeros(len(ender), dtype=bool)
    if host is not None:
        begun[known], done[known] = host.calls.start_ns[call[known]], host.calls.end_ns[call[known]]
        thread[known] = host.calls.thread[call[known]]
        drained[known] = host.was_blocked(thread[known], idle.starts[known])
    of_all = np.zeros(len(ender), dtype=np.int64)
    gaps = Gaps(idle.starts, begun, done, idle.ends, thread, known, drained, of_all, np.where(known, call, -1), ender)
    return last - first, _cut(gaps, windows)


def _cut(gaps: Gaps, windows: list[Window]) -> Gaps:
    """Cut the gaps where steps begin and end; `window` of each piece is its step."""
    bounds = np.array([*(each.start_ns for each in windows), *(each.end_ns for each in windows[-1:])], dtype=np.int64)
    inside = bounds[_is_within(bounds, gaps)]
    start = np.unique(np.concatenate((gaps.start_ns, inside)))
    of = np.searchsorted(gaps.start_ns, start, side="right") - 1
    end = np.minimum(gaps.end_ns[of], np.append(start[1:], _NEVER))
    begun = np.clip(gaps.begun_ns[of], start, end)
    window = np.searchsorted(bounds, start, side="right") - 1
    return Gaps(
        start_ns=start,
        begun_ns=begun,
        done_ns=np.clip(gaps.done_ns[of], begun, end),
        end_ns=end,
        thread=gaps.thread[of],
        is_known=gaps.is_known[of],
        is_drained=gaps.is_drained[of],
        window=np.where(window < len(windows), window, -1),
        call=gaps.call[of],
        ender=gaps.ender[of],
    )


def _is_within(times: Times, gaps: Gaps) -> Flags:
    """Whether each time lies within a gap."""
    if not len(gaps.start_ns):
        return np.zeros(len(times), dtype=bool)
    of = np.maximum(np.searchsorted(gaps.start_ns, times, side="right") - 1, 0)
    within: Flags = (gaps.start_ns[of] < times) & (times < gaps.end_ns[of])
    return within


def by_cause(gaps: Gaps, host: Host) -> dict[str, Times]:
    """Time of each idle piece by cause, in ns; `drained` is the starved time of gaps after a sync."""
    start, begun = gaps.start_ns, gaps.begun_ns
    known = gaps.is_known.astype(np.int64)
    starved = (begun - start) * known
    parts = {
        "idle": gaps.end_ns - start,
        "starved": starved,
        "launching": (gaps.done_ns - begun) * known,
        "queued": (gaps.end_ns - gaps.done_ns) * known,
        "unknown": (gaps.end_ns - start) * (1 - known),
        "drained": starved * gaps.is_drained,
        **{cause: np.zeros(len(start), dtype=np.int64) for cause in (*HOST, *OF_WHICH, "python")},
    }
    for thread in np.unique(gaps.thread[starved > 0]).tolist():
        here = (gaps.thread == thread) & (starved > 0)
        did = host.spans_of(thread)
        beside = _first_of(did, [*HOST[:3], *OF_WHICH, "operator"], start[here], begun[here])
        counted = _first_of(did, HOST[:-1], start[here], begun[here])
        for cause, times in {**beside, **counted}.items():
            parts[cause][here] = times
        parts["outside"][here] = starved[here] - sum(counted.values())
        parts["python"][here] = starved[here] - sum(beside.values())
    return parts


def _first_of(did: Mapping[str, Spans], causes: Sequence[str], starts: Times, ends: Times) -> dict[str, Times]:
    """How long each interval has each cause, in ns, by cause; where several hold at once, the first one counts."""
    result, counted = {}, did[causes[0]]
    before = np.zeros(len(starts), dtype=np.int64)
    for cause in causes:
        counted = union(counted, did[cause])
        within = covered(counted, starts, ends)
        result[cause], before = within - before, within
    return result


class IdleParts(NamedTuple):
    """The parts of idle time in ns, each of shape (pieces,); which parts are not known (`absent`), and why (`note`)."""

    known: dict[str, Times]
    absent: tuple[str, ...]
    note: str | None


def idle_parts(gaps: Gaps, host: Host | None, why_not: str | None) -> IdleParts:
    """Divide each piece of idle time into parts; `why_not` is the reason if there is no host."""
    if host is None:
        absent = (*QUEUE, *HOST, *OF_WHICH, "python", "drained")
        return IdleParts({"idle": gaps.end_ns - gaps.start_ns}, absent, why_not)
    parts = by_cause(gaps, host)
    if not len(host.calls.thread):
        return IdleParts(parts, (), NO_CALLS)
    if not len(host.operators):
        return IdleParts(parts, (*HOST[2:], *OF_WHICH, "python"), NO_OPERATORS)
    return IdleParts(parts, () if host.has_gc else ("gc",), None)


class IdleRows(NamedTuple):
    """The rows of a device in one cycle: one for its whole window, and one per step."""

    whole: Row
    steps: list[Row]


def _idle_of(device: DeviceGaps) -> IdleRows:
    first, window_ns = int(device.activities["start_ns"].min()), device.window_ns
    gaps, windows = device.gaps, device.windows
    parts, absent, note = idle_parts(gaps, device.host, device.why_not)
    missing = {f"{part}_ns": None for part in absent} | {"note": note}
    own = (gaps.start_ns >= first) & (gaps.end_ns <= first + window_ns)
    sums = {f"{part}_ns": int(values[own].sum()) for part, values in parts.items()}
    in_steps = {f"{part}_ns": _by_window(values, gaps.window, len(windows)) for part, values in parts.items()}
    return IdleRows(
        whole={"window_ns": window_ns, **sums, **missing},
        steps=[
            {
                "step": window.step,
                "window_ns": window.end_ns - window.start_ns,
                **{part: values[number] for part, values in in_steps.items()},
                **missing,
            }
            for number, window in enumerate(windows)
        ],
    )


def _by_window(values: Times, window: Ints, windows: int) -> list[int]:
    sums = np.zeros(windows + 1, dtype=np.int64)
    np.add.at(sums, window, values)  # -1, which is outside, is the last one
    totals: list[int] = sums[:windows].tolist()
    return totals


_T = TypeVar("_T")


@dataclass(frozen=True)
class HostTables:
    """What the CPUs of all ranks did, as tables; these are empty unless `is_read`."""

    calls: pd.DataFrame
    operators: pd.DataFrame
    annotations: pd.DataFrame
    is_read: bool
    has_gc: bool
    """As in `Host`."""
    modules: pd.DataFrame = field(default_factory=MODULES.empty)
    functions: pd.DataFrame = field(default_factory=FUNCTIONS.empty)
    _made: dict[tuple[Any, int, int], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _hosts: dict[tuple[int, int], Host] = field(default_factory=dict, init=False, repr=False, compare=False)

    def host(self, rank: int, cycle: int) -> Host:
        """The CPU activity of a rank in one cycle."""
        if (rank, cycle) not in self._hosts:
            self._hosts[rank, cycle] = self._host(rank, cycle)
        return self._hosts[rank, cycle]

    def _host(self, rank: int, cycle: int) -> Host:
        calls, operators, annotations, modules, functions = (
            part.get((rank, cycle), every[:0]) for part, every in zip(self._parts, self._tables, strict=True)
        )
        return Host(calls, operators, annotations, modules, functions, self.has_gc)

    def once(self, of: Callable[[Host], _T], rank: int, cycle: int) -> _T:
        """What a function gives of the CPU of a rank in one cycle, which many changes of a run ask for."""
        if (of, rank, cycle) not in self._made:
            self._made[of, rank, cycle] = of(self.host(rank, cycle))
        made: _T = self._made[of, rank, cycle]
        return made

    def host_of(self, rank: int, device: str, cycle: int) -> tuple[Host | None, str | None]:
        """The host that launched a device's work, or None with the reason."""
        if device == "cpu":
            return None, ON_CPU
        return (self.host(rank, cycle), None) if self.is_read else (None, NOT_READ)

    @cached_property
    def _parts(self) -> list[dict[tuple[int, ...], pd.DataFrame]]:
        return [dict(grouped(table, ["rank", "cycle"])) for table in self._tables]

    @property
    def _tables(self) -> tuple[pd.DataFrame, ...]:
        return self.calls, self.operators, self.annotations, self.modules, self.functions


class DeviceGaps(NamedTuple):
    """What a device did in one cycle, and its idle pieces: `gaps_of` its activities, its host and its steps.

    `why_not` is the reason if there is no host; `cpu` is what CPUs of its process did in any case.
    """

    rank: int
    device: str
    cycle: int
    activities: pd.DataFrame
    windows: list[Window]
    cpu: Host
    host: Host | None
    why_not: str | None
    window_ns: int
    gaps: Gaps


def gaps_of_devices(activities: pd.DataFrame, tables: HostTables) -> list[DeviceGaps]:
    """The idle pieces of every device in each cycle."""
    found, of_process = [], windows_by_process(activities)
    for (rank, device, cycle), rows in grouped(activities, ["rank", "device", "cycle"], NEEDED):
        windows, (host, why_not) = of_process[rank, cycle], tables.host_of(rank, device, cycle)
        cpu, idle = tables.host(rank, cycle), gaps_of(rows, host, windows)
        found.append(DeviceGaps(rank, device, cycle, rows, windows, cpu, host, why_not, *idle))
    return found


def rows_of_idle(devices: Sequence[DeviceGaps]) -> tuple[list[Row], list[Row]]:
    """Rows of `idle` over all that was recorded, and of `idle_steps`: idle time of every device by cause."""
    cycles: dict[tuple[int, str], list[Row]] = {}
    steps: list[Row] = []
    for each in devices:
        found = _idle_of(each)
        cycles.setdefault((each.rank, each.device), []).append(found.whole)
        steps += [{"rank": each.rank, "device": each.device, **step} for step in found.steps]
    whole = [{"rank": rank, "device": device, **_summed(rows)} for (rank, device), rows in sorted(cycles.items())]
    return whole, steps


def _summed(cycles: list[Row]) -> Row:
    """Sums over cycles; NA if the value of any cycle is NA."""
    notes = dict.fromkeys(cycle["note"] for cycle in cycles if cycle["note"])
    result: Row = {"note": "; ".join(notes) or None}
    for part in cycles[0]:
        if part != "note":
            values = [cycle.get(part) for cycle in cycles]
            result[part] = None if None in values else sum(values)
    return result


def _is_communicating(name: str) -> bool:
    """Whether a range of this name is communication on the CPU."""
    return name.startswith((markers.GLOO_MARK, *markers.BARRIERS, markers.C10D_FRAME))


def _is_compiling(name: str) -> bool:
    return markers.COMPILING.search(name) is not None


def _named(events: pd.DataFrame, is_wanted: Callable[[str], bool]) -> pd.DataFrame:
    """The events whose names are wanted."""
    return events[flags_of_texts(events["name"], is_wanted)]
