"""Predict faster links or lower latency.

A collective takes a latency, which the fits tell, and the rest of its transfer for its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from ...core.arrays import Ints
from ..engine import Playing
from ..links import BETWEEN, Linked
from ..programs import NONE
from ..slow_links import SURE, SlowLinks
from .scenario import Change, Scenario

Model = Callable[[Linked, float], float]
"""A collective, and its transfer in ns -> the transfer in the scenario."""


def faster_links(factor: float, links: Mapping[int, Linked], group: str = "") -> Scenario:
    """Divide the transfer of these collectives by `factor`, except for latency. `group` selects them.

    Two ways: with the least latency that may be, and with the most.
    """

    def faster(transfer: float, latency: float) -> float:
        return latency + (transfer - latency) / factor

    return Scenario(
        f"{_links_name(group)} {factor:g} times as fast",
        _ALL_BUT_LATENCY,
        _both_ways(links, faster),
        never_longer=factor >= 1,
    )


def lower_latency(factor: float, links: Mapping[int, Linked], group: str = "") -> Scenario:
    """Divide the latency of these collectives by `factor`. `group` selects them. Two ways, as in `faster_links`."""

    def faster(transfer: float, latency: float) -> float:
        return transfer - latency + latency / factor

    fitted = any(linked.is_fitted for linked in links.values())
    unknown = "" if fitted else "no collective ran with sizes different enough to tell its latency: bounds only"
    ways = _both_ways(links, faster)
    return Scenario(
        f"{_links_name(group)} with 1/{factor:g} of the latency",
        "only latency changes",
        ways,
        unknown,
        never_longer=factor >= 1,
    )


_MOST_NAMED = 4
_ALL_BUT_LATENCY = "all but the latency is bandwidth"


def _links_name(group: str) -> str:
    return {"": "all links", BETWEEN: "links between hosts"}.get(group, f"links of group {group}")


def _both_ways(links: Mapping[int, Linked], model: Callable[[float, float], float]) -> tuple[Change, ...]:
    """The model, a function of transfer and latency, with the least and the largest possible latency."""

    def way(which: str) -> Change:
        return with_transfers(
            links, lambda linked, transfer: model(transfer, min(getattr(linked.bounds, which), transfer))
        )

    return way("low_ns"), way("high_ns")


def links_as_others(slow: SlowLinks) -> Scenario:
    """Let transfers over these links take as long as over similar ones. Two ways, as far apart as noise."""

    def way(errors: float) -> Change:
        change = (1 + slow.noise_frac) ** (errors / SURE)
        return _with_times({number: times * change for number, times in slow.times.items()})

    others = "; ".join(" ".join(map(str, ranks)) for ranks in slow.others[:_MOST_NAMED])
    more = len(slow.others) - _MOST_NAMED
    said = f"{others}{f' and {more} more' if more > 0 else ''}"
    ways = tuple(way(errors) for errors in ((-2.0, 2.0) if isfinite(slow.noise_frac) else (0.0,)))
    assumes = f"a byte takes as long as among ranks {said}"
    return Scenario(f"{slow.label} as fast as others like them", assumes, ways, leaves_out=True)


def _with_times(times: Mapping[int, float]) -> Change:
    """Divide the transfers of these collectives by their factor."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        result = []
        for member in members:
            by = np.array([times.get(number, 1.0) for number in member.program.collective.tolist()])
            result.append(replace(member, transfer=np.rint(member.transfer / by).astype(np.int64)))
        return result

    return change


def with_transfers(links: Mapping[int, Linked], model: Model) -> Change:
    """The change that gives these collectives the times of the model."""

    def change(members: Sequence[Playing]) -> list[Playing]:
        return [replace(m, transfer=_transfers(m, links, model)) for m in members]

    return change


def _transfers(member: Playing, links: Mapping[int, Linked], model: Model) -> Ints:
    result: Ints = member.transfer.copy()
    for node in np.flatnonzero(member.program.collective != NONE).tolist():
        linked = links.get(int(member.program.collective[node]))
        if linked is not None:
            result[node] = round(model(linked, float(member.transfer[node])))
    return result
