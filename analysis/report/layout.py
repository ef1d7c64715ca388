"""Orders of ranks: by number, by host, and by place in the parallel layout, which groups reveal."""

from __future__ import annotations

from typing import Any

from ..core.schema import plain


def orders_of_ranks(calls: Any, clocks: Any) -> dict[str, list[int]]:
    """Distinct orders of ranks by name, from the tables `calls` and `clocks`."""
    hosts = {row["rank"]: row["host"] or "" for row in plain(clocks).rows}
    ranks = sorted(hosts)
    orders = {"rank": ranks, "host": sorted(ranks, key=lambda rank: (hosts[rank], rank))}
    if len(ranks) != len(set(ranks)) or not len(calls):
        return {"rank": ranks}
    for name, groups in _families(set(calls["pg_ranks"].dropna()), set(ranks)).items():
        place = {rank: number for number, group in enumerate(groups) for rank in group}
        orders[name] = sorted(ranks, key=lambda rank: (place[rank], rank))
    distinct: dict[str, list[int]] = {}
    for name, order in orders.items():
        if order not in distinct.values():
            distinct[name] = order
    return distinct


def _families(texts: set[str], ranks: set[int]) -> dict[str, list[tuple[int, ...]]]:
    """Sets of equal, disjoint groups that cover all ranks: the dimensions of a parallel layout."""
    groups = [tuple(map(int, text.split())) for text in texts]
    families: dict[str, list[tuple[int, ...]]] = {}
    for group in sorted(groups):
        if 1 < len(group) < len(ranks):
            families.setdefault(f"groups of {len(group)}, every {group[1] - group[0]}", []).append(group)
    return {
        name: groups_of_family
        for name, groups_of_family in families.items()
        if sum(map(len, groups_of_family)) == len(ranks)
        and {rank for group in groups_of_family for rank in group} == ranks
    }
