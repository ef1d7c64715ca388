"""How many launches wait on each stream: in sum, and over time. `metrics/device/queues.py` counts them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, each_rank, value
from ..core.frames import np, pd
from ..core.schema import Row, Schema
from ..core.tables.columns import PARTIAL, RANK
from .launches import NOTHING_LAUNCHES

if TYPE_CHECKING:
    from ..metrics.device.queues import OnStream
    from ..run.run import Run

_DEVICE = ("string", "CUDA ordinal on that rank, or `cpu`")

STREAM_QUEUES = Schema("queue", "rank, device and stream", {
    "rank": RANK,
    "device": _DEVICE,
    "stream": ("int64", "stream"),
    "window_ns": ("int64", "as in `breakdown`: that of the device"),
    "launches": ("int64", "calls that launched something on this stream"),
    "mean_depth": ("Float64", "how many launches wait, mean over the window"),
    "max_depth": ("Int64", "the most that wait"),
    "empty_ns": ("Int64", "time in the window in which none waits"),
    "full_ns": ("Int64", "time in which 1,024 or more wait, so that the CPU has to stop; known of CUDA only"),
    "unlaunched": ("int64", "activities without a launch in the trace"),
    "note": ("string", "why something is NA, or a lower bound"),
    "partial": PARTIAL,
})  # fmt: skip
STREAM_QUEUES_TIMES = Schema("queue_times", "change in how many launches wait on a stream", {
    "rank": RANK,
    "device": _DEVICE,
    "stream": ("int64", "stream"),
    "time_ns": ("int64", "when, on that rank's clock"),
    "depth": ("int64", "launches that wait from then on"),
    "partial": PARTIAL,
})  # fmt: skip

FULL = 1024
"""Launches for which a stream of CUDA has room."""
NO_LAUNCHES = "no launch of these activities is in the trace"
NO_LIMIT = "how many launches a stream has room for is known of CUDA only"
LAUNCHED_BEFORE = "activities whose launch is not in the trace are not counted, so more may have waited"
_NOT_CUDA = re.compile(r"\b(?:AMD|HIP|Radeon|mtia|xccl|hccl)\b")


@value
@each_rank
def launch_queues(activities: pd.DataFrame, launches: pd.DataFrame) -> list[OnStream]:
    """Launches that wait on each stream, over time."""
    from ..metrics.device.queues import queues

    return list(queues(activities=activities, launches=launches))


@TableEntry(
    STREAM_QUEUES,
    Topic.time,
    "How many launches wait on each stream.",
    "launches.md#queues",
    command="table queue",
    after="launches_names",
    narrow=(
        "rank",
        "device",
        "stream",
        "launches",
        "mean_depth",
        "max_depth",
        "empty_ns",
        "full_ns",
        "window_ns",
        "unlaunched",
        "note",
    ),
    none_measured=NOTHING_LAUNCHES,
)
def queue(run: Run, launch_queues: list[OnStream]) -> pd.DataFrame:
    """One row per rank, device and stream: how many launches wait on it."""
    without_limit = _ranks_without_limit(run.traces)
    by_stream: dict[tuple[int, str, int], list[OnStream]] = {}
    for on_stream in launch_queues:
        by_stream.setdefault((on_stream.rank, on_stream.device, on_stream.stream), []).append(on_stream)
    return STREAM_QUEUES.frame(
        _row(cycles, limited=rank not in without_limit) for (rank, _, _), cycles in sorted(by_stream.items())
    )


@TableEntry(
    STREAM_QUEUES_TIMES,
    Topic.time,
    "The same, over time.",
    "launches.md#queues",
    command="table queue --by time",
    none_measured="no launch is in the trace, or nothing but CPUs ran anything",
)
def queue_times(launch_queues: list[OnStream]) -> pd.DataFrame:
    """One row per change in how many launches wait on a stream. None for streams without launches."""
    return STREAM_QUEUES_TIMES.concat([_changes(on_stream) for on_stream in launch_queues if on_stream.launches])


def _ranks_without_limit(traces: pd.DataFrame) -> frozenset[int]:
    """Ranks whose devices are not CUDA devices, according to their files."""
    about = traces["device_name"].fillna("") + " " + traces["versions"].fillna("") + " " + traces["backend"].fillna("")
    return frozenset(traces.loc[about.str.contains(_NOT_CUDA), "rank"].tolist())


def _changes(on_stream: OnStream) -> pd.DataFrame:
    times = {"time_ns": on_stream.depth.time_ns, "depth": on_stream.depth.depth}
    return STREAM_QUEUES_TIMES.conform(
        pd.DataFrame({"rank": on_stream.rank, "device": on_stream.device, "stream": on_stream.stream, **times})
    )


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
