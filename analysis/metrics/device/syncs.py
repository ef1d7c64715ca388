"""Runtime calls that block, allocate, copy to pageable memory, or take far longer than others of their name.

A call costs a device its starved time (see `idle`) during the call: nothing was queued, and the thread that was to
launch the next activity was in the call. If it takes unusually long, the launch itself costs that, too.

Source: CUDA, API synchronization behavior: a transfer from the device to pageable memory returns once it is complete.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core import markers
from ...core.intervals import Times, covered, spans, subtract, union
from ...core.kinds import MEMORY
from ...core.schema import bare, grouped
from ...core.steps import NO_STEP, steps_at
from ...core.tables.device_time import SYNCS, SYNCS_STEPS
from ..clocks.frame import Ints
from .idle import NEEDED, Host, HostTables, gaps_of
from .launches import names_around

_KINDS = np.array(["sync", "alloc", "copy", "long"], dtype=object)
_LONG = 3
_SEVERAL = 3  # calls of one name, from where their median tells what is usual
_TIMES_MEDIAN, _LEAST_NS = 100, 1_000_000
"""What a long call takes at least. A first use, which loads a module or creates a handle, takes milliseconds."""
_IDLE_FROM = 0.5  # of a long call: a launch into a full queue takes long as well, but waits for a device that works
_NAMED = ["kind", "name"]
_KEYS = ["kind", "name", "operator", "annotation"]


def blocking_calls(activities: pd.DataFrame, tables: HostTables) -> pd.DataFrame:
    """One row per such call, with the columns of `_KEYS` and its cost."""
    on_gpu = activities[bare(activities["device"]) != "cpu"]
    devices: dict[tuple[int, int], list[pd.DataFrame]] = {}
    for (rank, _, cycle), of_device in grouped(on_gpu, ["rank", "device", "cycle"], [*NEEDED, *_NAMED]):
        devices.setdefault((rank, cycle), []).append(of_device)
    keys = grouped(tables.calls[["rank", "cycle"]].drop_duplicates(), ["rank", "cycle"])
    parts = [_of_host(rank, tables.host(rank, cycle), devices.get((rank, cycle), [])) for (rank, cycle), _ in keys]
    return pd.concat(parts, ignore_index=True) if parts else _of_none()


def syncs(calls: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, call and operator, the most costly of a rank first."""
    return SYNCS.conform(_summed(calls, ["rank"]))


