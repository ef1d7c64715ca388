"""Wait and transfer of every rank in every collective. `metrics/waiting.py` tells them apart."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, value
from ..core.schema import Schema
from ..core.tables.columns import STEP
from ..core.tables.communication import MEMBERS
from .collectives import COLLECTIVES

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.device.breakdown import Devices
    from ..run.run import Run

PARTICIPATION = Schema(
    "participation",
    "collective and rank",
    {
        "collective_id": MEMBERS.columns["collective_id"],
        **{column: COLLECTIVES.columns[column] for column in ("collective", "process_group", "size_bytes")},
        "step": STEP,
        **MEMBERS.columns,
    },
)

_LOG = logging.getLogger("commtrace.analysis")
_EXPOSED = ["exposed_wait_ns", "exposed_transfer_ns", "exposed_wait_low_ns"]


@value
def world_size_at_most(run: Run) -> int | None:
    """Number of ranks of the job; if no file says it, and calls may be missing in a damaged one, of those seen."""
    return len(run.ranks) if run.world_size is None and run.partial_ranks else run.world_size


@value
def split_calls(
    calls: pd.DataFrame, matches: pd.DataFrame, clocks: pd.DataFrame, world_size_at_most: int | None
) -> pd.DataFrame:
    """Wait and transfer of each call, without what computing hid of them."""
    from ..metrics.waiting import waits_and_transfers

    return waits_and_transfers(calls, matches, clocks, world_size_at_most)


@value
def believed_splits(run: Run, split_calls: pd.DataFrame) -> pd.DataFrame:
    """The same; none of a single device that is not the whole job, whose calls lack their partners."""
    return MEMBERS.empty() if run.world_size != 1 and len(run.devices) <= 1 else split_calls


@value
def members(run: Run, split_calls: pd.DataFrame, seen_devices: Devices) -> pd.DataFrame:
    """The participation without columns of other tables, with which it is merged."""
    from ..metrics.device.breakdown import exposed

    _LOG.info("telling what communication compute hid")
    if not run.has_starts:
        return split_calls
    found = exposed(split_calls, seen_devices)
    # What a rank computed in the meantime is not known if its file is damaged.
    is_unknown = found["rank"].isin(run.partial_ranks)
    return found.assign(**{column: found[column].mask(is_unknown) for column in _EXPOSED})


@TableEntry(
    PARTICIPATION,
    Topic.waiting,
    "Wait and transfer of every rank in every collective.",
    "wait-and-transfer.md#wait-transfer-and-arrival",
    command="table participation",
    after="collectives",
    shown=(
        "collective_id", "collective", "process_group", "size_bytes", "step", "rank", "arrived_ns", "dur_ns",
        "wait_ns", "transfer_ns", "wait_clock_free_ns", "late_ns", "exposed_wait_ns", "exposed_transfer_ns",
        "partial",
    ),
    narrow=(
        "collective_id", "collective", "size_bytes", "step", "rank", "wait_ns", "transfer_ns", "exposed_wait_ns",
        "exposed_transfer_ns", "dur_ns", "late_ns", "process_group",
    ),
)  # fmt: skip
def participation(members: pd.DataFrame, calls: pd.DataFrame, collectives: pd.DataFrame) -> pd.DataFrame:
    """One row per collective and rank: wait and transfer, and which collective it is, of what size, in which step."""
    of_collective = collectives.set_index("collective_id")[["collective", "process_group", "size_bytes"]]
    of_call = calls.set_index("call_id")[["step"]]
    return PARTICIPATION.conform(members.join(of_collective, on="collective_id").join(of_call, on="call_id"))
