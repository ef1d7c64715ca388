"""Bounds of a collective's latency, from its sizes, from other transfers of its ranks, and from NCCL's own model.

All that is known of it goes into an interval, so that a prediction about links can say how far it may be off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...common.nccl_tests import POINT_TO_POINT, SYNCHRONISING, bus_factor
from ..core.schema import grouped
from ..core.student import student_quantile

_LEVEL = 0.05
"""Of the bounds of a fit: in one of twenty fits, the latency is beyond them."""
_MEDIAN_VARIANCE = math.pi / 2
"""Of a median of normal values, as a multiple of that of their mean."""
_BASE_US, _NVLINK_US, _PCI_US, _BETWEEN_US = 14.0, 3.4, 5.7, 14.0
_PCI_GB_PER_S = 64.0
"""What PCIe 5.0 x16 moves one way; whatever is faster inside a host is NVLink or its like."""
_MARGIN = 2.0
_AT_ONCE = 8
_SURE = 1.5


class Bounds(NamedTuple):
    """Bounds of a latency, in ns; `of` names the source of the upper bound."""

    low_ns: float
    high_ns: float
    of: str


SIZES, MODEL = "its sizes", "NCCL's own model"
UNBOUNDED = Bounds(0.0, math.inf, "nothing: none of it was measured")


class Place(NamedTuple):
    """A kind of collective among these ranks; a message between two ranks, in whatever group."""

    collective: str
    ranks: tuple[int, ...]


def place_of(collective: str, ranks: str) -> Place:
    """The place of a collective among the ranks of its group."""
    return Place(collective, tuple(sorted(map(int, ranks.split()))))


def latency_bounds(collectives: pd.DataFrame, hosts: Mapping[int, str | None], *, nccl: bool) -> dict[Place, Bounds]:
    """The bounds of each kind of collective and set of ranks that moved data.

    It is at least 0 and at most the shortest transfer of as many ranks, equally spread over hosts, in the same kind of
    collective, or among the same ranks in another. Two or more sizes tell more: see `fitted_latency`. Under NCCL
    (`nccl`) it is at most twice what NCCL's own model says of its slowest protocol.
    """
    moved = collectives[(collectives["transfer_ns"].fillna(0) > 0) & collectives["collective"].notna()]
    times = _times(moved)
    shortest = {place: _shortest(took) for place, took in times.items()}
    alike: dict[tuple[object, ...], float] = {}
    among: dict[tuple[int, ...], list[Place]] = {}
    for place, least in shortest.items():
        key = place.collective, spread(place.ranks, hosts)
        alike[key] = min(least, alike.get(key, least))
        among.setdefault(place.ranks, []).append(place)
    nvlink = any(_is_beyond_pcie(place, took) for place, took in times.items())
    return {
        place: _bounds(
            fitted_latency(took),
            {
                "its shortest transfer": shortest[place],
                "the shortest transfer of groups alike": alike[place.collective, spread(place.ranks, hosts)],
                "other collectives of these ranks": min(
                    shortest[other] * max(_steps(place, hosts)[0] / _steps(other, hosts)[0], 1)
                    for other in among[place.ranks]
                ),
                MODEL: most_latency_ns(
                    place.collective, len(place.ranks), len(spread(place.ranks, hosts)), nvlink=nvlink
                )
                if nccl
                else math.inf,
            },
        )
        for place, took in times.items()
    }


def _steps(place: Place, hosts: Mapping[int, str | None]) -> tuple[int, int]:
    return hops(place.collective, len(place.ranks), len(spread(place.ranks, hosts)))


def _times(moved: pd.DataFrame) -> dict[Place, pd.Series[float]]:
    """Transfer times in ns by place; the index is the size in bytes, 0 if not known."""
    by_place: dict[Place, list[pd.Series[float]]] = {}
    known = moved.assign(pg_ranks=moved["pg_ranks"].fillna(""))
    for (collective, group, ranks), rows in grouped(known, ["collective", "pg_ranks", "ranks"]):
        members = ranks if collective in POINT_TO_POINT or not group else group
        transfer = rows["transfer_ns"].astype("float64").set_axis(rows["size_bytes"].fillna(0))
        by_place.setdefault(place_of(str(collective), str(members)), []).append(transfer)
    return {place: pd.concat(parts) for place, parts in by_place.items()}


def _shortest(times: pd.Series[float]) -> float:
    """Upper estimate of the shortest transfer: the median of the fastest size plus two of its standard errors."""
    by_size = times.groupby(level=0)
    sizes = pd.DataFrame({"median": by_size.median(), "std": by_size.std().fillna(0.0), "calls": by_size.size()})
    error = sizes["std"] * (_MEDIAN_VARIANCE / sizes["calls"]) ** 0.5
    return float((sizes["median"] + 2 * error).min())


def _bounds(line: tuple[float, float] | None, at_most: Mapping[str, float]) -> Bounds:
    """Combine the fitted bounds (`line`) with the largest possible latency (`at_most`).

    Where they contradict NCCL's model, it does not count; nor does their lower bound, unless it is near the upper one.
    """
    low, high = (0.0, math.inf) if line is None else (max(line[0], 0.0), max(line[1], 0.0))
    possible = {of: most for of, most in at_most.items() if of != MODEL or low <= most}
    if MODEL not in possible and high > _SURE * low:
        low = 0.0
    of, most = min(possible.items(), key=lambda each: each[1])
    if low > most:
        return Bounds(0.0, most, of)
    return Bounds(low, high, SIZES) if high < most else Bounds(low, most, of)


def fitted_latency(times: pd.Series[float]) -> tuple[float, float] | None:
    """95 % bounds of the latency in ns, from a line through the median of each size; None if data are too few.

    Least squares of the relative error, as in `fits`. The variance of a median is that of the calls of a size, which
    all sizes share as a fraction; where the medians scatter more than that around the line, they tell it (the ratio of
    Birge 1932). Source: the usual linear model, e.g. Draper and Smith, "Applied Regression Analysis", chapter 5.
    """
    sized = times[times.index > 0]
    by_size = sized.groupby(level=0)
    medians, counts = by_size.median(), by_size.size().to_numpy(np.float64)
    within, around = len(sized) - len(medians), len(medians) - 2
    freedom = within or around
    if around < 0 or freedom < 1:
        return None
    sizes, took = medians.index.to_numpy(np.float64), medians.to_numpy(np.float64)
    deviation = (sized / by_size.transform("median") - 1).to_numpy(np.float64)
    design = np.column_stack([1 / took, sizes / took])
    inverse = np.linalg.pinv(design)
    latency, per_byte = inverse @ np.ones(len(took))
    residual = latency / took + per_byte * sizes / took - 1
    variance = float((deviation**2).sum() / max(within, 1)) * _MEDIAN_VARIANCE / counts
    scatter = residual**2 * counts / max(around, 1)
    variance = np.maximum(variance, float(scatter.sum()) / counts) if around else variance
    error = float(np.sqrt((inverse[0] ** 2 * variance).sum()))
    wide = student_quantile(freedom, _LEVEL)
    return float(latency - wide * error), float(latency + wide * error)


def spread(ranks: tuple[int, ...], hosts: Mapping[int, str | None]) -> tuple[int, ...]:
    """Number of ranks on each host, largest first; ranks on hosts without a name count as one host."""
    names = [hosts.get(rank) for rank in ranks]
    return tuple(sorted((names.count(name) for name in set(names)), reverse=True))


def hops(collective: str, ranks: int, on_hosts: int) -> tuple[int, int]:
    """Number of messages that follow one another, and how many of them go to another host.

    Of a ring 2 (n - 1) and 2 x hosts for all_reduce, half of that for the others; messages of an all_to_all go to eight
    ranks at a time. Source: NVIDIA/nccl src/graph/tuning.cc (nsteps, nInterSteps); src/include/device.h (a channel
    works on eight sends at once).
    """
    if collective in POINT_TO_POINT:
        return 1, int(on_hosts > 1)
    if collective == "all_to_all":
        rounds = max(math.ceil((ranks - 1) / _AT_ONCE), 1)
        return rounds, rounds if on_hosts > 1 else 0
    times = 2 if collective in ("all_reduce", "barrier") else 1
    total = max(times * (ranks - 1), 1)
    return total, min(times * on_hosts, total) if on_hosts > 1 else 0


def most_latency_ns(collective: str, ranks: int, on_hosts: int, *, nvlink: bool = False) -> float:
    """Twice the latency that NCCL expects of its slowest protocol, over a network, PCIe or, if certain, NVLink.

    Source: NVIDIA/nccl src/graph/tuning.cc, baseLatencies and hwLatencies of rings: at most 14 us, and for each step of
    Simple inside a host 5.7 us over PCIe and 3.4 us over NVLink, between hosts 14 us.
    """
    total, between = hops(collective, ranks, on_hosts)
    inside_us = _NVLINK_US if nvlink else _PCI_US
    return _MARGIN * 1e3 * (_BASE_US + (total - between) * inside_us + between * _BETWEEN_US)


def _is_beyond_pcie(place: Place, times: pd.Series[float]) -> bool:
    """Whether some size of this collective moved faster than PCIe can."""
    if place.collective not in {*SYNCHRONISING, *POINT_TO_POINT} - {"barrier"}:
        return False
    by_size = times[times.index > 0].groupby(level=0).median()
    rates = by_size.index.to_numpy(np.float64) / by_size.to_numpy(np.float64)
    return bool((rates * bus_factor(place.collective, len(place.ranks)) > _PCI_GB_PER_S).any())


def kinds_alike(collectives: pd.DataFrame) -> Iterator[tuple[Place, pd.DataFrame]]:
    """Yield the collectives whose transfer and size are known, by kind and ranks."""
    known = collectives[(collectives["transfer_ns"].fillna(0) > 0) & (collectives["size_bytes"].fillna(0) > 0)]
    known = known[known["collective"].isin({*SYNCHRONISING, *POINT_TO_POINT})]
    for (collective, ranks), rows in grouped(known, ["collective", "ranks"]):
        yield place_of(str(collective), str(ranks)), rows
