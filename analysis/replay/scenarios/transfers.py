"""What a run would be like with faster links, with more ranks, or with collectives joined into larger ones.

A collective takes a latency, which the fits tell, and the rest of its transfer for its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, log2

import numpy as np

from ...core.nccl_tests import POINT_TO_POINT, bus_factor
from ...metrics.clocks.frame import Ints
from ..engine import Playing
from ..links import BETWEEN, Linked
from ..programs import NONE
from ..slow_links import SURE, SlowLinks
from .scenario import Change, Scenario

_Model = Callable[[Linked, float], float]
"""A collective, and its transfer in ns -> the transfer in the scenario."""


def faster_links(factor: float, links: Mapping[int, Linked], group: str = "") -> Scenario:
    """Transfers of these collectives take so much less, but for their latency. `group` says which they are.

    Two ways: with the least latency that may be, and with the most.
    """

    def faster(transfer: float, latency: float) -> float:
        return latency + (transfer - latency) / factor

    return Scenario(f"{_of(group)} {factor:g} times as fast", _ALL_BUT_LATENCY, _both_ways(links, faster))


def lower_latency(factor: float, links: Mapping[int, Linked], group: str = "") -> Scenario:
    """The latency of these collectives is so much less. `group` says which they are. Two ways, as with faster links."""

    def faster(transfer: float, latency: float) -> float:
        return transfer - latency + latency / factor

    fitted = any(linked.is_fitted for linked in links.values())
    unknown = "" if fitted else "no collective ran with sizes different enough to tell its latency: bounds only"
    ways = _both_ways(links, faster)
    return Scenario(f"{_of(group)} with 1/{factor:g} of the latency", "only latency changes", ways, unknown)


_MOST_NAMED = 4
_ALL_BUT_LATENCY = "all but the latency is bandwidth"


def _of(group: str) -> str:
    return {"": "all links", BETWEEN: "links between hosts"}.get(group, f"links of group {group}")


def _both_ways(links: Mapping[int, Linked], model: Callable[[float, float], float]) -> tuple[Change, ...]:
    """The model, of a transfer and its latency, with the least latency that may be and with the most."""

    def way(which: str) -> Change:
        return _with_transfers(
            links, lambda linked, transfer: model(transfer, min(getattr(linked.bounds, which), transfer))
        )

    return way("low_ns"), way("high_ns")


def links_as_others(slow: SlowLinks) -> Scenario:
    """Transfers over these links take as long as others like them do. Two ways, as far apart as noise may be."""

    def way(errors: float) -> Change:
        change = (1 + slow.noise_frac) ** (errors / SURE)
        return _with_times({number: times * change for number, times in slow.times.items()})

    others = "; ".join(" ".join(map(str, ranks)) for ranks in slow.others[:_MOST_NAMED])
    more = len(slow.others) - _MOST_NAMED
    said = f"{others}{f' and {more} more' if more > 0 else ''}"
    ways = tuple(way(errors) for errors in ((-2.0, 2.0) if isfinite(slow.noise_frac) else (0.0,)))
    return Scenario(f"{slow.label} as fast as others", f"a byte takes as long as among ranks {said}", ways)


def more_ranks(grown: float, links: Mapping[int, Linked], *, shared_batch: bool = False) -> Scenario:
    """The groups of these collectives have `grown` times as many ranks; with a shared batch, each computes less.

    Two ways: a ring, whose latency grows with n - 1, and a tree, whose latency grows with log2 n. Source: NCCL's cost
    model, as in nccl-tests doc/PERFORMANCE.md. Where no fit tells the latency, the ring has nothing else, and the tree
    has none.
    """

    def ring(linked: Linked, transfer: float) -> float:
        ranks, after = len(linked.ranks), len(linked.ranks) * grown
        latency = transfer if linked.latency_ns is None else min(linked.latency_ns, transfer)
        return latency * (after - 1) / (ranks - 1) + (transfer - latency) * _carried(linked, after)

    def tree(linked: Linked, transfer: float) -> float:
        ranks, after = len(linked.ranks), len(linked.ranks) * grown
        latency = min(linked.latency_ns or 0.0, transfer)
        carried = 1.0 if linked.collective == "all_reduce" else _carried(linked, after)
        return latency * log2(after) / log2(ranks) + (transfer - latency) * carried

    several = {number: linked for number, linked in links.items() if len(linked.ranks) > 1}
    ways = [_with_transfers(several, model) for model in (tree, ring)]
    if shared_batch:
        ways = [_computing_less(way, grown) for way in ways]
    ranks = max((len(linked.ranks) for linked in several.values()), default=1)
    batch = "of the same batch, shared" if shared_batch else "with as large a batch each"
    computing = "compute takes time in proportion to the batch; " if shared_batch else ""
    return Scenario(
        f"groups of {ranks * grown:g} ranks instead of {ranks}, {batch}",
        f"{computing}new ranks and links are like those measured; collectives run as ring or as tree",
        tuple(ways),
    )


def _carried(linked: Linked, ranks: float) -> float:
    """How much more a link carries of the same size with so many ranks."""
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


def _with_times(times: Mapping[int, float]) -> Change:
    """Transfers of these collectives divided by so much."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        result = []
        for member in members:
            by = np.array([times.get(number, 1.0) for number in member.program.collective.tolist()])
            result.append(replace(member, transfer=np.rint(member.transfer / by).astype(np.int64)))
        return result

    return change


def _with_transfers(links: Mapping[int, Linked], model: _Model) -> Change:
    def change(members: Sequence[Playing]) -> list[Playing]:
        return [replace(m, transfer=_transfers(m, links, model)) for m in members]

    return change


def _transfers(member: Playing, links: Mapping[int, Linked], model: _Model) -> Ints:
    result: Ints = member.transfer.copy()
    for node in np.flatnonzero(member.program.collective != NONE).tolist():
        linked = links.get(int(member.program.collective[node]))
        if linked is not None:
            result[node] = round(model(linked, float(member.transfer[node])))
    return result