def syncs_steps(calls: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, call, operator and the step in which the call began."""
    return SYNCS_STEPS.conform(_summed(calls, ["rank", "step"]))


def _summed(calls: pd.DataFrame, over: list[str]) -> pd.DataFrame:
    groups = calls.groupby([*over, *_KEYS], dropna=False, sort=True)
    sums = groups.agg(
        calls=("dur_ns", "size"), total_ns=("dur_ns", "sum"), longest_ns=("dur_ns", "max"), lost_ns=("lost_ns", "sum")
    ).reset_index()
    down = ["lost_ns", "total_ns"]
    order = [*(True for _ in over), *(False for _ in down)]
    return sums.sort_values([*over, *down], ascending=order, kind="stable", ignore_index=True)


def _of_none() -> pd.DataFrame:
    numbers = {"rank": "int64", "step": "Int64", "dur_ns": "int64", "lost_ns": "int64"}
    return pd.DataFrame({name: pd.Series(dtype=numbers.get(name, "string")) for name in (*_KEYS, *numbers)})


def _of_host(rank: int, host: Host, devices: list[pd.DataFrame]) -> pd.DataFrame:
    calls, kinds = host.calls, kinds_of_calls(host, devices)
    names, took = host.runtime_calls["name"].to_numpy(dtype=object), calls.end_ns - calls.start_ns
    kinds = np.where((kinds < 0) & (over_usual(names, took) > 0), _LONG, kinds)
    chosen = np.flatnonzero(kinds >= 0)
    chosen = chosen[np.argsort(calls.start_ns[chosen], kind="stable")]
    if not len(chosen):
        return _of_none()
    thread, start, kind = calls.thread[chosen], calls.start_ns[chosen], kinds[chosen]
    lost = np.zeros(len(chosen), dtype=np.int64)
    for activities in devices:
        lost += _lost(activities, host, thread, start, calls.end_ns[chosen], kind)
    step = steps_at(start, host.step_marks)
    found = pd.DataFrame({
        "rank": rank,
        "kind": pd.Series(_KINDS[kind], dtype="string"),
        "name": host.runtime_calls["name"].astype("string").array.take(chosen),
        "operator": names_around(host.operator_ranges, thread, start),
        "annotation": names_around(host.user_ranges, thread, start),
        "step": pd.Series(step, dtype="Int64").mask(step == NO_STEP),
        "dur_ns": calls.end_ns[chosen] - start,
        "lost_ns": lost,
    })  # fmt: skip
    kept: pd.DataFrame = found[(kind != _LONG) | (lost >= _IDLE_FROM * (calls.end_ns[chosen] - start))]
    return kept


def kinds_of_calls(host: Host, devices: list[pd.DataFrame]) -> Ints:
    """Kind of each runtime call, 0 sync, 1 alloc, 2 copy, and -1 for all others; `devices` have their activities."""
    calls = host.calls
    copying = np.zeros(len(calls.thread), dtype=bool)
    for activities in devices:
        launch = host.launch_of(_copies_to_pageable(activities))
        copying[launch[launch >= 0]] = True
    return np.select([calls.is_sync, calls.is_alloc, copying], [0, 1, 2], default=-1)


def over_usual(names: NDArray[Any], took_ns: Times) -> Times:
    """How much longer each call takes than usual, if that is far longer, in ns; else 0.

    Usual is the median of its name, and of all calls for one that is made once or twice, such as loading a module, and
    launches nothing: a graph may take long each time. It may be any call that does not copy: how long a copy takes
    depends on its size.
    """
    codes, unique = pd.factorize(names)
    by_name = pd.Series(took_ns).groupby(codes)
    usual = by_name.transform("median").to_numpy()
    copies, launches = (
        np.array([word in str(name) for name in [*unique, ""]], dtype=bool)[codes]
        for word in (markers.COPYING_CALL, markers.LAUNCHING_CALL)
    )
    if len(took_ns):
        is_rare = (by_name.transform("size").to_numpy() < _SEVERAL) & ~launches
        usual = np.where(is_rare, np.minimum(usual, np.median(took_ns)), usual)
    is_long = (took_ns >= _LEAST_NS) & (took_ns >= _TIMES_MEDIAN * usual) & ~copies
    return np.where(is_long, took_ns - usual, 0).astype(np.int64)


def _copies_to_pageable(activities: pd.DataFrame) -> Ints:
    """Correlations of copies to pageable memory."""
    copies = activities[(activities["kind"] == MEMORY) & activities["correlation"].notna()]
    chosen = copies["name"].astype("string").str.endswith(markers.TO_PAGEABLE).fillna(False)
    return copies["correlation"][chosen].to_numpy(dtype=np.int64)


def _lost(activities: pd.DataFrame, host: Host, thread: Ints, start: Times, end: Times, kind: Ints) -> Times:
    """Starved time of the device during each call, if it is long launching time too, in ns, each ns counted once."""
    gaps = gaps_of(activities, host, [])[1]
    lost = np.zeros(len(start), dtype=np.int64)
    for number in np.unique(thread):
        of_thread = gaps.is_known & (gaps.thread == number)
        starved, launching = (
            spans(start_ns[of_thread], end_ns[of_thread])
            for start_ns, end_ns in ((gaps.start_ns, gaps.begun_ns), (gaps.begun_ns, gaps.done_ns))
        )
        for which in range(len(_KINDS)):
            if which == _LONG:
                starved = union(starved, launching)
            here = (kind == which) & (thread == number)
            # What two calls share, one within the other, belongs to the one that began first.
            reach = np.maximum.accumulate(end[here])
            begin = start[here].copy()
            begin[1:] = np.maximum(begin[1:], reach[:-1])
            lost[here] = covered(starved, begin, np.maximum(end[here], begin))
            starved = subtract(starved, spans(start[here], end[here]))
    return lost
