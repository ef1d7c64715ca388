"""Whose a moment of a device is: its time, divided among the regions in which its work was launched.

The parts are those of the breakdown. Each moment of a window belongs to one activity or gap, and so to one region:

- compute, copies and communication that could not be split: to the activity that runs; of several at once, to the one
  that began first
- exposed transfer: likewise to the call that moves data
- exposed wait: to the call that waits; of several at once, to the one whose wait ends last, as in the breakdown
- idle: to the activity that ends the gap, as in `gaps`; on runs without a GPU to where its thread was meanwhile

Hidden communication overlaps compute, so it has a column of its own, and is no part of the sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...core.arrays import Flags, Ints
from ...core.intervals import Spans, Times, covered, intersect, spans, subtract, union
from ...core.kinds import COMM, MEMORY
from ...core.schema import bare
from ...core.steps import NO_STEP, Window
from ..device.breakdown import HeldWaits
from ..device.idle import Host, gaps_of

SELF_PARTS = ("compute", "exposed_transfer", "exposed_wait", "exposed_unsplit", "exposed_memory", "idle")
"""Parts that add up to the window."""
BESIDE = "hidden"

_NEVER = np.iinfo(np.int64).max


class Owned(NamedTuple):
    """Intervals and whose each is, all of shape (n,)."""

    starts: Times
    ends: Times
    owner: Ints


class SplitCalls(NamedTuple):
    """The calls of a device that could be split: they wait from `starts` to `moving`, and move data until `ends`."""

    starts: Times
    moving: Times
    ends: Times
    owner: Ints


class DeviceTime(NamedTuple):
    """The time of a device in one cycle by window and owner, of shape (pieces,) each; several pieces may have both.

    `window` is a position in `windows`, `ns` the time by part. `unsplit` says of each window whether it has exposed
    communication of which nothing could be split.
    """

    windows: list[Window]
    window: Ints
    owner: Ints
    ns: dict[str, Times]
    unsplit: Flags


def time_by_owner(
    activities: pd.DataFrame,
    windows: list[Window],
    owner: Ints,
    computing: Owned,
    calls: SplitCalls,
    idle: Owned,
) -> DeviceTime:
    """Divide the time of one device in one cycle among owners, step by step, or as a whole if no step is marked.

    `windows` are those of the steps of its process.
    `owner` is that of each activity, of shape (activities,); `computing` are the stretches of compute, and `idle` those
    in which nothing ran.
    """
    start = activities["start_ns"].to_numpy()
    end = start + activities["dur_ns"].to_numpy()
    kinds = bare(activities["kind"])
    windows = windows or [Window(NO_STEP, int(start.min()), int(end.max()))]
    of_comm, of_memory = (Owned(start[rows], end[rows], owner[rows]) for rows in (kinds == COMM, kinds == MEMORY))
    compute = spans(computing.starts, computing.ends)
    comm, memory = (spans(each.starts, each.ends) for each in (of_comm, of_memory))
    exposed = subtract(comm, compute)
    transfer, waiting = spans(calls.moving, calls.ends), spans(calls.starts, calls.moving)
    held = HeldWaits.of(np.arange(len(calls.owner)), calls.starts, calls.moving)
    pieces = {
        "compute": (_first_come(computing), compute),
        "exposed_transfer": (_first_come(Owned(calls.moving, calls.ends, calls.owner)), intersect(exposed, transfer)),
        "exposed_wait": (Owned(held.starts, held.ends, calls.owner[held.call_id]), subtract(exposed, transfer)),
        "exposed_unsplit": (_first_come(of_comm), subtract(exposed, union(transfer, waiting))),
        "exposed_memory": (_first_come(of_memory), subtract(memory, union(compute, comm))),
        BESIDE: (_first_come(of_comm), intersect(comm, compute)),
        "idle": (idle, spans(idle.starts, idle.ends)),
    }
    by_part = {part: _by_window(windows, owned, within) for part, (owned, within) in pieces.items()}
    bounds = np.array([[each.start_ns, each.end_ns] for each in windows], dtype=np.int64).T
    exposed_ns, unsplit_ns = (covered(each, *bounds) for each in (exposed, pieces["exposed_unsplit"][1]))
    return DeviceTime(
        windows=windows,
        window=np.concatenate([window for window, _, _ in by_part.values()]),
        owner=np.concatenate([owners for _, owners, _ in by_part.values()]),
        ns={part: _placed(by_part, part) for part in by_part},
        unsplit=(unsplit_ns == exposed_ns) & (exposed_ns > 0),
    )


_ByWindow = tuple[Ints, Ints, Times]
"""Window, owner and time in ns, each of shape (pieces,)."""


def _placed(by_part: dict[str, _ByWindow], part: str) -> Times:
    """The time of this part, 0 for the pieces of others."""
    return np.concatenate([ns if name == part else np.zeros_like(ns) for name, (_, _, ns) in by_part.items()])


def _first_come(owned: Owned) -> Owned:
    """Make intervals disjoint: of several at once, the one that began first has the moment."""
    order = np.argsort(owned.starts, kind="stable")
    starts, ends, owner = owned.starts[order], owned.ends[order], owned.owner[order]
    if len(order):
        starts = np.maximum(starts, np.concatenate((starts[:1], np.maximum.accumulate(ends)[:-1])))
    some = ends > starts
    return Owned(starts[some], ends[some], owner[some])


def cut(owned: Owned, at: Times) -> Owned:
    """Disjoint intervals in order, cut into pieces at these moments."""
    inside = np.unique(at)
    place = np.searchsorted(owned.starts, inside, side="right") - 1
    if len(owned.starts):
        inside = inside[(place >= 0) & (inside > owned.starts[place]) & (inside < owned.ends[place])]
    else:
        inside = inside[:0]
    starts = np.sort(np.concatenate((owned.starts, inside)))
    of = np.searchsorted(owned.starts, starts, side="right") - 1
    return Owned(starts, np.minimum(owned.ends[of], np.append(starts[1:], _NEVER)[: len(starts)]), owned.owner[of])


def _by_window(windows: list[Window], owned: Owned, within: Spans) -> _ByWindow:
    """How long each of these disjoint intervals is covered in each window."""
    pieces = cut(owned, np.array([bound for each in windows for bound in each[1:]], dtype=np.int64))
    ns, window = covered(within, pieces.starts, pieces.ends), _window_at(windows, pieces.starts)
    some = (ns > 0) & (window >= 0)
    return window[some], pieces.owner[some], ns[some]


def _window_at(windows: list[Window], times: Times) -> Ints:
    """The position of the window at each time, -1 outside of all; they follow each other without gaps."""
    window = np.searchsorted([each.start_ns for each in windows], times, side="right") - 1
    return np.where(times < windows[-1].end_ns, window, -1)


def idle_time(activities: pd.DataFrame, host: Host | None, owner: Ints, windows: list[Window]) -> Owned:
    """The gaps of a device, each with the owner of the activity that ends it; `windows` are those of marked steps."""
    _, gaps = gaps_of(activities, host, windows)
    return Owned(gaps.start_ns, gaps.end_ns, owner[gaps.ender])
