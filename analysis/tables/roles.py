"""Process groups with their roles, and ranks with their places in the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic
from ..core.schema import Schema
from ..core.tables.columns import GROUP, PARTIAL, PARTIAL_MEMBER, PG_RANKS, PLACE, RANK, ROLE
from ..metrics.roles.names import COORDINATES

if TYPE_CHECKING:
    import pandas as pd

    from ..run.run import Run

GROUPS = Schema("groups", "process group", {
    "process_group": GROUP,
    "group": ("string", "what it is, in words, such as `the tensor-parallel group of ranks 4-7`"),
    "role": ROLE,
    "role_from": ("string", "description or calls: how that is known"),
    "because": ("string", "what the calls tell, or why they tell nothing"),
    "description": ("string", "description that the program gave it"),
    "pg_ranks": PG_RANKS,
    "group_size": ("Int64", "ranks in the process group"),
    "calls": ("int64", "calls of all ranks with a trace"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip

PLACES = Schema("places", "rank", {
    "rank": RANK,
    "place": PLACE,
    "tp": ("Int64", "tensor parallelism: its place in its group, from 0; NA if there is no such group"),
    "cp": ("Int64", "likewise of context parallelism"),
    "pp": ("Int64", "likewise of the pipeline: its stage"),
    "dp": ("Int64", "likewise of data parallelism: its replica; with sharding, replica * shards + shard"),
    "ep": ("Int64", "likewise of the experts"),
    "partial": PARTIAL,
})  # fmt: skip


@TableEntry(
    GROUPS,
    Topic.communication,
    "What each process group is for: tensor, data, pipeline parallel ...",
    "roles.md#process-groups",
    command="table groups",
    after="ranks",
    shown=(
        "process_group",
        "group",
        "role",
        "role_from",
        "because",
        "description",
        "group_size",
        "calls",
        "partial",
    ),
    narrow=("group", "role", "because", "role_from", "calls", "process_group"),
    none_measured="no trace lists process groups, and no call names one",
)
def groups(run: Run, calls: pd.DataFrame) -> pd.DataFrame:
    """One row per process group: what it is for, by its description or by its calls."""
    from ..metrics.roles.table import group_roles, windows_of_steps

    windows = {(ran.rank, ran.cycle): (ran.step_began_ns, ran.ended_ns) for ran in run.tables.ran}
    return GROUPS.frame(group_roles(run.process_groups, calls, windows_of_steps(windows)))


@TableEntry(
    PLACES,
    Topic.communication,
    "Where each rank is in the job: its place in every dimension.",
    "roles.md#places-of-ranks",
    command="table places",
    optional=("place", *COORDINATES),
)
def places(run: Run, groups: pd.DataFrame) -> pd.DataFrame:
    """One row per rank: its place in each dimension of the job's layout."""
    from ..metrics.roles.table import rank_places

    return PLACES.frame(rank_places(run.ranks, groups))
