"""Predict more ranks, perhaps on hosts that the run does not show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np
import pandas as pd

from ....common.nccl_tests import POINT_TO_POINT, bus_factor
from ...metrics.latency import hops, most_latency_ns, spread
from ..engine import Playing
from ..links import Linked, Links
from .scenario import Change, Scenario
from .transfers import with_transfers

_NO_LINKS = (
    "no link between hosts was measured, and {ranks} ranks do not fit into {hosts} with {room} GPUs: give --new-links "
    "GB/s[,us], or a file of `commtrace comms` or nccl-tests"
)


@dataclass(frozen=True)
class NewLinks:
    """Links to new hosts; `takes` gives bounds in ns for a collective over some ranks and hosts.

    It is None where it is not known. `of` says where this comes from.
    """

    of: str
    takes: Callable[[Linked, int, int], tuple[float, float] | None]


@dataclass(frozen=True)
class Hosts:
    """The hosts of a run: names by rank, number of `ranks` with or without trace, and `room` per host or None."""

    names: Mapping[int, str | None]
    ranks: int
    room: int | None

    @property
    def number(self) -> int:
        """Number of hosts; ranks without a host name count as one host."""
        return max(len(set(self.names.values())), 1)

    def needed(self, ranks: float) -> int:
        """Number of hosts needed for `ranks` ranks."""
        return self.number if self.room is None else max(ceil(ranks / self.room), self.number)


def given_links(gb_per_s: float, latency_us: float | None) -> NewLinks:
    """Links with this bus bandwidth; without a latency, any that NCCL may have."""

    def takes(linked: Linked, ranks: int, hosts: int) -> tuple[float, float] | None:
        carried = _carried_bytes(linked, ranks)
        if carried is None:
            return None
        if latency_us is not None:
            return (carried / gb_per_s + latency_us * 1e3,) * 2
        return carried / gb_per_s, carried / gb_per_s + most_latency_ns(linked.collective, ranks, hosts)

    said = "" if latency_us is None else f" and {latency_us:g} us"
    return NewLinks(f"links to new hosts have {gb_per_s:g} GB/s{said}", takes)


def ceiling_links(name: str, ceiling: pd.DataFrame) -> NewLinks:
    """Links as measured without training, over as many ranks, or the largest number measured."""

    def takes(linked: Linked, ranks: int, _: int) -> tuple[float, float] | None:
        carried = _carried_bytes(linked, ranks)
        same = ceiling[ceiling["collective"] == linked.collective]
        if carried is None or not len(same) or not linked.size_bytes:
            return None
        of_ranks = same[
            same["group_size"] == (ranks if (same["group_size"] == ranks).any() else same["group_size"].max())
        ]
        best = of_ranks.groupby("size_bytes")["busbw_gb_per_s"].max()
        sizes, rates = np.log(best.index.to_numpy(np.float64)), best.to_numpy(np.float64)
        rate = float(np.interp(np.log(linked.size_bytes), sizes, rates))
        return (carried / rate,) * 2 if rate > 0 else None

    return NewLinks(f"links to new hosts are as in {name}", takes)


def measured_links(links: Links, every: Mapping[int, Linked]) -> NewLinks | None:
    """Links between hosts as this run uses them; None if no collective spans hosts."""
    took = dict(zip(links.collectives["collective_id"], links.collectives["transfer_ns"], strict=True))
    between = {
        number: linked
        for number, linked in every.items()
        if len(spread(linked.members, links.hosts)) > 1
        and linked.size_bytes
        and not pd.isna(took[number])
        and took[number]
    }
    if not between:
        return None

    def takes(linked: Linked, ranks: int, hosts: int) -> tuple[float, float] | None:
        carried = _carried_bytes(linked, ranks)
        if carried is None:
            return None
        same = [n for n, other in between.items() if other.collective == linked.collective] or list(between)
        size = max(between[n].size_bytes or 0 for n in same)
        largest = [n for n in same if between[n].size_bytes == size]
        like = between[largest[0]]
        time, moved = float(np.median([took[n] for n in largest])), _carried_bytes(like, len(like.members))
        more = hops(linked.collective, ranks, hosts)[0] / hops(like.collective, len(like.members), 2)[0]
        most = most_latency_ns(linked.collective, ranks, hosts) if links.nccl else np.inf
        ways = [
            carried / moved * (time - latency) + min(latency * more, max(latency, most))
            for latency in (min(bound, time) for bound in like.bounds[:2])
            if moved
        ]
        return (min(ways), max(ways)) if ways else None

    return NewLinks("links to new hosts are as those between hosts that were measured", takes)


def with_sizes(links: Links, every: Mapping[int, Linked]) -> dict[int, Linked]:
    """Fill in unknown sizes from collectives that take as long among the same ranks, or are usual there."""
    took = links.collectives.set_index("collective_id")["transfer_ns"].astype("float64").fillna(0.0).to_dict()
    known: dict[tuple[str, tuple[int, ...]], list[tuple[int, float]]] = {}
    for number, linked in every.items():
        if linked.size_bytes and took[number]:
            known.setdefault((linked.collective, linked.members), []).append((linked.size_bytes, took[number]))
    result = dict(every)
    for number, linked in every.items():
        same = known.get((linked.collective, linked.members))
        if linked.size_bytes is None and same:
            usual = float(np.median([size for size, _ in same]))
            size = took[number] * float(np.median([size / time for size, time in same])) or usual
            result[number] = linked._replace(size_bytes=round(size))
    return result


def more_ranks(
    grown: float,
    links: Mapping[int, Linked],
    *,
    hosts: Hosts,
    new_links: NewLinks | None = None,
    shared_batch: bool = False,
) -> Scenario:
    """Let groups have `grown` times as many ranks; with a shared batch, each rank computes less.

    Two ways: a ring, whose latency grows with n - 1, and a tree, whose latency grows with log2 n. Source: NCCL's cost
    model, as in nccl-tests doc/PERFORMANCE.md. Latency is the least that may be in the tree, and the most in the ring.
    Groups inside a host that grow over its edge move their data over `new_links` instead, if these are slower.
    """
    several = {number: linked for number, linked in links.items() if len(linked.ranks) > 1 and linked.is_known}
    ranks = max((len(linked.ranks) for linked in several.values()), default=1)
    batch = "of the same batch, shared" if shared_batch else "with as large a batch each"
    name = f"groups of {ranks * grown:g} ranks instead of {ranks}, {batch}"
    needed = hosts.needed(hosts.ranks * grown)
    crossing = {
        number: linked
        for number, linked in several.items()
        if grown > 1 and needed > hosts.number and len(spread(linked.ranks, hosts.names)) == 1
    }
    computing = "compute takes time in proportion to the batch; " if shared_batch else ""
    where = f"; {new_links.of}" if crossing and new_links else ""
    assumes = f"{computing}new ranks are like those measured; collectives run as ring or as tree{where}"
    over = dict[tuple[str, int | None, int], tuple[float, float]]()
    for linked in crossing.values():
        after = round(len(linked.ranks) * grown)
        bounds = new_links.takes(linked, after, min(after, needed)) if new_links else None
        if bounds is None:
            there = "1 host" if hosts.number == 1 else f"{hosts.number} hosts"
            why = _NO_LINKS.format(ranks=f"{hosts.ranks * grown:g}", hosts=there, room=hosts.room)
            if new_links is not None:
                why = f"{new_links.of}, which says nothing of {linked.collective} over {after} ranks"
            return Scenario(name, assumes, (), why)
        over[_kind(linked)] = bounds

    def tree(linked: Linked, transfer: float) -> float:
        before, after = len(linked.ranks), len(linked.ranks) * grown
        latency = min(linked.bounds.low_ns, transfer)
        carried = 1.0 if linked.collective == "all_reduce" else _carried(linked, after)
        return latency * log2(after) / log2(before) + (transfer - latency) * carried

    def ring(linked: Linked, transfer: float) -> float:
        before, after = len(linked.ranks), len(linked.ranks) * grown
        latency = min(linked.bounds.high_ns, transfer)
        return latency * (after - 1) / (before - 1) + (transfer - latency) * _carried(linked, after)

    def over_edge(number: int, model: Callable[[Linked, float], float]) -> Callable[[Linked, float], float]:
        def takes(linked: Linked, transfer: float) -> float:
            inside = model(linked, transfer)
            return max(inside, over[_kind(linked)][number]) if _kind(linked) in over else inside

        return takes

    ways = [with_transfers(several, over_edge(number, model)) for number, model in enumerate((tree, ring))]
    if shared_batch:
        ways = [_computing_less(way, grown) for way in ways]
    return Scenario(name, assumes, tuple(ways), ranks_times=grown, work_times=1.0 if shared_batch else grown)


def _kind(linked: Linked) -> tuple[str, int | None, int]:
    return linked.collective, linked.size_bytes, len(linked.ranks)


def _carried_bytes(linked: Linked, ranks: int) -> float | None:
    """Bytes that a link carries of this collective over `ranks` ranks; None if its size is not known."""
    if linked.collective == "barrier":
        return 0.0
    return None if linked.size_bytes is None else linked.size_bytes * bus_factor(linked.collective, ranks)


def _carried(linked: Linked, ranks: float) -> float:
    """Factor by which a link carries more of the same size with `ranks` ranks."""
    if linked.collective in POINT_TO_POINT or linked.collective == "barrier":
        return 1.0
    before, after = bus_factor(linked.collective, len(linked.ranks)), bus_factor(linked.collective, round(ranks))
    return float(after / before)


def _computing_less(way: Change, grown: float) -> Change:
    def change(members: Sequence[Playing]) -> list[Playing]:
        return [
            replace(m, duration=np.where(m.program.is_comm, m.duration, np.rint(m.duration / grown).astype(np.int64)))
            for m in way(members)
        ]

    return change
