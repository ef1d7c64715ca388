"""Counters over time: waiting ranks, bus bandwidth of process groups, launches waiting on streams, memory, clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core.intervals import Times, spans
from ..core.schema import grouped
from ..metrics.device.counters import name_and_unit
from ..metrics.device.queues import Depth, OnStream
from ..metrics.memory.held import NOT_RECORDED, DeviceMemory
from .slices import Counter, Track

_Values = NDArray[np.float64]
_GROUP = ["process_group", "pg_ranks"]
_BUSY_FROM = 0.02  # of the time in which any group moved data
_MOST_GROUPS = 8


def ranks_waiting(calls: pd.DataFrame) -> Iterator[Track]:
    """Yield the number of ranks that wait in at least one call; `calls` as in arrows."""
    known = calls[calls["moving_ns"].notna()]
    if not len(known):
        return
    waiting = [
        spans(rows["arrived_ns"].to_numpy(), rows["moving_ns"].to_numpy(dtype=np.int64))
        for _, rows in known.groupby("rank")
    ]
    start, end = np.concatenate([w.starts for w in waiting]), np.concatenate([w.ends for w in waiting])
    time_ns, value = _summed(start, end, np.ones(len(start)))
    yield Track("ranks waiting", Counter(time_ns, value, "ranks"))


def bus_bandwidths(collectives: pd.DataFrame) -> Iterator[Track]:
    """Yield the bus bandwidth of each process group, the busiest first: from last arrivals to last ends."""
    known = collectives[collectives["busbw_gb_per_s"].notna() & collectives["last_start_ns"].notna()]
    named = known.assign(process_group=known["process_group"].fillna("?"), pg_ranks=known["pg_ranks"].fillna(""))
    by_group = [*grouped(named, ["process_group", "pg_ranks"])]
    by_group.sort(key=lambda group: -_moving_ns(group[1]))
    for (group, ranks), rows in by_group:
        start, end = (rows[key].to_numpy(dtype=np.int64) for key in ("last_start_ns", "last_end_ns"))
        time_ns, value = _summed(start, end, rows["busbw_gb_per_s"].to_numpy(dtype=np.float64))
        of_ranks = f" (ranks {in_runs(ranks)})" if ranks else ""
        roles = sorted(set(rows["role"].dropna())) if "role" in rows else []
        whose = roles[0] if len(roles) == 1 else f"group {group}"
        yield Track(f"bus bandwidth of {whose}{of_ranks}", Counter(time_ns, value, "GB/s"))


def busy(collectives: pd.DataFrame) -> pd.DataFrame:
    """The collectives of the groups that moved data longest: those with 2% of all that time, and no more than 8."""
    known = collectives[collectives["busbw_gb_per_s"].notna() & collectives["last_start_ns"].notna()]
    moving = known.assign(moving_ns=(known["last_end_ns"] - known["last_start_ns"]).astype("int64"))
    by_group = moving.fillna(dict.fromkeys(_GROUP, "")).groupby(_GROUP)["moving_ns"].sum()
    most = by_group.sort_values(ascending=False, kind="stable").head(_MOST_GROUPS)
    chosen = most[most >= _BUSY_FROM * float(by_group.sum())].index
    of_row = pd.MultiIndex.from_frame(collectives[_GROUP].fillna(""))
    return collectives[of_row.isin(chosen)]


def _moving_ns(collectives: pd.DataFrame) -> int:
    return int((collectives["last_end_ns"] - collectives["last_start_ns"]).sum())


def waiting_launches(
    queues: Iterable[OnStream], rank: int, start_ns: int, end_ns: int, common: Callable[[Times], Times]
) -> Iterator[Track]:
    """Yield the number of launches that wait on each stream of a rank.

    Within these times of its clock; `common` are its times on the common clock.
    """
    streams: dict[tuple[str, int], list[Depth]] = {}
    for queue in queues:
        if queue.rank == rank and queue.launches and queue.start_ns < end_ns and queue.end_ns > start_ns:
            shown = queue.depth.within(max(queue.start_ns, start_ns), min(queue.end_ns, end_ns))
            streams.setdefault((queue.device, queue.stream), []).append(shown)
    for (device, stream), cycles in streams.items():
        time_ns, depth = (np.concatenate(values) for values in zip(*cycles, strict=True))
        track = f"queue depth GPU {device} stream {stream}"
        yield Track(track, Counter(common(time_ns), depth.astype(np.float64), "launches"))


def held_memory(
    memory: Iterable[DeviceMemory], rank: int, start_ns: int, end_ns: int, common: Callable[[Times], Times]
) -> Iterator[Track]:
    """Yield what is allocated on each device of a rank, and what its allocator holds.

    Within these times of its clock, and as it was when they begin; `common` are its times on the common clock. Of a
    process with GPUs, the little that its CPU allocates is left out.
    """
    devices: dict[str, list[DeviceMemory]] = {}
    for each in memory:
        if each.rank == rank:
            devices.setdefault(each.device, []).append(each)
    for device, cycles in devices.items():
        if device == "cpu" and len(devices) > 1:
            continue
        where = "" if device == "cpu" else f" GPU {device}"
        for what in ("allocated", "reserved"):
            times, values = zip(*(_held(each, f"{what}_bytes", start_ns, end_ns) for each in cycles), strict=True)
            time_ns, value = np.concatenate(times), np.concatenate(values)
            if value.any():
                yield Track(f"memory {what}{where}", Counter(common(time_ns), value, "MiB"))


def _held(memory: DeviceMemory, column: str, start_ns: int, end_ns: int) -> tuple[Times, _Values]:
    """When it changes, and what is held from then on, in MiB; nothing where that is not known."""
    held: Times = getattr(memory, column)
    changes = np.append(True, held[1:] != held[:-1])
    first = max(memory.event_at(start_ns), 0)
    shown = np.flatnonzero((memory.time_ns < end_ns) & (np.arange(memory.events) >= first) & (held != NOT_RECORDED))
    shown = shown[changes[shown] | (shown == first)]
    return np.maximum(memory.time_ns[shown], start_ns), held[shown] / (1 << 20)


def sampled(
    samples: pd.DataFrame, rank: int, start_ns: int, end_ns: int, common: Callable[[Times], Times]
) -> Iterator[Track]:
    """Yield the counters of each device of a rank, such as its clock; `samples` are `counter_samples`.

    Within these times of its clock; `common` are its times on the common clock.
    """
    shown = samples[(samples["rank"] == rank) & samples["value"].notna() & samples["name"].notna()]
    shown = shown[shown["time_ns"].between(start_ns, end_ns)]
    for (device, name), rows in grouped(shown.sort_values("time_ns", kind="stable"), ["device", "name"]):
        counter, unit = name_and_unit(name)
        time_ns, value = rows["time_ns"].to_numpy(dtype=np.int64), rows["value"].to_numpy(dtype=np.float64)
        yield Track(f"{counter} GPU {device}", Counter(common(time_ns), value, unit or ""))


def _summed(start: Times, end: Times, value: _Values) -> tuple[Times, _Values]:
    """Sum of the values that hold at each change; each value holds from its start to its end.

    Where only one holds, the sum is that value exactly.
    """
    number = np.arange(1, len(start) + 1)
    moments, at = np.unique(np.concatenate((start, end)), return_inverse=True)
    holding, which, total = (
        np.cumsum(np.bincount(at, np.concatenate((each, -each)), len(moments)))
        for each in (np.ones(len(start)), number.astype(np.float64), value)
    )
    holding, which = np.rint(holding).astype(np.int64), np.rint(which).astype(np.int64)
    alone = np.concatenate(([0.0], value))[np.where(holding == 1, which, 0)]
    return moments, np.where(holding > 1, total, alone)


def in_runs(ranks: str) -> str:
    """Format `0 1 2 3 8` as `0-3, 8`."""
    numbers = np.array(ranks.split(), dtype=np.int64)
    bounds = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 2, append=numbers[-1:] + 2) != 1)
    runs = [numbers[first:past] for first, past in pairwise(bounds)]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
