"""Every gap of a device: how it divides by cause, and what the host did.

The parts are those of `idle`, and add up to it. The other columns describe one moment of each gap: the one at which its
largest part is under way. See docs/metrics/idle.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from ...core import markers
from ...core.arrays import Flags, Ints
from ...core.intervals import Spans, Times, complement, union
from .holders import Stretches, holders
from .idle import HOST, QUEUE, DeviceGaps, Gaps, Host, idle_parts
from .launches import names_around

_CAUSES = (*HOST, *QUEUE[1:])
"""What may be the largest part; starved time is divided already."""
_OPERATOR = HOST.index("operator")
_NONE = -1


def rows_of_gaps(devices: Sequence[DeviceGaps]) -> Iterator[pd.DataFrame]:
    """Yield rows of the table `gaps`: those of each device in each cycle that has any."""
    for each in devices:
        if len(each.gaps.start_ns):
            yield _rows(each).assign(rank=each.rank, device=each.device)


def _rows(device: DeviceGaps) -> pd.DataFrame:
    activities, idle, host = device.activities, device.gaps, device.host
    count = len(idle.start_ns)
    parts = idle_parts(idle, host, device.why_not)
    known = {part: values for part, values in parts.known.items() if part not in parts.absent}
    cause = _largest(known, count)
    steps = np.array([*(window.step for window in device.windows), _NONE], dtype=np.int64)[idle.window]
    names, last = activities["name"].astype("string").array, int(activities["start_ns"].max())
    return pd.DataFrame({
        "step": pd.Series(steps, dtype="Int64").mask(steps == _NONE),
        "start_ns": idle.start_ns,
        **{f"{part}_ns": pd.Series([pd.NA] * count, dtype="Int64") for part in parts.absent},
        **{f"{part}_ns": values for part, values in known.items()},
        "cause": pd.array(_CAUSES, dtype="string").take(cause, allow_fill=True),
        **_host_side(idle, host, cause),
        "before": names.take(_ending_at(activities, idle.start_ns), allow_fill=True),
        "after": names.take(np.where(idle.end_ns <= last, idle.ender, _NONE), allow_fill=True),
        "note": pd.Series([parts.note] * count, dtype="string"),
    })  # fmt: skip


def _largest(known: dict[str, Times], count: int) -> Ints:
    """The position in `_CAUSES` of the largest part of each gap, -1 if it is not known."""
    if "starved" not in known:
        return np.full(count, _NONE)
    nothing = np.zeros(count, dtype=np.int64)
    sizes = np.stack([known.get(cause, nothing) for cause in _CAUSES])
    largest = sizes.argmax(axis=0)
    # Without operators a part of the starved time is not divided, and may be larger than all others.
    undivided = known["starved"] - sizes[: len(HOST)].sum(axis=0)
    return np.where(undivided > sizes.max(axis=0), _NONE, largest)


def _ending_at(activities: pd.DataFrame, times: Times) -> Ints:
    """An activity that ends at each of these times, or the last one before it, where a step begins; -1 for none."""
    ends = (activities["start_ns"] + activities["dur_ns"]).to_numpy()
    order = np.argsort(ends, kind="stable")
    place = np.searchsorted(ends[order], times, side="right") - 1
    at: Ints = np.where(place >= 0, order[place], _NONE)
    return at


def _host_side(idle: Gaps, host: Host | None, cause: Ints) -> dict[str, object]:
    """Thread, call, operator, annotation and module of each gap."""
    count = len(idle.start_ns)
    texts = {name: pd.array([pd.NA] * count, dtype="string") for name in ("call", "operator", "annotation", "module")}
    if host is None:
        return {"thread": pd.array([pd.NA] * count, dtype="Int64"), **texts}
    moment = np.zeros(count, dtype=np.int64)
    moment[idle.is_known] = host.calls.start_ns[idle.call[idle.is_known]]
    call = np.full(count, _NONE)
    operator = np.full(count, None, dtype=object)
    is_starved = idle.is_known & (idle.begun_ns > idle.start_ns)
    for thread in np.unique(idle.thread[is_starved]).tolist():
        here = np.flatnonzero(is_starved & (idle.thread == thread))
        begin, until = idle.start_ns[here], idle.begun_ns[here]
        blocking = np.flatnonzero((host.calls.thread == thread) & (host.calls.is_sync | host.calls.is_alloc))
        blocking = blocking[np.argsort(host.calls.start_ns[blocking], kind="stable")]
        longest = _longest(host.calls.start_ns[blocking], host.calls.end_ns[blocking], begin, until)
        call[here[longest >= 0]] = blocking[longest[longest >= 0]]
        rows = here[cause[here] == _OPERATOR]
        in_operators = Stretches.alike(host.operators_of(thread), idle.start_ns[rows], idle.begun_ns[rows])
        held = holders([in_operators._replace(group=rows)])
        rows = held.index.to_numpy(dtype=np.int64)
        operator[rows], moment[rows] = held["name"].to_numpy(), held["start_ns"].to_numpy()
        for number, (starts, ends) in _doing(host, thread):
            rows = here[cause[here] == number]
            stretch = _longest(starts, ends, idle.start_ns[rows], idle.begun_ns[rows])
            rows, stretch = rows[stretch >= 0], stretch[stretch >= 0]
            moment[rows] = np.maximum(starts[stretch], idle.start_ns[rows])
    threads = pd.Series(idle.thread, dtype="Int64").mask(~idle.is_known)
    names = host.runtime_calls["name"].astype("string").array
    around = {
        name: names_around(events, np.where(idle.is_known, idle.thread, _NONE), moment).mask(~idle.is_known)
        for name, events in (
            ("operator", host.operator_ranges), ("annotation", host.user_ranges), ("module", host.modules)
        )
    }  # fmt: skip
    around["operator"] = pd.Series(operator, dtype="string").fillna(around["operator"])
    around["module"] = around["module"].str.removeprefix(markers.MODULE)
    return {"thread": threads, "call": names.take(call, allow_fill=True), **around}


def _doing(host: Host, thread: int) -> Iterator[tuple[int, Spans]]:
    """Yield when a thread did each activity of HOST other than operators, by its place there."""
    did = host.spans_of(thread)
    for number, name in enumerate(HOST[:-1]):
        if number != _OPERATOR:
            yield number, did[name]
    yield len(HOST) - 1, complement(union(*(did[name] for name in HOST[:-1])))


def _longest(starts: Times, ends: Times, begin: Times, until: Times) -> Ints:
    """The position of the interval that covers most of each [begin, until), -1 for none; intervals ascend by start."""
    longest = np.full(len(begin), _NONE)
    if not len(starts):
        return longest
    first = np.searchsorted(np.maximum.accumulate(ends), begin, side="right")
    count = np.maximum(np.searchsorted(starts, until, side="left") - first, 0)
    of = np.repeat(np.arange(len(begin)), count)
    which = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count) + first[of]
    covers = np.minimum(ends[which], until[of]) - np.maximum(starts[which], begin[of])
    order = np.lexsort((which, -covers, of))
    order = order[covers[order] > 0]
    is_first: Flags = np.diff(of[order], prepend=_NONE) != 0
    longest[of[order][is_first]] = which[order][is_first]
    return longest
