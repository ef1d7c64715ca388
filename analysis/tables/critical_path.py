"""The chain of work over all ranks that sets the length of the run. `replay/critical.py` finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, played, value
from ..core.schema import Schema
from ..core.tables.columns import PARTIAL_RUN, RANK

if TYPE_CHECKING:
    import pandas as pd

    from ..replay.critical import CriticalPath
    from ..replay.cycles import Played
    from ..replay.table import Replay
    from ..run.run import Run

_LINK = (
    "string",
    "compute, copy, transfer, unsplit (transfer or wait), cpu (before launches), launch (until it began)",
)

CRITICAL_PATH = Schema("critical_path", "rank and kind of link on the critical path", {
    "rank": RANK,
    "kind": _LINK,
    "dur_ns": ("int64", "how long the critical path runs through it, mean over steps"),
    "share_frac": ("Float64", "its share of the critical path"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

CRITICAL_PATH_STEPS = Schema("critical_path_steps", "step, rank and kind of link on the critical path", {
    "step": ("int64", "number of the step; 0 if none are marked"),
    "rank": RANK,
    "kind": _LINK,
    "dur_ns": ("int64", "how long the critical path runs through it"),
    "share_frac": ("Float64", "its share of the critical path in this step"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

CRITICAL_PATH_PIECES = Schema("critical_path_pieces", "long piece of the critical path, ten of each step", {
    "step": ("int64", "number of the step; 0 if none are marked"),
    "rank": RANK,
    "kind": _LINK,
    "name": ("string", "its longest activity; of cpu the outermost operator, NA for none; NA of launch"),
    "start_ns": ("int64", "when it begins, on the common clock"),
    "dur_ns": ("int64", "how long it is: links of one kind that follow each other on a rank are one piece"),
    "share_frac": ("Float64", "its share of the critical path in this step"),
    "activities": ("int64", "how many activities it consists of"),
    "waiting_rank": ("Int64", "rank that waited for its end; NA where the path stays on its rank"),
    "partial": PARTIAL_RUN,
})  # fmt: skip


@value
@played
def path(replayed: Replay, played_tables: Played) -> CriticalPath:
    """The chain of work that sets the length of the run. Raises NothingMeasured."""
    from ..replay.critical import CriticalPath

    return CriticalPath.of(replayed.measured, played_tables)


@TableEntry(
    CRITICAL_PATH,
    Topic.foresight,
    "The chain of work over all ranks that sets the run's length.",
    "critical-path.md#the-critical-path",
    command="table critical-path",
    after="attribution",
    negligible=("share_frac",),
    none_measured="nothing ran on a device",
)
def critical_path(path: CriticalPath) -> pd.DataFrame:
    """One row per rank and kind of link: how long the critical path runs through it. Needs `details`."""
    return CRITICAL_PATH.frame(path.by_rank())


@TableEntry(
    CRITICAL_PATH_STEPS,
    Topic.foresight,
    "The critical path by step.",
    "critical-path.md#the-critical-path",
    command="table critical-path --by step",
    negligible=("share_frac",),
    none_measured="nothing ran on a device",
)
def critical_path_steps(path: CriticalPath) -> pd.DataFrame:
    """One row per rank, kind of link and step: its part of the critical path. Needs `details`."""
    return CRITICAL_PATH_STEPS.frame(path.by_step())


@TableEntry(
    CRITICAL_PATH_PIECES,
    Topic.foresight,
    "The ten longest pieces of the critical path in every step.",
    "critical-path.md#pieces",
    command="table critical-path --by piece",
    negligible=("share_frac",),
    none_measured="nothing ran on a device",
    narrow=("step", "rank", "kind", "dur_ns", "share_frac", "name", "waiting_rank"),
)
@played
def critical_path_pieces(run: Run, path: CriticalPath, clocks: pd.DataFrame) -> pd.DataFrame:
    """One row per long piece of the critical path, ten of each step."""
    return CRITICAL_PATH_PIECES.conform(path.longest(run.cpu_operators, clocks))
