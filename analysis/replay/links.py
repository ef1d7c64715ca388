"""Which collectives run over which links, and what of their time does not depend on bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

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


def links_of(links: Links, group: str = "") -> dict[int, float]:
    """The collectives of a process group, of those over several hosts (`between`), or of all: their latency in ns.

    It is 0 where no fit tells it. Raises NothingMeasured where there is no such group.
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
    told = found[["collective_id", *_GROUP]].merge(links.fits[[*_GROUP, "latency_us"]], on=_GROUP, how="left")
    latency = told["latency_us"].astype("Float64").fillna(0.0) * 1e3
    return dict(zip(told["collective_id"].tolist(), latency.tolist(), strict=True))


def _spans_hosts(ranks: str, hosts: Mapping[int, str | None]) -> bool:
    return len({hosts.get(int(rank)) for rank in ranks.split()} - {None}) > 1
