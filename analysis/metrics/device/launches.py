"""The CPU operator or annotation in which an activity was launched: the innermost one on the launching thread.

That is the operator whose External id Kineto writes on the kernel, but it is also known for traces without such ids.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...core import markers
from ...core.arrays import Ints
from ...core.schema import bare

_NONE = -1


def operator_of_each(
    activities: pd.DataFrame, launches: pd.DataFrame, cpu_operators: pd.DataFrame, annotations: pd.DataFrame
) -> pd.Series[str]:
    """The operator of every activity, same index; NA if its launch is unknown or outside of all operators.

    c10d operators, which stand among the `annotations`, count. On CPU runs an activity is its own operator.
    """
    handed_over = annotations[annotations["name"].str.startswith(markers.C10D).fillna(False)]
    columns = ["rank", "cycle", "thread", "name", "start_ns", "dur_ns"]
    every = pd.concat([t[columns] for t in (cpu_operators, handed_over) if len(t)] or [cpu_operators[columns]])
    return _innermost_of(activities, launches, every, activities["name"].where(activities["device"] == "cpu"))


def annotation_of_each(activities: pd.DataFrame, launches: pd.DataFrame, annotations: pd.DataFrame) -> pd.Series[str]:
    """The user's annotation around the launch of every activity, same index.

    NA without a launch, or with one outside of all, and on CPUs.
    """
    names = annotations["name"].astype("string").fillna("")
    others = names.str.startswith((markers.PROFILER_STEP, markers.C10D, markers.GLOO_MARK, *markers.OF_BACKENDS))
    yours = annotations[~(others | names.isin(markers.DETAILS))]
    return _innermost_of(activities, launches, yours, pd.Series(pd.NA, index=activities.index, dtype="string"))


def _innermost_of(
    activities: pd.DataFrame, launches: pd.DataFrame, ranges: pd.DataFrame, names: pd.Series[str]
) -> pd.Series[str]:
    """Fill the series with the innermost range around the launch of each GPU activity."""
    of_file = dict(list(ranges.groupby(["rank", "cycle"])))
    launched = dict(list(launches.groupby(["rank", "cycle"])))
    for key, of_rank in activities[activities["device"] != "cpu"].groupby(["rank", "cycle"]):
        if key in of_file and key in launched:
            names[of_rank.index] = _of_one_file(of_rank, launched[key], of_file[key])
    return names


def _of_one_file(activities: pd.DataFrame, launches: pd.DataFrame, operators: pd.DataFrame) -> pd.Series[str]:
    result = pd.Series(pd.NA, index=activities.index, dtype="string")
    place = pd.Index(launches["correlation"]).get_indexer(activities["correlation"].fillna(_NONE).astype("int64"))
    thread = launches["thread"].to_numpy()[place]
    times = launches["start_ns"].to_numpy()[place]
    for number, of_thread in operators.groupby("thread"):
        here = (place >= 0) & (thread == number)
        if not here.any():
            continue
        ordered = of_thread.assign(end_ns=of_thread["start_ns"] + of_thread["dur_ns"]).sort_values(
            ["start_ns", "end_ns"], ascending=[True, False], kind="stable"
        )
        inner = innermost(ordered["start_ns"].to_numpy(), ordered["end_ns"].to_numpy(), times[here])
        names = ordered["name"].astype("string").array.take(inner, allow_fill=True)
        result[here] = names
    return result


def innermost(starts: Ints, ends: Ints, times: Ints) -> Ints:
    """Index of the interval [starts[i], ends[i]] around each time that began last, -1 for none.

    The intervals are in order of start, equal ones by decreasing length, as nested operators of a thread are.
    """
    around = enclosing(starts, ends)
    index = np.searchsorted(starts, times, side="right") - 1
    while True:
        over = (index >= 0) & (ends[index] < times)
        if not over.any():
            return index
        index[over] = around[index[over]]


def names_around(events: pd.DataFrame, thread: Ints, times: Ints) -> pd.Series[str]:
    """The name of the innermost of the events around each time of a thread, NA for none."""
    around = pd.Series(pd.NA, index=range(len(times)), dtype="string")
    of_thread = bare(events["thread"])
    for number in np.unique(thread):
        here, of_this_thread = thread == number, events[of_thread == number]
        starts = of_this_thread["start_ns"].to_numpy()
        ends = starts + of_this_thread["dur_ns"].to_numpy()
        at = np.sort(times[here])
        # Only those that contain a call: of all operators of a thread there may be a hundred thousand.
        used = np.searchsorted(at, ends, side="left") > np.searchsorted(at, starts, side="left")
        if not used.any():
            continue
        starts, ends, names = starts[used], ends[used], of_this_thread["name"].astype("string").array[used]
        order = np.lexsort((-ends, starts))
        # In traces with whole microseconds a call often begins when the operator before it ends: that is not around it.
        inner = innermost(starts[order], ends[order] - 1, times[here])
        around[here] = names[order].take(inner, allow_fill=True)
    return around


def enclosing(starts: Ints, ends: Ints) -> Ints:
    """Index of the last earlier interval that has not ended when each interval starts, -1 for none.

    The intervals are in order of start.
    """
    index = np.arange(len(starts)) - 1
    rest = np.arange(1, len(starts))
    while len(rest):
        rest = rest[ends[index[rest]] < starts[rest]]
        # Whatever lies between an interval and its own index has ended before it started, so before these did.
        index[rest] = index[index[rest]]
        rest = rest[index[rest] >= 0]
    return index
