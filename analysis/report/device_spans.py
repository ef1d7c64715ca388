"""When the devices of a rank computed and copied in each step: what is drawn of their activities.

Made of each rank where its activities are, so that those of a large run need not come together.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from ..core.intervals import Spans, spans
from ..core.kinds import COMPUTE, MEMORY, NEXT
from ..core.schema import Row, grouped, records
from ..render.plots.step import ahead_ns, coarser
from ..results.analysis import Analysis
from ..run.event_tables import EventTables

_LOG = logging.getLogger("commtrace.analysis")
WHOLE = -1
"""The number of the window of a run without steps."""


class DeviceSpans(NamedTuple):
    """What one device did in one step, from `begin` to `end`; times are on the common clock, in ns."""

    step: int
    rank: int
    device: str
    begin: int
    end: int
    compute: Spans
    copies: Spans


def drawn_spans(analysis: Analysis, most: int) -> Iterator[DeviceSpans]:
    """Yield what each device did in each step, rank by rank, in at most so many spans of compute, and of copies."""
    _LOG.info("drawing steps")
    clocks = {row["rank"]: row for row in records(analysis.clocks)}
    has_steps, tables = bool(analysis.run.steps), analysis.run.tables
    given = {ran.rank: (clocks.get(ran.rank), has_steps, most) for ran in tables.ran}
    for found in tables.by_rank(_of_rank, given):
        yield from found


def _of_rank(tables: EventTables, clock: Row | None, has_steps: bool, most: int) -> list[DeviceSpans]:
    activities = tables.activities if has_steps else tables.activities.assign(step=WHOLE)
    activities = activities[activities["kind"] != NEXT]
    found = []
    for (rank, step, device), own in grouped(activities.dropna(subset=["step"]), ["rank", "step", "device"]):
        starts, kinds = own["start_ns"].to_numpy(), own["kind"].to_numpy()
        starts = starts - ahead_ns(clock, starts)
        ends = starts + own["dur_ns"].to_numpy()
        compute, copies = (
            coarser(spans(starts[kinds == kind], ends[kinds == kind]), most) for kind in (COMPUTE, MEMORY)
        )
        found.append(DeviceSpans(int(step), int(rank), device, int(starts.min()), int(ends.max()), compute, copies))
    return found
