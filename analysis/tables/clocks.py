"""How far each rank's clock is off, and how uncertain that is. `metrics/clocks/table.py` estimates it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, Worst
from ..core.schema import Schema
from ..core.tables.columns import RANK

if TYPE_CHECKING:
    import pandas as pd

    from ..run.run import Run

CLOCKS = Schema("clocks", "rank", {
    "rank": RANK,
    "host": ("string", "host name; ranks of one host share a clock"),
    "linked": (
        "int64",
        "first of the ranks whose clocks can be compared with this one, through common collectives or the clock probe",
    ),
    "offset_ns": ("int64", "how far its clock is ahead of that rank's"),
    "drift_ppm": ("float64", "how much faster it runs, in millionths"),
    "origin_ns": ("int64", "the time at which the offset holds"),
    "uncertainty_ns": ("int64", "offset and drift may be wrong by this much, anywhere in the window"),
    "bends": (
        "string",
        "where it jumped or did not run evenly: `time:ns`, by how much it is further ahead then, `>` across a jump",
    ),
    "bent_uncertainty_ns": ("int64", "with that taken into account as well, times may be wrong by this much"),
    "probe_offset_ns": ("Int64", "what the clock probe alone says, at the first start; NA where it did not measure"),
    "probe_uncertainty_ns": ("Int64", "that offset may be wrong by this much, anywhere in the window"),
    "basis": ("string", "how the offset is known"),
    "partial": ("boolean", "a file of this rank, or of the one it is compared with, is damaged"),
})  # fmt: skip


@TableEntry(
    CLOCKS,
    Topic.waiting,
    "How far each rank's clock is off, and how uncertain that is.",
    "clocks.md#where-offsets-come-from",
    command="table clocks",
    after="hang_stacks",
    shown=(
        "rank", "host", "offset_ns", "drift_ppm", "uncertainty_ns", "probe_offset_ns", "probe_uncertainty_ns",
        "basis", "partial",
    ),
    narrow=("rank", "host", "offset_ns", "uncertainty_ns", "basis", "drift_ppm"),
    worst=Worst("uncertainty_ns"),
)  # fmt: skip
def clocks(run: Run, calls: pd.DataFrame, matches: pd.DataFrame) -> pd.DataFrame:
    """One row per rank: how far its clock is ahead of the first linked rank's, and how uncertain that is."""
    from ..metrics.clocks.table import rows_without_starts

    if not run.has_starts:
        return CLOCKS.frame(rows_without_starts(run.hosts))
    return compared_clocks(calls, matches, run.hosts, run.clock_probes, run.sharing)


def compared_clocks(
    calls: pd.DataFrame,
    matches: pd.DataFrame,
    hosts: Mapping[int, str | None],
    probes: pd.DataFrame | None = None,
    sharing: Collection[int] = (),
) -> pd.DataFrame:
    """The clocks of a run that says when calls began; `sharing` are ranks that share a GPU."""
    from ..metrics.clocks.table import clock_rows

    return CLOCKS.frame(clock_rows(calls, matches, hosts, probes, sharing))
