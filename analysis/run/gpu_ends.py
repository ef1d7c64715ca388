"""Notice files whose GPU part ends before their program, or begins after it: Kineto loses records silently.

The profiler waits for the device before it ends. So in a sound file the first and the last calls that launched
something have their activities, and a GPU is active about equally far into each step. As Kineto records calls in the
same buffers, they may be missing, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core import markers
from ..core.intervals import Times
from ..core.schema import Row
from ..recording.values import MISSING

# A few calls prove nothing: what is launched while the profiler ends may be missed.
_LEAST_CALLS = 10
# Some calls never launch anything: that many times the longest row of these must be at the end.
_LONGER = 2
# Kernels at the beginning: there, the profiler sees what it saw launched.
_LEAST_FIRST = 3
_LEAST_REACH_FRAC = 0.5
# Shorter than this part of the others, the last step is what the profiler opened before it was stopped.
_LEAST_STEP_FRAC = 0.5
# From there what a CPU did before a device's first activity is worth saying.
_LONG_NS, _LONG_FRAC = 10_000_000, 0.1
_CUT = "its GPU side ends early; if the profiler's buffers were full, trace fewer steps"


_LATE = "its GPU side begins late"


class Called(NamedTuple):
    """Runtime calls that may have launched something: times and ids, as arrays of one length."""

    start_ns: Times
    correlation: Times
    external_id: Times


class Unshown(NamedTuple):
    """When calls launched the first and the last activities, which the file does not show; empty in a sound file.

    Of these calls, elsewhere at least one of `calls_each` has an activity.
    """

    first_ns: Times
    last_ns: Times
    calls_each: int = 1


def missing_ends(activities: pd.DataFrame, called: Called, collectives: Collection[int]) -> Unshown:
    """The calls whose activities are missing at the ends of a file.

    `collectives` are the external ids of collectives: one that hangs holds up all activities behind it.
    """
    order = np.argsort(called.start_ns, kind="stable")
    ran = activities["correlation"].to_numpy(dtype=np.int64, na_value=MISSING)
    ran, correlation, start_ns = ran[ran != MISSING], called.correlation[order], called.start_ns[order]
    nothing = Unshown(start_ns[:0], start_ns[:0])
    if all(np.isin(ran, ends).any() for ends in (correlation[:_LEAST_FIRST], correlation[-_LEAST_CALLS:])):
        return nothing  # fewer are missing than prove anything, so the others need not be looked up
    made = np.isin(correlation, ran)
    at = np.flatnonzero(made)
    if not len(at):
        return nothing
    calls_each, first, last = int(np.diff(at).max(initial=1)), int(at[0]), len(made) - 1 - int(at[-1])
    first = first if first >= _LEAST_FIRST * calls_each else 0
    hangs = last > 0 and int(called.external_id[order][at[-1] + 1]) in collectives
    last = last if last >= max(_LEAST_CALLS, _LONGER * (calls_each - 1)) and not hangs else 0
    return Unshown(start_ns[:first], start_ns[len(made) - last :], calls_each)


def cut_notes(activities: pd.DataFrame, missing: Unshown, annotations: Sequence[Row]) -> Iterator[str]:
    """Yield the signs that a file's GPU activities begin late or end early; nothing for a sound file.

    `annotations` are rows of that table.
    """
    if not len(activities):
        return
    if len(missing.first_ns):
        least, count = "at least " if missing.calls_each > 1 else "", len(missing.first_ns) // missing.calls_each
        yield f"{least}the first {count:,} kernels and copies that were launched are not in it: {_LATE}"
    if len(missing.last_ns):
        yield f"the last {len(missing.last_ns):,} kernels and copies that were launched are not in it: {_CUT}"
        return
    start_ns = activities["start_ns"].to_numpy()
    end_ns = start_ns + activities["dur_ns"].to_numpy()
    steps, last_ns = _whole_steps(annotations), int(end_ns.max())
    if _goes_on(annotations, steps, last_ns) and _falls_behind(start_ns, end_ns, steps):
        before_ms = (int(steps[-1, 1]) - last_ns) / 1e6
        yield f"the GPU's last activity ends {before_ms:,.1f} ms before the last step, and the program goes on: {_CUT}"


def before_first_activity(activities: pd.DataFrame, calls: pd.DataFrame, operators: pd.DataFrame) -> Iterator[str]:
    """Yield what the CPU did before the first activity of a device, if that is long: such as loading modules.

    Windows begin with activities, or with steps: most of it may be in no table. `calls` are those of the runtime.
    """
    begins = [int(table["start_ns"].min()) for table in (calls, operators) if len(table)]
    if not len(activities) or not begins:
        return
    first_ns = int(activities["start_ns"].min())
    last_ns = int((activities["start_ns"] + activities["dur_ns"]).max())
    before_ns = first_ns - min(begins)
    if before_ns < max(_LONG_NS, _LONG_FRAC * (last_ns - first_ns)):
        return
    longest = ""
    for table in (calls, operators):  # a call says more than the operators around it
        within = np.minimum(table["start_ns"] + table["dur_ns"], first_ns) - table["start_ns"]
        if len(table) and within.max() >= before_ns / 2:
            longest = f", {within.max() / 1e6:,.1f} ms of it in one {table['name'].iloc[int(within.argmax())]}"
            break
    yield f"its CPU had worked for {before_ns / 1e6:,.1f} ms before a device's first activity{longest}"


def _whole_steps(annotations: Sequence[Row]) -> Times:
    """Start and end of the marked steps, in order."""
    spans = sorted(
        (a["start_ns"], a["start_ns"] + a["dur_ns"]) for a in annotations if a["name"].startswith(markers.PROFILER_STEP)
    )
    steps = np.array(spans, dtype=np.int64).reshape(-1, 2)
    lengths = steps[:, 1] - steps[:, 0]
    is_rest = len(steps) > 1 and lengths[-1] < _LEAST_STEP_FRAC * np.median(lengths[:-1])
    return steps[:-1] if is_rest else steps


def _goes_on(annotations: Sequence[Row], steps: Times, last_ns: int) -> bool:
    """Whether the program begins a step, or enough other marked work, after the GPU has ended."""
    steering = (a for a in annotations if markers.STEERING.match(a["name"]) or a["name"].startswith(markers.C10D))
    later = sum(a["start_ns"] > last_ns for a in steering)
    return len(steps) > 0 and (bool(steps[-1, 0] > last_ns) or later >= _LEAST_CALLS)


def _falls_behind(start_ns: Times, end_ns: Times, steps: Times) -> bool:
    """Whether GPU activity ends much earlier within the last step than within the steps before."""
    order = np.argsort(start_ns, kind="stable")
    begun = np.searchsorted(start_ns[order], steps[:, 1])
    none = np.iinfo(np.int64).min // 2
    last_ns = np.append(none, np.maximum.accumulate(end_ns[order]))[begun]
    lengths: NDArray[np.int64] = np.maximum(steps[:, 1] - steps[:, 0], 1)
    reach = np.clip((last_ns - steps[:, 0]) / lengths, 0, 1)
    return len(reach) > 1 and bool(reach[-1] < _LEAST_REACH_FRAC * np.median(reach[:-1]))
