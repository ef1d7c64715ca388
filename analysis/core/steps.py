"""Steps of activities, and when steps began and ended on a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from . import markers
from .frames import np
from .intervals import Times
from .kinds import MEMORY
from .schema import grouped

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

NO_STEP = -1
"""The step of an activity that belongs to none."""
LATER_STEPS = 1 << 62
"""The step of the moment at which a device began with steps that were left out: it ends the window before."""
_UNKNOWN, NEVER = -(1 << 63), (1 << 63) - 1
_AT_ONCE_NS = 200_000
"""A device that begins within this time of a launch, or within that of other steps, had nothing else to do."""
_LITTLE, _NEARLY_ALL, _LONGER = 0.1, 0.9, 2
"""Work from before the trace held the devices up if little ran before the pause, a kernel was queued for nearly all of
it, and it is twice as long as any later pause with a queued kernel.
"""

Mark = tuple[str, int, int]
"""Name, start and duration in ns of an annotation."""

_Ids: TypeAlias = "NDArray[np.int64]"


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


class InSteps(NamedTuple):
    """Activities with their steps, and how long work in a step was held up by what the trace lacks, in ns by step."""

    activities: pd.DataFrame
    unseen_ns: dict[int, int]


def with_steps(
    activities: pd.DataFrame, launches: pd.DataFrame, marks: Iterable[Mark], *, on_device: bool = False
) -> InSteps:
    """Add to the activities of one file their `step`: the ProfilerStep#N annotation around their launch.

    `marks` are annotations, also of batches that were waited for. An activity of a CPU run is its own launch, and so is
    every one where the device itself marks steps (`on_device`). Without a launch (enqueued before the profiler
    started), or with one outside every step, the step is NA, as it is while the devices still end work from before the
    trace. The first activity of a step has `idle_since_ns`, if the devices waited for it.
    """
    import pandas as pd

    mark, marks = markers.PROFILER_STEP, [*marks]
    steps = sorted((each for each in marks if each[0].startswith(mark)), key=lambda each: each[1])
    if not steps:
        return InSteps(activities, {})
    times = launch_times(
        activities["correlation"].to_numpy(dtype=np.int64, na_value=_UNKNOWN),
        launches["correlation"].to_numpy(),
        launches["start_ns"].to_numpy(),
    )
    # No file has activities of a CPU beside a GPU's.
    if on_device or (len(activities) and activities["device"].iloc[0] == "cpu"):
        times = activities["start_ns"].to_numpy()
    step = steps_at(times, steps)
    start = activities["start_ns"].to_numpy()
    end = start + activities["dur_ns"].to_numpy()
    held_up = _held_up(start, end, step, times, (activities["kind"] == MEMORY).to_numpy())
    seen = np.ones(len(start), dtype=bool) if held_up is None else start >= held_up[1]
    step = np.where(seen, step, NO_STEP)
    result = activities.copy(deep=False)
    result["step"] = pd.arrays.IntegerArray(np.where(step == NO_STEP, 0, step), step == NO_STEP)
    loading = [(begin, begin + dur) for name, begin, dur in marks if name.startswith(markers.DATA_LOADER)]
    marked = {int(name.removeprefix(mark)): begin for name, begin, _ in reversed(steps)}
    since = np.full(len(start), NEVER)
    since[seen] = _idle_since(start[seen], end[seen], step[seen], times[seen], marked, loading)
    if (since != NEVER).any():
        result["idle_since_ns"] = pd.arrays.IntegerArray(np.where(since == NEVER, 0, since), since == NEVER)
    first = int(step[step != NO_STEP].min(initial=NEVER))
    return InSteps(result, {} if held_up is None else {first: held_up[1] - held_up[0]})


def _held_up(
    start: Times, end: Times, step: _Ids, launched: Times, copies: NDArray[np.bool_]
) -> tuple[int, int] | None:
    """When the devices of a process ran nothing in the first step, although work was queued; None if they always did.

    Arrays are of shape (activities,); `launched` is when each was launched, `copies` flags copies and fills. In such a
    time the devices end work from before the trace, which no trace shows. They are not held up where they are as slow
    to begin later on, nor where the call that launches a kernel takes so long: it has returned when another follows.
    """
    inside = step != NO_STEP
    if not inside.any():
        return None
    order = np.argsort(start, kind="stable")
    begins, done = start[order][1:], np.maximum.accumulate(end[order])[:-1]
    launched, copies, in_first = launched[order][1:], copies[order][1:], step[order] == step[inside].min()
    queued = np.where(launched == _UNKNOWN, 0, begins - np.maximum(done, launched))
    early = in_first[1:] & in_first[:-1] & (done - start.min() <= _LITTLE * (begins - done))
    for place in np.flatnonzero(early & (queued >= _NEARLY_ALL * (begins - done)))[::-1].tolist():
        known = np.unique(launched[place:][launched[place:] != _UNKNOWN])
        returned = known[:1] if copies[place] else known[1:2]
        held_ns = int(begins[place] - max(done[place], *returned.tolist())) if len(returned) else 0
        longest = int(queued[place + 1 :].max(initial=_AT_ONCE_NS))
        if held_ns >= max(_NEARLY_ALL * (begins[place] - done[place]), _LONGER * longest):
            return int(done[place]), int(begins[place])
    return None


def _idle_since(
    start: Times, end: Times, step: _Ids, launched: Times, marked: Mapping[int, int], loading: Sequence[tuple[int, int]]
) -> Times:
    """Since when the devices of a process were idle in a step before its first activity, for want of a launch.

    NEVER for all but such first activities. Arrays are of shape (activities,), `launched` is when each was launched;
    `marked` is when the CPU began each step, `loading` are the times in which it waited for a batch.

    A device that has nothing left of earlier steps, while its host is in step N and has not launched anything of it,
    waits for the host in step N: a wait for a batch belongs to the step that it is for. What the devices had left when
    the trace begins may not be in it, so in the first step they count as idle only if they begin as soon after a launch
    as in other steps. Of a trace of one step, the host may have waited just for that: there it must wait for a batch.
    """
    since = np.full(len(start), NEVER)
    inside = (step != NO_STEP) & (step != LATER_STEPS)
    numbers = np.unique(step[inside])
    order = np.argsort(start, kind="stable")
    begins, done = start[order], np.maximum.accumulate(end[order])
    at_first: tuple[int, int, int, bool] | None = None
    delays = [_AT_ONCE_NS]
    for number in numbers.tolist():
        own = np.flatnonzero(inside & (step == number))
        first = own[np.argmin(start[own])]
        known = launched[own][launched[own] != _UNKNOWN]
        before = int(np.searchsorted(begins, start[first], side="left"))
        if number not in marked or not len(known) or (inside & (step > number) & (start < start[first])).any():
            continue
        launch, mark = int(known.min()), marked[number]
        begun = mark if before == 0 else max(mark, int(done[before - 1]))
        if not begun < min(launch, int(start[first])):
            continue
        if before or number != numbers[0]:
            since[first] = begun
            delays.append(int(start[first]) - launch)
        else:
            is_loading = any(begin < launch and until > begun for begin, until in loading)
            at_first = first, begun, int(start[first]) - launch, is_loading
    if at_first is not None:
        first, begun, delay, is_loading = at_first
        if delay <= max(delays) and (is_loading or len(numbers) > 1):
            since[first] = begun
    return since


def windows_of(activities: pd.DataFrame) -> list[Window]:
    """The windows of the steps of one process in one cycle, from the table of these activities of all its devices."""
    start = activities["start_ns"].to_numpy()
    return step_windows(
        start,
        start + activities["dur_ns"].to_numpy(),
        activities["step"].to_numpy(dtype=np.int64, na_value=NO_STEP),
        activities["idle_since_ns"].to_numpy(dtype=np.int64, na_value=NEVER),
    )


def windows_by_process(activities: pd.DataFrame) -> dict[tuple[int, int], list[Window]]:
    """The windows of the steps of each rank and cycle: the devices of a process share its steps."""
    return {
        cast("tuple[int, int]", process): windows_of(rows) for process, rows in grouped(activities, ["rank", "cycle"])
    }


def step_windows(start_ns: Times, end_ns: Times, step: _Ids, idle_since_ns: Times | None = None) -> list[Window]:
    """Windows of the steps of the devices of a process in one cycle; all of shape (activities,).

    b_N is the earliest start of any activity of a step >= N, or since when the devices were idle before it for want of
    a launch in step N (`idle_since_ns`, NEVER where they were not). The window of N is [b_N, b_N+1), the last one ends
    with the last activity that has a step. Where later steps were left out, it ends where the devices began with them.
    """
    inside = step != NO_STEP
    if not inside.any():
        return []
    numbers, which = np.unique(step[inside], return_inverse=True)
    bounds = np.full(len(numbers), NEVER)
    begun_ns = start_ns if idle_since_ns is None else np.minimum(start_ns, idle_since_ns)
    np.minimum.at(bounds, which, begun_ns[inside])
    bounds = np.minimum.accumulate(bounds[::-1])[::-1]
    ends = np.append(bounds[1:], end_ns[inside].max())
    windows = (Window(*each) for each in zip(numbers.tolist(), bounds.tolist(), ends.tolist(), strict=True))
    return [window for window in windows if window.step != LATER_STEPS]
