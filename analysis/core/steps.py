"""Steps of activities, and when steps began and ended on a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import markers
from .intervals import Times

if TYPE_CHECKING:
    import pandas as pd

NO_STEP = -1
"""The step of an activity that belongs to none."""
LATER_STEPS = 1 << 62
"""The step of the moment at which a device began with steps that were left out: it ends the window before."""
_UNKNOWN = np.iinfo(np.int64).min

Mark = tuple[str, int, int]
"""Name, start and duration in ns of an annotation."""

_Ids = NDArray[np.int64]


class Window(NamedTuple):
    """A step on a device: [start_ns, end_ns)."""

    step: int
    start_ns: int
    end_ns: int


def launch_times(correlation: _Ids, launches: _Ids, start_ns: Times) -> Times:
    """Launch of each activity, by its correlation: the first of the launches that share it.

    `correlation` is of shape (activities,), `launches` (their correlations) and `start_ns` of shape (launches,). The
    lowest integer stands for an unknown correlation or time.
    """
    if not len(launches):
        return np.full(len(correlation), _UNKNOWN)
    order = np.lexsort((start_ns, launches))
    known = launches[order]
    at = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    return np.where((known[at] == correlation) & (correlation != _UNKNOWN), start_ns[order][at], _UNKNOWN)


def steps_at(times_ns: Times, marks: Iterable[Mark]) -> _Ids:
    """Step at each time, NO_STEP outside of steps; `marks` are annotations: name, start and duration in ns."""
    mark = markers.PROFILER_STEP
    steps = sorted((start, start + dur, int(n.removeprefix(mark))) for n, start, dur in marks if n.startswith(mark))
    if not steps:
        return np.full(len(times_ns), NO_STEP)
    starts, ends, numbers = np.array(steps, dtype=np.int64).T
    index = np.searchsorted(starts, times_ns, side="right") - 1
    return np.where((index >= 0) & (times_ns < ends[index]), numbers[index], NO_STEP)


def with_steps(activities: pd.DataFrame, launches: pd.DataFrame, marks: Iterable[Mark]) -> pd.DataFrame:
    """Add to the activities of one file their `step`: the ProfilerStep#N annotation around their launch.

    `marks` are annotations. An activity of a CPU run is its own launch. Without a launch (enqueued before the profiler
    started), or with one outside every step, the step is NA.
    """
    import pandas as pd

    steps = [mark for mark in marks if mark[0].startswith(markers.PROFILER_STEP)]
    if not steps:
        return activities
    times = launch_times(
        activities["correlation"].to_numpy(dtype=np.int64, na_value=_UNKNOWN),
        launches["correlation"].to_numpy(),
        launches["start_ns"].to_numpy(),
    )
    if len(activities) and activities["device"].iloc[0] == "cpu":  # no file has activities of a CPU beside a GPU's
        times = activities["start_ns"].to_numpy()
    step = steps_at(times, steps)
    result = activities.copy(deep=False)
    result["step"] = pd.arrays.IntegerArray(np.where(step == NO_STEP, 0, step), step == NO_STEP)
    return result


def step_windows(start_ns: Times, end_ns: Times, step: _Ids) -> list[Window]:
    """Windows of the steps of one rank, device and cycle; all of shape (activities,).

    b_N is the earliest start of any activity of a step >= N; the window of N is [b_N, b_N+1), the last one ends with
    the last activity that has a step. Where later steps were left out, it ends where the device began with them.
    """
    inside = step != NO_STEP
    if not inside.any():
        return []
    numbers, which = np.unique(step[inside], return_inverse=True)
    bounds = np.full(len(numbers), np.iinfo(np.int64).max)
    np.minimum.at(bounds, which, start_ns[inside])
    bounds = np.minimum.accumulate(bounds[::-1])[::-1]
    ends = np.append(bounds[1:], end_ns[inside].max())
    windows = (Window(*each) for each in zip(numbers.tolist(), bounds.tolist(), ends.tolist(), strict=True))
    return [window for window in windows if window.step != LATER_STEPS]
