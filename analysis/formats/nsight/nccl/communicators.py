"""Which processes are members of which communicators of NCCL, as far as they joined them while they were traced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from ..ranges import COMMUNICATORS, Range, marked_ranges
from ..tables import ExportTables
from .payloads import Schemas

_JOINING = ("ncclCommInit", "ncclCommSplit", "ncclCommShrink")
_EXPORTED = "META_DATA_EXPORT"

_P = TypeVar("_P")


class Membership(NamedTuple):
    """A process that joined a communicator: its place there, and how many there are."""

    comm: int
    ranks: int
    rank: int


class World(NamedTuple):
    """The communicator that all processes are in: how many ranks it has."""

    comm: int
    ranks: int


def members(ranges: Iterable[Range], schemas: Schemas) -> dict[int, list[Membership]]:
    """The communicators that each process joined, as far as payloads tell."""
    found: dict[int, list[Membership]] = {}
    for one in ranges:
        if one.name.removeprefix("p").startswith(_JOINING):
            payload = schemas.payload(one.domain, one.payload)
            if payload.comm and payload.ranks and payload.rank is not None and payload.rank < payload.ranks:
                found.setdefault(one.process, []).append(Membership(payload.comm, payload.ranks, payload.rank))
    return found


def members_in(tables: ExportTables) -> dict[int, list[Membership]]:
    """The same for all processes of an export. Raises DamagedTrace, TooLarge."""
    if not has_payloads(tables):
        return {}
    schemas = Schemas(tables)
    return members(marked_ranges(tables, COMMUNICATORS), schemas) if schemas else {}


def has_payloads(tables: ExportTables) -> bool:
    """Whether payloads may be in the export; False if it says that they were left out."""
    exported = {name: value for rows in tables.rows(_EXPORTED, ("name", "value")) for name, value in rows}
    return exported.get("EXPORT_PARAM_INCLUDE_BLOBS") != "false"


def ranks_by_world(joined: Mapping[_P, Iterable[Membership]]) -> tuple[World, dict[_P, int]] | None:
    """The largest communicator in which each process has a place of its own, and these places; None without one."""
    places: dict[World, dict[_P, int]] = {}
    for process, own in joined.items():
        for one in own:
            places.setdefault(World(one.comm, one.ranks), {})[process] = one.rank
    common = [
        (world, ranks) for world, ranks in places.items() if len(ranks) == len(joined) == len(set(ranks.values()))
    ]
    return max(common, key=lambda found: found[0].ranks, default=None)


def known_groups(joined: Mapping[_P, Iterable[Membership]], rank_of: Mapping[_P, int]) -> dict[int, tuple[int, ...]]:
    """The global ranks of each communicator all of whose members are known, by their places in it."""
    places: dict[tuple[int, int], dict[int, int]] = {}
    for process, own in joined.items():
        for one in own:
            if process in rank_of:
                places.setdefault((one.comm, one.ranks), {})[one.rank] = rank_of[process]
    return {comm: tuple(found[n] for n in range(size)) for (comm, size), found in places.items() if len(found) == size}
