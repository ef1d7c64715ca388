"""When the devices of a rank computed and copied in each step: what is drawn of their activities.

Made of each rank where its activities are, so that those of a large run need not come together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ..core.declaring import each_rank, value
from ..core.intervals import Spans, spans
from ..core.kinds import COMPUTE, MEMORY, NEXT
from ..core.schema import grouped, records
from ..core.steps import Window, windows_by_process
from ..render.plots.step import ahead_ns, coarser
from ..run.run import Run

_MOST_OF_STEP, LEAST_SPANS, MOST_SPANS = 100_000, 24, 600
"""Spans of compute, of all devices; and of one, at least and at most."""
WHOLE = -1
"""The number of the window of a run without steps."""


class DeviceSpans(NamedTuple):
    """What one device did in one step, from `begin` to `end`: its window, and all that belongs to it.

    Times are on the common clock, in ns. A device may be idle at either end, as while it waits for the first batch.
    """

    step: int
    rank: int
    device: str
    begin: int
    end: int
    compute: Spans
    copies: Spans


@value
def has_steps(run: Run) -> bool:
    """Whether any step has activity; without, the whole window is drawn."""
    return bool(run.steps)


@value
def spans_of_device(run: Run) -> int:
    """How many spans a device is drawn with: the more ranks, the fewer."""
    return min(max(_MOST_OF_STEP // max(len(run.ranks), 1), LEAST_SPANS), MOST_SPANS)


@value
@each_rank
def drawn_spans(
    activities: pd.DataFrame, clocks: pd.DataFrame, has_steps: bool, spans_of_device: int
) -> list[DeviceSpans]:
    """What each device did in each step, in at most `spans_of_device` spans of compute, and of copies."""
    known = {row["rank"]: row for row in records(clocks)}
    windows: dict[tuple[int, int], Window] = {}
    if has_steps:
        for (rank, _), of_process in windows_by_process(activities).items():
            windows |= {(rank, window.step): window for window in of_process}
    activities = activities if has_steps else activities.assign(step=WHOLE)
    activities = activities[activities["kind"] != NEXT]
    found = []
    for (rank, step, device), own in grouped(activities.dropna(subset=["step"]), ["rank", "step", "device"]):
        starts, kinds = own["start_ns"].to_numpy(), own["kind"].to_numpy()
        starts = starts - ahead_ns(known.get(rank), starts)
        ends = starts + own["dur_ns"].to_numpy()
        compute, copies = (
            coarser(spans(starts[kinds == kind], ends[kinds == kind]), spans_of_device) for kind in (COMPUTE, MEMORY)
        )
        begin, end = int(starts.min()), int(ends.max())
        if window := windows.get((rank, step)):
            edges = np.array([window.start_ns, window.end_ns])
            first, last = (edges - ahead_ns(known.get(rank), edges)).tolist()
            begin, end = min(begin, first), max(end, last)
        found.append(DeviceSpans(int(step), int(rank), device, begin, end, compute, copies))
    return found
