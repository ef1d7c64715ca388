"""Number of launches that wait on a stream: called, but not begun.

A call waits on a stream from its start until the first activity that it launched there begins; one launch of a CUDA
graph is one. Where clocks of CPU and device differ so that an activity begins before its call, it never waited.

Source: HolisticTraceAnalysis 0.6.1, get_queue_length_time_series: one more where a call begins, one less where a kernel
does. Its summary counts every point of that series alike; here times are weighted by how long they last. A stream of
CUDA holds 1,024 launches, and a further call blocks until there is room: get_time_spent_blocked_on_full_queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...core.arrays import Ints
from ...core.intervals import Times
from ...core.kinds import NEXT
from ...core.schema import bare, grouped
from ...core.steps import launch_times

_NEEDED = ["rank", "device", "cycle", "kind", "stream", "start_ns", "dur_ns", "correlation"]
_UNKNOWN = np.iinfo(np.int64).min


class Depth(NamedTuple):
    """The number of launches that wait, from each time until the next one; both of shape (changes,)."""

    time_ns: Times
    depth: Ints

    def within(self, start_ns: int, end_ns: int) -> Depth:
        """The depth in [start_ns, end_ns), with a value at `start_ns`."""
        before = int(np.searchsorted(self.time_ns, start_ns, side="right")) - 1
        inside = (self.time_ns > start_ns) & (self.time_ns < end_ns)
        first = self.depth[before] if before >= 0 else 0
        return Depth(np.append(start_ns, self.time_ns[inside]), np.append(first, self.depth[inside]))


class OnStream(NamedTuple):
    """The queue of a stream in one cycle; [start_ns, end_ns) is the window of its device."""

    rank: int
    device: str
    stream: int
    start_ns: int
    end_ns: int
    launches: int
    unlaunched: int
    depth: Depth


def queues(activities: pd.DataFrame, launches: pd.DataFrame) -> Iterator[OnStream]:
    """Yield the queue of each GPU stream in each cycle."""
    is_work = (bare(activities["device"]) != "cpu") & ~activities["kind"].isin([NEXT]).to_numpy()
    on_gpu = activities.loc[is_work, _NEEDED]
    calls = dict(grouped(launches, ["rank", "cycle"]))
    for (rank, device, cycle), rows in grouped(on_gpu, ["rank", "device", "cycle"], _NEEDED):
        launched = calls.get((rank, cycle), launches[:0])
        correlation = rows["correlation"].to_numpy(dtype=np.int64, na_value=_UNKNOWN)
        called = launch_times(correlation, launched["correlation"].to_numpy(), launched["start_ns"].to_numpy())
        start = rows["start_ns"].to_numpy()
        end_ns = int((start + rows["dur_ns"].to_numpy()).max())
        for stream in np.unique(rows["stream"]).tolist():
            here = rows["stream"].to_numpy() == stream
            known = here & (called != _UNKNOWN)
            begun = _first_starts(correlation[known], start[known])
            waiting = depth_of(called[known][begun], start[known][begun]).within(int(start.min()), end_ns)
            unlaunched = int((here & ~known).sum())
            yield OnStream(rank, device, stream, int(start.min()), end_ns, len(begun), unlaunched, waiting)


def depth_of(called_ns: Times, begun_ns: Times) -> Depth:
    """The depth by launches, each of which waits from its call until it begins; both of shape (launches,)."""
    waits = begun_ns > called_ns
    moments = np.concatenate((called_ns[waits], begun_ns[waits]))
    time_ns, at = np.unique(moments, return_inverse=True)
    step = np.repeat([1, -1], int(waits.sum()))
    depth = np.zeros(len(time_ns), dtype=np.int64)
    np.add.at(depth, at, step)
    return Depth(time_ns, np.cumsum(depth))


def _first_starts(correlation: Ints, start_ns: Times) -> Ints:
    """Index of the first activity of each correlation."""
    order = np.lexsort((start_ns, correlation))
    is_first = np.diff(correlation[order], prepend=_UNKNOWN) != 0
    first: Ints = order[is_first]
    return first
