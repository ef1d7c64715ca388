"""Members of NCCL's communicators that joined them while traced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from ...nccl_functions import Range
from ..ranges import COMMUNICATORS, marked_ranges
from ..tables import ExportTables
from .payloads import Schemas

_JOINING = ("ncclCommInit", "ncclCommSplit", "ncclCommShrink")
_EXPORTED = "META_DATA_EXPORT"

_P = TypeVar("_P")


class Membership(NamedTuple):
    """A process in a communicator: its place, and the number of members."""

    comm: int
    ranks: int
    rank: int


class World(NamedTuple):
    """The communicator of all processes: its number of ranks."""

    comm: int
    ranks: int


def memberships_in(ranges: Iterable[Range], schemas: Schemas) -> dict[int, list[Membership]]:
    """The communicators that each process joined, from the payloads."""
    joined: dict[int, list[Membership]] = {}
    for marked in ranges:
        if marked.name.removeprefix("p").startswith(_JOINING):
            payload = schemas.payload(marked.domain, marked.payload)
            if payload.comm and payload.ranks and payload.rank is not None and payload.rank < payload.ranks:
                joined.setdefault(marked.process, []).append(Membership(payload.comm, payload.ranks, payload.rank))
    return joined


def members_in(tables: ExportTables) -> dict[int, list[Membership]]:
    """The communicators that each process of an export joined. Raises DamagedTrace, TooLarge."""
    if not has_payloads(tables):
        return {}
    schemas = Schemas(tables)
    return memberships_in(marked_ranges(tables, COMMUNICATORS), schemas) if schemas else {}


def has_payloads(tables: ExportTables) -> bool:
    """Whether the export may have payloads; False if it says that they were left out."""
    exported = {name: value for rows in tables.rows(_EXPORTED, ("name", "value")) for name, value in rows}
    return exported.get("EXPORT_PARAM_INCLUDE_BLOBS") != "false"


def ranks_by_world(joined: Mapping[_P, Iterable[Membership]]) -> tuple[World, dict[_P, int]] | None:
    """The largest communicator in which each process has its own place, and these places; None without one."""
    places: dict[World, dict[_P, int]] = {}
    for process, memberships in joined.items():
        for membership in memberships:
            places.setdefault(World(membership.comm, membership.ranks), {})[process] = membership.rank
    common = [
        (world, ranks) for world, ranks in places.items() if len(ranks) == len(joined) == len(set(ranks.values()))
    ]
    return max(common, key=lambda found: found[0].ranks, default=None)


def known_groups(joined: Mapping[_P, Iterable[Membership]], rank_of: Mapping[_P, int]) -> dict[int, tuple[int, ...]]:
    """Global ranks, in order of their places, of each communicator whose members are all known."""
    places: dict[tuple[int, int], dict[int, int]] = {}
    for process, memberships in joined.items():
        for membership in memberships:
            if process in rank_of:
                places.setdefault((membership.comm, membership.ranks), {})[membership.rank] = rank_of[process]
    return {comm: tuple(ranks[n] for n in range(size)) for (comm, size), ranks in places.items() if len(ranks) == size}
