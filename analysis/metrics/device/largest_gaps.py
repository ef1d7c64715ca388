"""Before which activity devices idle most in a typical step, and idle time as the trace begins that may be work."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...core.arrays import Flags
from ...core.intervals import Spans, covered, intersect, spans, subtract, total, union
from ...core.markers import PROFILER_STEP
from ...core.schema import bare, records
from ..compute.flops import counted_once
from ..functions import first_step_ns, holding_most, in_functions
from .holders import Stretches, holders
from .idle import DeviceGaps, Gaps, Host

_MOST = 0.5  # of idle time: from there a kernel is named
_FEW = 0.1  # of all activities: what most of them are, most gaps come before in any case
_NEARLY_ALL = 0.9
_LARGE = 0.3  # of idle time: from there an operator or annotation is named


class LargestGaps(NamedTuple):
    """Where idle time lies, mean over windows of devices, in ns.

    Most idle time, `before_ns`, comes before the kernel, copy or fill `before`; None if most comes before no single
    one, or if that one is common anyway. For `unseen_ns` at the beginning of the trace, a CPU waited in the call
    `waiting_in` for work that was queued, but the trace shows no such work.
    """

    before: str | None
    before_ns: float
    unseen_ns: float
    waiting_in: str | None


NO_GAPS = LargestGaps(None, 0.0, 0.0, None)


def largest_gaps(devices: Sequence[DeviceGaps], steps: Collection[int], number: int) -> LargestGaps:
    """The largest gaps in these steps, or in everything without steps; `number` is that of windows of devices."""
    by_name: Counter[str] = Counter()
    unseen, waiting_in = 0, None
    for device, counted in _counted(devices, steps):
        rows, host, gaps = device.activities, device.host, device.gaps
        ended = rows.iloc[gaps.ender[counted]].assign(idle_ns=(gaps.end_ns - gaps.start_ns)[counted])
        by_name.update(
            {str(name): int(ns) for name, ns in ended.groupby("name", observed=True)["idle_ns"].sum().items()}
        )
        call = _unseen(gaps, rows, host) if host is not None and len(gaps.start_ns) and counted[0] else None
        if host is not None and call is not None:
            unseen += int(gaps.end_ns[0] - gaps.start_ns[0])
            waiting_in = str(host.runtime_calls["name"].iloc[call])
    (name, most), *_ = by_name.most_common(1) or [("", 0)]
    alike = sum(int((each.activities["name"] == name).sum()) for each in devices)
    few = alike <= _FEW * sum(len(each.activities) for each in devices)
    named = bool(most) and few and most >= _MOST * by_name.total()
    return LargestGaps(name if named else None, most / number if named else 0.0, unseen / number, waiting_in)


def idle_in_ranges(devices: Sequence[DeviceGaps], steps: Collection[int], number: int) -> dict[str, float]:
    """Name of a range that is in no other -> idle time before work that its thread launched later, in ns a window.

    In these steps, or in everything without steps; `number` is that of windows of devices.
    """
    idle_ns: Counter[str] = Counter()
    for device, counted in _counted(devices, steps):
        host, gaps = device.host, device.gaps
        if host is None:
            continue
        starved = counted & gaps.is_known & (gaps.begun_ns > gaps.start_ns)
        for thread in np.unique(gaps.thread[starved]):
            here = starved & (gaps.thread == thread)
            ranges = host.operator_ranges[bare(host.operator_ranges["thread"]) == thread]
            starts = ranges["start_ns"].to_numpy()
            ends = starts + ranges["dur_ns"].to_numpy()
            outermost = counted_once(starts, ends, np.ones(len(starts), dtype=bool))
            within = covered(spans(gaps.start_ns[here], gaps.begun_ns[here]), starts[outermost], ends[outermost])
            by_name = pd.Series(within).groupby(ranges["name"].to_numpy()[outermost]).sum()
            idle_ns.update({str(name): int(ns) for name, ns in by_name.items()})
    return {name: ns / number for name, ns in idle_ns.most_common() if ns}


class HeldBy(NamedTuple):
    """What CPUs were in during most of a part of idle time, and how long, mean over windows of devices.

    A function of the user, or an operator or annotation; `within` is the outermost one around it, if that is said.
    """

    name: str
    ns: float
    within: str | None = None


HELD_RANGE = "range_ns"
"""The key of an operator or annotation, among holders by parts of idle time: it may hold several."""


def holders_in_idle(devices: Sequence[DeviceGaps], steps: Collection[int], number: int) -> dict[str, HeldBy]:
    """What CPUs were in for most of a part of idle time: functions of the user by part, and the range of `HELD_RANGE`.

    In these steps, or in everything without steps; `number` is that of windows of devices.
    """
    found, held = functions_in_idle(devices, steps, number), _range_in_idle(devices, steps, number)
    return found if held is None else {**found, HELD_RANGE: held}


def _range_in_idle(devices: Sequence[DeviceGaps], steps: Collection[int], number: int) -> HeldBy | None:
    """The operator or annotation in which CPUs were for most idle time before launches; None if that is little."""
    idle = list(held_idle(devices, steps))
    hidden, idle_ns = names_that_say_nothing(idle), sum(each.idle_ns for each in idle)
    named = [
        each._replace(ranges=each.ranges.without(hidden.__contains__)) for device in idle for each in device.stretches
    ]
    for most in records(holders(named)) if named else ():
        if most["ns"] >= _LARGE * idle_ns:
            return HeldBy(most["name"], most["ns"] / number)
    return None


class HeldIdle(NamedTuple):
    """When CPUs kept a device idle before what they launched, by thread; and its idle time from its first to its last.

    Without a GPU it is when threads computed nothing.
    """

    stretches: list[Stretches]
    idle_ns: int
    begin_ns: int
    end_ns: int


def held_idle(devices: Sequence[DeviceGaps], steps: Collection[int]) -> Iterator[HeldIdle]:
    """Yield the idle time of each device that has any in these steps, or in everything without steps."""
    for device, counted in _counted(devices, steps):
        if not counted.any():
            continue
        host, gaps = device.host, device.gaps
        thread = bare(device.activities["stream"])[gaps.ender] if host is None else gaps.thread
        until = gaps.end_ns if host is None else gaps.done_ns
        held = counted & (until > gaps.start_ns) & (gaps.is_known | (host is None))
        stretches = []
        for each in np.unique(thread[held]).tolist():
            here = held & (thread == each)
            stretches.append(Stretches.alike(device.cpu.ranges_of(each), gaps.start_ns[here], until[here]))
        start, end = gaps.start_ns[counted], gaps.end_ns[counted]
        yield HeldIdle(stretches, int((end - start).sum()), int(start.min()), int(end.max()))


def names_that_say_nothing(devices: Collection[HeldIdle]) -> set[str]:
    """Names of ranges around nearly all that CPUs did between the first and the last of this idle time."""
    around: Counter[str] = Counter()
    for device in devices:
        for each in device.stretches:
            whole = Stretches.alike(each.ranges, np.array([device.begin_ns]), np.array([device.end_ns])).within()
            around.update({str(name): int(ns) for name, ns in whole.groupby("name")["ns"].sum().items()})
    whole_ns = sum(device.end_ns - device.begin_ns for device in devices)
    return {name for name, ns in around.items() if ns >= _NEARLY_ALL * whole_ns}


class IdlePlaces(NamedTuple):
    """Where idle time lies: before which work, in which NVTX ranges, by name in ns, and in what CPUs were, by part."""

    gaps: LargestGaps
    ranges: Mapping[str, float]
    holders: Mapping[str, HeldBy]

    def times(self, factor: float) -> IdlePlaces:
        """The same with so much idle time."""
        gaps = self.gaps
        return IdlePlaces(
            gaps._replace(before_ns=factor * gaps.before_ns, unseen_ns=factor * gaps.unseen_ns),
            {name: factor * ns for name, ns in self.ranges.items()},
            {part: each._replace(ns=factor * each.ns) for part, each in self.holders.items()},
        )


NO_PLACES = IdlePlaces(NO_GAPS, {}, {})


def functions_in_idle(devices: Sequence[DeviceGaps], steps: Collection[int], number: int) -> dict[str, HeldBy]:
    """The innermost function that holds most of each part of idle time that is left to Python, if one does.

    The parts are `outside_ns` and `data_ns` of the thread that launched the work behind, and `idle_ns` of the thread
    that computed next on a CPU.
    """
    took: dict[str, Counter[str]] = defaultdict(Counter)
    whole: Counter[str] = Counter()
    if not any(len(each.cpu.functions) for each in devices):
        return {}
    for device, counted in _counted(devices, steps):
        cpu = device.cpu
        first_ns = first_step_ns(cpu.annotations[cpu.annotations["name"].str.startswith(PROFILER_STEP).fillna(False)])
        threads = bare(cpu.functions["thread"])
        parts = _parts_on_cpu(device, counted) if device.host is None else _left_to_python(device, counted)
        for part, thread, times in parts:
            whole[part] += total(times)
            took[part].update(in_functions(cpu.functions[threads == thread], times, first_ns))
    most = {part: holding_most(took[part], ns) for part, ns in whole.items()}
    return {part: HeldBy(name, took[part][name] / number) for part, name in most.items() if name is not None}


def _left_to_python(device: DeviceGaps, counted: Flags) -> Iterator[tuple[str, int, Spans]]:
    """Yield starved time by thread, as `by_cause` divides it: outside of operators, and waiting for a batch."""
    gaps = device.gaps
    starved = counted & gaps.is_known & (gaps.begun_ns > gaps.start_ns)
    for thread in np.unique(gaps.thread[starved]).tolist():
        here, did = starved & (gaps.thread == thread), device.cpu.spans_of(thread)
        times = subtract(spans(gaps.start_ns[here], gaps.begun_ns[here]), union(did["sync"], did["alloc"]))
        yield "data_ns", thread, intersect(times, did["data"])
        yield "outside_ns", thread, subtract(times, union(did["data"], did["operator"]))


def _parts_on_cpu(device: DeviceGaps, counted: Flags) -> Iterator[tuple[str, int, Spans]]:
    """Yield the idle time of a CPU by the thread whose operator ends it."""
    gaps, thread = device.gaps, bare(device.activities["stream"])[device.gaps.ender]
    for number in np.unique(thread[counted]).tolist():
        here = counted & (thread == number)
        yield "idle_ns", number, spans(gaps.start_ns[here], gaps.end_ns[here])


def _counted(devices: Sequence[DeviceGaps], steps: Collection[int]) -> Iterator[tuple[DeviceGaps, Flags]]:
    """Yield each device, and which of its gaps lie in these steps: without steps, all."""
    for each in devices:
        numbers = [number for number, window in enumerate(each.windows) if window.step in steps]
        yield each, np.isin(each.gaps.window, numbers) if steps else np.ones(len(each.gaps.start_ns), dtype=bool)


def _unseen(gaps: Gaps, activities: pd.DataFrame, host: Host) -> int | None:
    """The call that waited for untraced work during nearly all of a device's first gap; None if none did.

    Next to nothing ran before that gap, and what ended it was queued: so the call waited for work that is not there.
    """
    begin, end = int(gaps.start_ns[0]), int(gaps.end_ns[0])
    least = _NEARLY_ALL * (end - begin)
    ran_before = begin - int(activities["start_ns"].min())
    if end - int(gaps.done_ns[0]) < least or ran_before > (1 - _NEARLY_ALL) * (end - begin):
        return None
    calls = host.calls
    within = np.minimum(calls.end_ns, end) - np.maximum(calls.start_ns, begin)
    waits = np.flatnonzero(calls.is_sync & (calls.thread == gaps.thread[0]) & (within >= least))
    return int(waits[0]) if len(waits) else None
