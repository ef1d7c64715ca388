"""Number of launches that wait on a stream: called, but not begun.

A call waits on a stream from its start until the first activity that it launched there begins; one launch of a CUDA
graph is one. Where clocks of CPU and device differ so that an activity begins before its call, it never waited.

Source: HolisticTraceAnalysis 0.6.1, get_queue_length_time_series: one more where a call begins, one less where a kernel
does. Its summary counts every point of that series alike; here times are weighted by how long they last. A stream of
CUDA holds 1,024 launches, and a further call blocks until there is room: get_time_spent_blocked_on_full_queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...core.intervals import Times
from ...core.kinds import NEXT
from ...core.schema import Row, bare, grouped
from ...core.steps import launch_times
from ...core.tables.device_time import STREAM_QUEUES, STREAM_QUEUES_TIMES
from ..clocks.frame import Ints

FULL = 1024
"""Launches for which a stream of CUDA has room."""
NO_LAUNCHES = "no launch of these activities is in the trace"
NO_LIMIT = "how many launches a stream has room for is known of CUDA only"
LAUNCHED_BEFORE = "activities whose launch is not in the trace are not counted, so more may have waited"

_NEEDED = ["rank", "device", "cycle", "kind", "stream", "start_ns", "dur_ns", "correlation"]
_UNKNOWN = np.iinfo(np.int64).min
_NOT_CUDA = re.compile(r"\b(?:AMD|HIP|Radeon|mtia|xccl|hccl)\b")


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


def ranks_without_limit(traces: pd.DataFrame) -> frozenset[int]:
    """Ranks whose devices are not CUDA devices, according to their files."""
    about = traces["device_name"].fillna("") + " " + traces["versions"].fillna("") + " " + traces["backend"].fillna("")
    return frozenset(traces.loc[about.str.contains(_NOT_CUDA), "rank"].tolist())


def depth_of(called_ns: Times, begun_ns: Times) -> Depth:
    """The depth by launches, each of which waits from its call until it begins; both of shape (launches,)."""
    waits = begun_ns > called_ns
    moments = np.concatenate((called_ns[waits], begun_ns[waits]))
    time_ns, at = np.unique(moments, return_inverse=True)
    step = np.repeat([1, -1], int(waits.sum()))
    depth = np.zeros(len(time_ns), dtype=np.int64)
    np.add.at(depth, at, step)
    return Depth(time_ns, np.cumsum(depth))


def queue(streams: list[OnStream], without_limit: frozenset[int] = frozenset()) -> pd.DataFrame:
    """One row per rank, device and stream; `without_limit` are ranks whose queue has no known capacity."""
    by_stream: dict[tuple[int, str, int], list[OnStream]] = {}
    for on_stream in streams:
        by_stream.setdefault((on_stream.rank, on_stream.device, on_stream.stream), []).append(on_stream)
    return STREAM_QUEUES.frame(
        _row(cycles, limited=rank not in without_limit) for (rank, _, _), cycles in sorted(by_stream.items())
    )


def queue_times(streams: list[OnStream]) -> pd.DataFrame:
    """One row per rank, device, stream and change of depth; none for streams without launches."""
    return STREAM_QUEUES_TIMES.concat([_changes(on_stream) for on_stream in streams if on_stream.launches])


def _changes(on_stream: OnStream) -> pd.DataFrame:
    times = {"time_ns": on_stream.depth.time_ns, "depth": on_stream.depth.depth}
    return STREAM_QUEUES_TIMES.conform(
        pd.DataFrame({"rank": on_stream.rank, "device": on_stream.device, "stream": on_stream.stream, **times})
    )


def _first_starts(correlation: Ints, start_ns: Times) -> Ints:
    """Index of the first activity of each correlation."""
    order = np.lexsort((start_ns, correlation))
    is_first = np.diff(correlation[order], prepend=_UNKNOWN) != 0
    first: Ints = order[is_first]
    return first


def _row(cycles: list[OnStream], *, limited: bool) -> Row:
    first = cycles[0]
    window_ns = sum(cycle.end_ns - cycle.start_ns for cycle in cycles)
    launches, unlaunched = (sum(counts) for counts in zip(*((c.launches, c.unlaunched) for c in cycles), strict=True))
    row: Row = {
        "rank": first.rank, "device": first.device, "stream": first.stream, "window_ns": window_ns,
        "launches": launches, "unlaunched": unlaunched,
    }  # fmt: skip
    if not launches:
        return row | {"note": NO_LAUNCHES}
    lasts = [np.diff(cycle.depth.time_ns, append=cycle.end_ns) for cycle in cycles]
    depths, took = np.concatenate([cycle.depth.depth for cycle in cycles]), np.concatenate(lasts)
    notes = [*([] if limited else [NO_LIMIT]), *([LAUNCHED_BEFORE] if unlaunched else [])]
    return row | {
        "empty_ns": int(took[depths == 0].sum()),
        "mean_depth": float((depths * took).sum() / window_ns) if window_ns else None,
        "max_depth": int(depths.max()),
        "full_ns": int(took[depths >= FULL].sum()) if limited else None,
        "note": "; ".join(notes) or None,
    }
