"""Which collectives run over which links, and how much of their time is latency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from ...common.nccl_tests import POINT_TO_POINT, ROOTED, SYNCHRONISING
from ..core.schema import records
from ..errors import NothingMeasured
from ..metrics.latency import SIZES, UNBOUNDED, Bounds, Place, latency_bounds, place_of

BETWEEN = "between"
"""Groups whose ranks are on several hosts."""
_GROUP = ["process_group", "pg_ranks", "collective"]


@dataclass(frozen=True)
class Links:
    """The tables of a run about its links, the host of each rank, and whether NCCL moves the data."""

    collectives: pd.DataFrame
    fits: pd.DataFrame
    hosts: Mapping[int, str | None]
    nccl: bool = False


class Linked(NamedTuple):
    """A collective of a process group: its size in bytes, and its fitted latency in ns, None without a fit.

    `bounds` are those of its latency; `members` the ranks that move the data, two for a message.
    """

    collective: str
    group: str | None
    ranks: tuple[int, ...]
    size_bytes: int | None
    latency_ns: float | None
    bounds: Bounds
    members: tuple[int, ...]

    @property
    def is_known(self) -> bool:
        """Whether the trace says which kind of collective it is."""
        return self.collective in {*SYNCHRONISING, *ROOTED, *POINT_TO_POINT}

    @property
    def is_fitted(self) -> bool:
        """Whether its latency comes from a fit over sizes."""
        return self.bounds.of == SIZES


def links_of(links: Links, group: str = "") -> dict[int, Linked]:
    """Collectives of a process group, of all groups over several hosts (`between`), or of all, by number.

    Raises NothingMeasured where there is no such group.
    """
    collectives = links.collectives
    if group == BETWEEN:
        collectives = collectives[
            collectives["ranks"].map(lambda ranks: _spans_hosts(str(ranks), links.hosts)).astype(bool)
        ]
    elif group:
        collectives = collectives[collectives["process_group"] == group]
    if not len(collectives):
        known = ", ".join(sorted(map(str, links.collectives["process_group"].dropna().unique())))
        missing = {"": "collective", BETWEEN: "collective over several hosts"}.get(group, f"process group {group!r}")
        raise NothingMeasured(f"the traces show no {missing}{f'; there are the groups {known}' if known else ''}")
    columns = ["collective_id", *_GROUP, "ranks", "size_bytes"]
    fitted = collectives[columns].merge(links.fits[[*_GROUP, "latency_us"]], on=_GROUP, how="left")
    bounds = latency_bounds(links.collectives, links.hosts, nccl=links.nccl)
    return {row["collective_id"]: _linked(row, bounds) for row in records(fitted)}


def _linked(row: Mapping[str, object], bounds: Mapping[Place, Bounds]) -> Linked:
    ranks = tuple(sorted(int(rank) for rank in str(row["pg_ranks"] or row["ranks"]).split()))
    latency, size = row["latency_us"], row["size_bytes"]
    is_message = row["collective"] in POINT_TO_POINT
    place = place_of(str(row["collective"]), str(row["ranks"] if is_message else row["pg_ranks"] or row["ranks"]))
    return Linked(
        str(row["collective"]),
        None if row["process_group"] is None else str(row["process_group"]),
        ranks,
        None if size is None else int(str(size)),
        None if latency is None else float(str(latency)) * 1e3,
        bounds.get(place, UNBOUNDED),
        place.ranks,
    )


def _spans_hosts(ranks: str, hosts: Mapping[int, str | None]) -> bool:
    return len({hosts.get(int(rank)) for rank in ranks.split()} - {None}) > 1
