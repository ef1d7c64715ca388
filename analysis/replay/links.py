"""Which collectives run over which links, and what of their time does not depend on bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from ..core.schema import records
from ..errors import NothingMeasured

BETWEEN = "between"
"""Groups whose ranks are on several hosts."""
_GROUP = ["process_group", "pg_ranks", "collective"]


@dataclass(frozen=True)
class Links:
    """The tables of a run that tell of its links, and the host of each rank."""

    collectives: pd.DataFrame
    fits: pd.DataFrame
    hosts: Mapping[int, str | None]


class Linked(NamedTuple):
    """A collective of so many bytes in a process group; of its time, the fitted latency, None where no fit tells it."""

    collective: str
    group: str | None
    ranks: tuple[int, ...]
    size_bytes: int | None
    latency_ns: float | None


def links_of(links: Links, group: str = "") -> dict[int, Linked]:
    """The collectives of a process group, of those over several hosts (`between`), or of all, by number.

    Raises NothingMeasured where there is no such group.
    """
    found = links.collectives
    if group == BETWEEN:
        found = found[found["ranks"].map(lambda ranks: _spans_hosts(str(ranks), links.hosts)).astype(bool)]
    elif group:
        found = found[found["process_group"] == group]
    if not len(found):
        known = ", ".join(sorted(map(str, links.collectives["process_group"].dropna().unique())))
        missing = {"": "collective", BETWEEN: "collective over several hosts"}.get(group, f"process group {group!r}")
        raise NothingMeasured(f"the traces show no {missing}{f'; there are the groups {known}' if known else ''}")
    columns = ["collective_id", *_GROUP, "ranks", "size_bytes"]
    told = found[columns].merge(links.fits[[*_GROUP, "latency_us"]], on=_GROUP, how="left")
    return {row["collective_id"]: _linked(row) for row in records(told)}


def _linked(row: Mapping[str, object]) -> Linked:
    ranks = tuple(sorted(int(rank) for rank in str(row["pg_ranks"] or row["ranks"]).split()))
    latency, size = row["latency_us"], row["size_bytes"]
    return Linked(
        str(row["collective"]),
        None if row["process_group"] is None else str(row["process_group"]),
        ranks,
        None if size is None else int(str(size)),
        None if latency is None else float(str(latency)) * 1e3,
    )


def _spans_hosts(ranks: str, hosts: Mapping[int, str | None]) -> bool:
    return len({hosts.get(int(rank)) for rank in ranks.split()} - {None}) > 1
