"""What exposed collectives waited for before they began. `replay/releases.py` finds it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, played
from ..core.schema import Row, Schema
from ..core.tables.columns import COLLECTIVE, DEVICE, GROUP, PARTIAL_RUN, PG_RANKS, RANK, SIZE, STEP
from ..metrics.over_steps import in_steps

if TYPE_CHECKING:
    import pandas as pd

    from ..replay.cycles import Played
    from ..replay.table import Replay

_RELEASED_BY = (
    "string",
    (
        "what came last of all it waited for: host (its launch), collective (the one before on its stream), producer "
        "(what made its input), stream (anything else before it there); NA where the trace shows none"
    ),
)

RELEASES = Schema("releases", "process group, collective, and what released its exposed calls", {
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "collective": COLLECTIVE,
    "released_by": _RELEASED_BY,
    "calls": ("int64", "calls that were exposed at all, over all ranks"),
    "exposed_ns": ("int64", "how long they ran while their devices did not compute"),
    "exposed_share_frac": ("Float64", "its share of all exposed communication of calls"),
    "median_slack_ns": ("Int64", "so much earlier their input was there, median; NA where it is not known"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

RELEASES_CALLS = Schema("releases_calls", "exposed collective call, and what released it", {
    "rank": RANK,
    "device": DEVICE,
    "step": STEP,
    "stream": ("Int64", "stream; on CPU runs the thread"),
    "collective_id": ("Int64", "collective; NA if it was not matched"),
    "collective": COLLECTIVE,
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "size_bytes": SIZE,
    "start_ns": ("int64", "when it began, on the common clock"),
    "exposed_ns": ("int64", "how long it ran while its device did not compute"),
    "waited_for": ("Int64", "rank that it then waited for; NA if for none, or if that is not known"),
    "released_by": _RELEASED_BY,
    "released_name": ("string", "the activity that did; NA of the host"),
    "since_launch_ns": ("Int64", "so long before it began it was launched; NA where the launch is not in the trace"),
    "since_before_ns": ("Int64", "so long before it began the one before on its stream had ended; NA for the first"),
    "slack_ns": ("Int64", "so long before it began its input was there; NA where it is not known what made it"),
    "earliest_ns": ("Int64", "start_ns - slack_ns: when it could have begun, launched in time on a stream of its own"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

_KEYS = ["process_group", "pg_ranks", "collective", "released_by"]


@TableEntry(
    RELEASES,
    Topic.waiting,
    "What exposed collectives waited for before they began.",
    "releases.md#what-released-a-collective",
    command="table releases",
    after="critical_path_pieces",
    none_found="no communication is exposed",
    none_measured="no communication is exposed",
    narrow=(
        "process_group", "collective", "released_by", "calls", "exposed_ns", "exposed_share_frac", "median_slack_ns",
        "pg_ranks",
    ),
    in_steps=True,
)  # fmt: skip
@played
def releases(releases_calls: pd.DataFrame, counted_steps: Collection[int]) -> pd.DataFrame:
    """One row per process group, collective, and what released its exposed calls. Needs `details`.

    The most exposed are first.
    """
    exposed = in_steps(releases_calls, counted_steps)
    whole = int(exposed["exposed_ns"].sum())
    rows: list[Row] = []
    for keys, alike in exposed.groupby(_KEYS, dropna=False, sort=False):
        slack = alike["slack_ns"].dropna()
        exposed_ns = int(alike["exposed_ns"].sum())
        rows.append(
            dict(zip(_KEYS, keys, strict=True))
            | {
                "calls": len(alike),
                "exposed_ns": exposed_ns,
                "exposed_share_frac": exposed_ns / whole if whole else None,
                "median_slack_ns": int(slack.median()) if len(slack) else None,
            }
        )
    return RELEASES.frame(rows).sort_values("exposed_ns", ascending=False, kind="stable", ignore_index=True)


@TableEntry(
    RELEASES_CALLS,
    Topic.waiting,
    "The same, call by call.",
    "releases.md#call-by-call",
    command="table releases --by call",
    shown=(
        "rank", "step", "collective", "size_bytes", "exposed_ns", "released_by", "released_name", "since_launch_ns",
        "since_before_ns", "slack_ns", "process_group", "waited_for", "partial",
    ),
    none_found="no communication is exposed",
    none_measured="no communication is exposed",
    narrow=(
        "rank", "step", "collective", "exposed_ns", "released_by", "slack_ns", "since_launch_ns", "since_before_ns",
    ),
)  # fmt: skip
def releases_calls(replayed: Replay, played_tables: Played) -> pd.DataFrame:
    """One row per exposed collective call: what released it, and how much earlier it could have begun.

    The longest exposed are first.
    """
    from ..replay.releases import released_calls

    found = released_calls(replayed.measured, played_tables)
    return RELEASES_CALLS.conform(found.reindex(columns=list(RELEASES_CALLS.columns)))
