"""Runtime calls that block, allocate, copy to pageable memory, or take unusually long, and other events of a CPU.

A call costs a device its starved time (see `idle`) during the call: nothing was queued, and the thread that was to
launch the next activity was in the call. Steps count from their beginning, where a device may wait for its first
activity of all; without steps, time counts from that on. If it takes unusually long, the launch itself costs that, too.
An operator that takes unusually long by itself, or compiling, costs what is starved during its own time.

Source: CUDA, API synchronization behavior: a transfer from the device to pageable memory returns once it is complete.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ...core import markers
from ...core.arrays import Ints
from ...core.intervals import Spans, Times, covered, intersect, spans, subtract, total, union
from ...core.kinds import MEMORY
from ...core.schema import grouped
from ...core.steps import NO_STEP, steps_at
from .idle import DeviceGaps, Gaps, Host, HostTables
from .launches import names_around
from .unusual import Event, UnusualEvents, over_usual, unusual_events

_KINDS = np.array(["sync", "alloc", "copy", "long"], dtype=object)
_LONG = 3
_IDLE_FROM = 0.5  # of a long one: a launch into a full queue takes long as well, but waits for a device that works
_KEYS = ["kind", "name", "operator", "annotation"]
_LOST = ("lost_ns", "lost_between_ns")
"""What calls cost: in steps, too, from their beginning on; and only between what the device ran."""


def blocking_calls(gaps: Sequence[DeviceGaps], tables: HostTables) -> pd.DataFrame:
    """One row per such call, with the columns of `_KEYS` and its cost.

    `lost_ns` is what it costs in the windows of steps and between what the device ran, `lost_between_ns` only the
    latter.
    """
    devices: dict[tuple[int, int], list[DeviceGaps]] = {}
    for each in gaps:
        if each.device != "cpu":
            devices.setdefault((each.rank, each.cycle), []).append(each)
    keys = grouped(tables.calls[["rank", "cycle"]].drop_duplicates(), ["rank", "cycle"])
    parts = [
        _of_host(
            rank,
            tables.host(rank, cycle),
            devices.get((rank, cycle), []),
            tables.once(unusual_events, rank, cycle),
        )
        for (rank, cycle), _ in keys
    ]
    return pd.concat(parts, ignore_index=True) if parts else _of_none()


def _of_none() -> pd.DataFrame:
    numbers = {"rank": "int64", "step": "Int64", "dur_ns": "int64", **dict.fromkeys(_LOST, "int64")}
    return pd.DataFrame({name: pd.Series(dtype=numbers.get(name, "string")) for name in (*_KEYS, *numbers)})


def _of_host(rank: int, host: Host, devices: list[DeviceGaps], events: UnusualEvents) -> pd.DataFrame:
    both = [[each.gaps for each in devices], [_between(each.activities, each.gaps) for each in devices]]
    unusual = _of_events("long", events.long, both), _of_events("compile", events.compiling, both)
    found = pd.concat([_calls_of(host, [each.activities for each in devices], both), *unusual], ignore_index=True)
    start = found["start_ns"].to_numpy()
    step = steps_at(start, host.step_marks)
    found = found.assign(
        rank=rank,
        annotation=names_around(host.user_ranges, found["thread"].to_numpy(), start),
        step=pd.Series(step, dtype="Int64").mask(step == NO_STEP),
    )
    kept = (found["kind"] != "long") | (found["lost_ns"] >= _IDLE_FROM * found["dur_ns"])
    return found.loc[kept, list(_of_none())]


def _between(activities: pd.DataFrame, gaps: Gaps) -> Gaps:
    """The gaps from the first to the last activity of a device."""
    start = activities["start_ns"].to_numpy()
    first, last = start.min(), (start + activities["dur_ns"].to_numpy()).max()
    own = (gaps.start_ns >= first) & (gaps.end_ns <= last)
    return gaps if own.all() else Gaps(*(each[own] for each in gaps))


def _calls_of(host: Host, devices: list[pd.DataFrame], both: list[list[Gaps]]) -> pd.DataFrame:
    calls, kinds = host.calls, kinds_of_calls(host, devices)
    names, took = host.runtime_calls["name"].to_numpy(dtype=object), calls.end_ns - calls.start_ns
    kinds = np.where((kinds < 0) & (over_usual(*pd.factorize(names), took) > 0), _LONG, kinds)
    chosen = np.flatnonzero(kinds >= 0)
    chosen = chosen[np.argsort(calls.start_ns[chosen], kind="stable")]
    thread, start, kind = calls.thread[chosen], calls.start_ns[chosen], kinds[chosen]
    nothing = np.zeros(len(chosen), dtype=np.int64)
    lost = [
        sum((_lost(of_device, thread, start, calls.end_ns[chosen], kind) for of_device in gaps), nothing)
        for gaps in both
    ]
    return pd.DataFrame({
        "kind": pd.Series(_KINDS[kind], dtype="string"),
        "name": host.runtime_calls["name"].astype("string").array.take(chosen),
        "operator": names_around(host.operator_ranges, thread, start),
        "thread": thread,
        "start_ns": start,
        "dur_ns": took[chosen],
        **dict(zip(_LOST, lost, strict=True)),
    })  # fmt: skip


def _of_events(kind: str, found: list[Event], both: list[list[Gaps]]) -> pd.DataFrame:
    """Operators or ranges of a kind; `operator` is the one around each, `dur_ns` its own time."""
    return pd.DataFrame({
        "kind": pd.Series([kind] * len(found), dtype="string"),
        "name": pd.Series([each.name for each in found], dtype="string"),
        "operator": pd.Series([each.within for each in found], dtype="string"),
        "thread": np.array([each.thread for each in found], dtype=np.int64),
        "start_ns": np.array([each.start_ns for each in found], dtype=np.int64),
        "dur_ns": np.array([total(each.own) for each in found], dtype=np.int64),
        **{
            lost: np.array([_lost_in(each, gaps) for each in found], dtype=np.int64)
            for lost, gaps in zip(_LOST, both, strict=True)
        },
    })  # fmt: skip


def kinds_of_calls(host: Host, devices: list[pd.DataFrame]) -> Ints:
    """Kind of each runtime call, 0 sync, 1 alloc, 2 copy, and -1 for all others; `devices` have their activities."""
    calls = host.calls
    copying = np.zeros(len(calls.thread), dtype=bool)
    for activities in devices:
        launch = host.launch_of(_copies_to_pageable(activities))
        copying[launch[launch >= 0]] = True
    return np.select([calls.is_sync, calls.is_alloc, copying], [0, 1, 2], default=-1)


def _copies_to_pageable(activities: pd.DataFrame) -> Ints:
    """Correlations of copies to pageable memory."""
    copies = activities[(activities["kind"] == MEMORY) & activities["correlation"].notna()]
    chosen = copies["name"].astype("string").str.endswith(markers.TO_PAGEABLE).fillna(False)
    return copies["correlation"][chosen].to_numpy(dtype=np.int64)


def _lost_in(event: Event, gaps: list[Gaps]) -> int:
    """Starved time of all devices during the own time of an operator or a range, in ns."""
    return sum(total(intersect(event.own, _starved(of_device, event.thread))) for of_device in gaps)


def _starved(gaps: Gaps, thread: int) -> Spans:
    """When a device had nothing to do, and this thread was to launch the next activity."""
    here = gaps.is_known & (gaps.thread == thread)
    return spans(gaps.start_ns[here], gaps.begun_ns[here])


def _lost(gaps: Gaps, thread: Ints, start: Times, end: Times, kind: Ints) -> Times:
    """Starved time of the device during each call, if it is long launching time too, in ns, each ns counted once."""
    lost = np.zeros(len(start), dtype=np.int64)
    for number in np.unique(thread).tolist():
        starved, of_thread = _starved(gaps, number), gaps.is_known & (gaps.thread == number)
        for which in range(len(_KINDS)):
            if which == _LONG:
                starved = union(starved, spans(gaps.begun_ns[of_thread], gaps.done_ns[of_thread]))
            here = (kind == which) & (thread == number)
            # What two calls share, one within the other, belongs to the one that began first.
            reach = np.maximum.accumulate(end[here])
            begin = start[here].copy()
            begin[1:] = np.maximum(begin[1:], reach[:-1])
            lost[here] = covered(starved, begin, np.maximum(end[here], begin))
            starved = subtract(starved, spans(start[here], end[here]))
    return lost
