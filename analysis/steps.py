"""Which step an activity belongs to, and the windows of the steps on a device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

_PREFIX = "ProfilerStep#"


class Window(NamedTuple):
    """A step on a device: [start_ns, end_ns)."""

    step: int
    start_ns: int
    end_ns: int


def with_steps(activities: pd.DataFrame, launches: pd.DataFrame, annotations: pd.DataFrame) -> pd.DataFrame:
    """The activities of one file with their `step`: the ProfilerStep#N annotation that contains their launch.

    An activity of a CPU run is its own launch. Without a launch (enqueued before the profiler started), or with one
    outside every step, the step is NA.
    """
    launched_ns = _launch_times(activities, launches)
    steps = annotations[annotations["name"].str.startswith(_PREFIX).fillna(False)].sort_values("start_ns")
    numbers = steps["name"].str.removeprefix(_PREFIX).astype("int64").to_numpy()
    starts = steps["start_ns"].to_numpy()
    ends = starts + steps["dur_ns"].to_numpy()
    if not len(steps):
        return activities
    times = launched_ns.fillna(np.iinfo(np.int64).min).to_numpy(dtype=np.int64)
    index = np.searchsorted(starts, times, side="right") - 1
    inside = (index >= 0) & (times < ends[index])
    result = activities.copy(deep=False)
    result["step"] = pd.arrays.IntegerArray(np.where(inside, numbers[index], 0).astype(np.int64), ~inside)
    return result


def _launch_times(activities: pd.DataFrame, launches: pd.DataFrame) -> pd.Series[int]:
    on_cpu = (activities["device"] == "cpu").to_numpy()
    times = launches.set_index("correlation")["start_ns"].astype("Int64")
    found = times.reindex(activities["correlation"].astype("Int64")).reset_index(drop=True)
    return found.mask(on_cpu, activities["start_ns"].astype("Int64"))


def step_windows(activities: pd.DataFrame) -> list[Window]:
    """Windows of the steps of one rank, device and cycle.

    b_N is the earliest start of any activity of a step >= N; the window of N is [b_N, b_N+1), the last one ends with
    the last activity that has a step.
    """
    with_step = activities[activities["step"].notna()]
    if not len(with_step):
        return []
    first = with_step.groupby("step")["start_ns"].min().sort_index()
    bounds = first.to_numpy()[::-1]
    bounds = np.minimum.accumulate(bounds)[::-1]
    last_end = int((with_step["start_ns"] + with_step["dur_ns"]).max())
    ends = [*bounds[1:].tolist(), last_end]
    return [Window(int(n), int(b), int(e)) for n, b, e in zip(first.index, bounds, ends, strict=True)]
