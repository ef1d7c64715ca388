"""Find events of a GPU that cannot all be true: held twice, at the same time on one stream, or before their launch.

A stream runs one kernel after another, but not to the nanosecond: with programmatic dependent launch (from Hopper on) a
kernel begins while the one before it ends, and still ends after it. Of 109,000 kernels of real traces, 494 did so, by
up to 4 us, and one by 12 us in an export of Nsight Systems; none ended before the one before it, and no three met.
Source: CUDA Programming Guide, "Programmatic Dependent Launch and Synchronization".
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...common.wording import counted
from ..core.escaping import encodable
from ..core.expressions import cut_name
from ..core.kinds import MEMORY
from .arrays import Int64s, doubles, integers, with_events
from .recording import RawTrace
from .values import MISSING

_ROUNDED_US = 2.0  # begin and duration, where a version writes whole us
_NEXT_US = 50.0  # that the next kernel may begin early
_CLOCKS_US = 1_000.0
_MUCH_FRAC = 0.01


class MetOnStreams(NamedTuple):
    """A note on kernels that ran while others of their stream did, if any did, and whether they did so for long.

    Beyond 1% of the time of all GPU events, what rests on the file is partial; below that, times may be off by that.
    """

    notes: tuple[str, ...]
    is_much: bool


def without_repeated(path: Path, raw: RawTrace) -> RawTrace:
    """The trace with each GPU event once, and a note on those that were there more often.

    Two events are the same if all of their values are, and they take time.
    """
    if not raw.header.has_starts:
        return raw
    ts, dur = (doubles(raw.activities[name]) for name in ("ts", "dur"))
    ordered = np.sort(ts)
    is_begin_shared = np.isin(ts, ordered[1:][np.diff(ordered) == 0])
    suspect = np.flatnonzero(is_begin_shared & (dur > 0))
    values = pd.DataFrame({name: integers(column)[suspect] for name, column in raw.activities.items()})
    repeated = suspect[values.duplicated().to_numpy()]
    if not len(repeated):
        return raw
    is_kept = np.ones(len(ts), dtype=bool)
    is_kept[repeated] = False
    events = "1 GPU event that repeats" if len(repeated) == 1 else f"{len(repeated):,} GPU events that repeat"
    note = f"{encodable(path.name)}: left out {events} another one, with the same name, stream, times and ids"
    once = with_events(raw, {"activities": is_kept})
    return msgspec.structs.replace(once, notes=[*raw.notes, note])


def met_on_streams(path: Path, raw: RawTrace) -> MetOnStreams:
    """Kernels that ran while others of their stream did."""
    name, stream = (integers(raw.activities[column]) for column in ("name", "stream"))
    met_us = _met_us(raw) if raw.header.has_starts else np.zeros(0)
    count = int(np.count_nonzero(met_us))
    if not count:
        return MetOnStreams((), is_much=False)
    worst = int(np.argmax(met_us))
    longest = f"{met_us[worst] / 1000:,.3f} ms ({cut_name(raw.names[name[worst]])}, stream {stream[worst]})"
    note = (
        f"{encodable(path.name)}: {counted(count, 'kernel')} began before {'its' if count == 1 else 'their'} stream "
        f"was free, by up to {longest}: a stream runs one kernel after another, so these times or streams are wrong"
    )
    ran_us = np.maximum(doubles(raw.activities["dur"]), 0.0).sum()
    return MetOnStreams((note,), is_much=bool(met_us.sum() > _MUCH_FRAC * ran_us))


def begun_before_launch(path: Path, raw: RawTrace) -> list[str]:
    """A note on GPU events that began before the call that launched them, if there are any.

    The clocks of a GPU and its host differ by up to 0.1 ms in real traces.
    """
    correlation, launched = (integers(columns["correlation"]) for columns in (raw.activities, raw.launches))
    if not raw.header.has_starts or not len(correlation) or not len(launched):
        return []
    begin, called = doubles(raw.activities["ts"]), doubles(raw.launches["ts"])
    order = np.lexsort((called, launched))  # of calls with one id, the first
    ids = launched[order]
    place = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
    is_launched = (ids[place] == correlation) & (correlation != MISSING)
    early_us = np.where(is_launched, called[order][place] - begin, 0.0)
    count = int(np.count_nonzero(early_us > _CLOCKS_US))
    if not count:
        return []
    them, by_ms = "it" if count == 1 else "them", float(early_us.max()) / 1000
    note = (
        f"{encodable(path.name)}: {counted(count, 'GPU event')} began before the call that launched {them}, by up to "
        f"{by_ms:,.3f} ms: the clocks of the GPU and its host disagree, or times are wrong"
    )
    return [note]


def _met_us(raw: RawTrace) -> NDArray[np.float64]:
    """For how long each activity ran beside a kernel of its stream that was before it, in us; 0 where that may be."""
    columns = raw.activities
    ts, dur = (doubles(columns[name]) for name in ("ts", "dur"))
    device, stream, name, launch = (integers(columns[sort]) for sort in ("device", "stream", "name", "correlation"))
    kernels = np.flatnonzero((np.array([kind != MEMORY for kind in raw.kinds], dtype=bool)[name]) & (dur > 0))
    kernels = kernels[np.lexsort((ts[kernels], stream[kernels], device[kernels]))]
    start, end = ts[kernels], (ts + dur)[kernels]
    is_same = (np.diff(stream[kernels]) == 0) & (np.diff(device[kernels]) == 0)
    met_us = np.zeros(len(ts))
    suspect = np.flatnonzero(is_same & (end[:-1] > start[1:] + _ROUNDED_US))
    firsts = np.concatenate(([0], np.flatnonzero(~is_same) + 1, [len(kernels)]))
    for number in np.unique(np.searchsorted(firsts, suspect, side="right")):
        own = slice(firsts[number - 1], firsts[number])
        met_us[kernels[own]] = _met_in_order_us(start[own], end[own], launch[kernels[own]])
    return met_us


def _met_in_order_us(start: NDArray[np.float64], end: NDArray[np.float64], launch: Int64s) -> NDArray[np.float64]:
    """The same for the kernels of one stream, in order of their begins."""
    number = np.arange(len(end))
    last = np.maximum.accumulate(np.where(end == np.maximum.accumulate(end), number, 0))
    until, until_but_one = np.full((2, len(end)), -np.inf)
    for times, before in ((until, 1), (until_but_one, 2)):
        by = last[:-before]
        # Parts of one launch, which is of a CUDA graph, may run at the same time wherever they are shown.
        is_graph = (launch[by] == launch[before:]) & (launch[by] != MISSING)
        times[before:] = np.where(is_graph, -np.inf, end[by])
    both_us = np.minimum(until, end) - start
    ended_before = until > end + _ROUNDED_US
    is_third = until_but_one > start + _ROUNDED_US
    is_impossible = (both_us > _ROUNDED_US) & (ended_before | is_third | (both_us > _NEXT_US))
    return np.where(is_impossible, both_us, 0.0)
