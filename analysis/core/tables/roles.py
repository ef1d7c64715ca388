"""Tables of process groups with their roles, and of ranks with their places in the job."""

from __future__ import annotations

from ..schema import Schema
from .columns import GROUP, PARTIAL, PARTIAL_MEMBER, PG_RANKS, PLACE, RANK, ROLE

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

COORDINATES = ("tp", "cp", "pp", "dp", "ep")
"""Columns of `places` with a place each."""

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
