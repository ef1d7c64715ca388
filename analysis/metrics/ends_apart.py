"""Which ranks end collectives at another time than the others of their host.

All ranks end a collective at nearly the same time, on one host to within 0.9 ms in all real runs that were looked at.
Definitions: docs/metrics/clocks.md.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from ...common.nccl_tests import SYNCHRONISING

if TYPE_CHECKING:
    from pandas.core.groupby import SeriesGroupBy

APART_NS = 1_000_000


class EndsApart(NamedTuple):
    """A rank that ends `times` of its `of` collectives later (if `by_ns`, the median, is above 0) or earlier."""

    rank: int
    times: int
    of: int
    by_ns: int


def ends_apart(
    participation: pd.DataFrame, collectives: pd.DataFrame, clocks: pd.DataFrame, sharing: Collection[int]
) -> list[EndsApart]:
    """The ranks whose GPU ends collectives 1 ms or more from when the others of their host do.

    Only collectives that were matched for certain count, and that no rank can end before all have begun; an uneven
    all_to_all does not. Of two ranks, the one that ends first is believed. `sharing` are ranks that share a GPU, which
    takes turns between them.
    """
    known = collectives["collective"].isin(SYNCHRONISING) & collectives["certain"].fillna(False)
    known &= collectives["imbalance_frac"].isna()
    counted = participation["collective_id"].isin(collectives["collective_id"][known])
    counted &= (participation["device"] != "cpu") & ~participation["rank"].isin(sharing)
    ended = participation.loc[counted, ["collective_id", "rank"]]
    ended["host"] = ended["rank"].map(clocks.set_index("rank")["host"])
    ended["end_ns"] = (participation["arrived_ns"] + participation["dur_ns"]).reindex(ended.index)
    found = []
    for rank, own in from_usual_ns(ended).groupby(ended["rank"]):
        apart = own[own.abs() >= APART_NS]
        if len(apart):
            found.append(EndsApart(int(str(rank)), len(apart), len(own), round(apart.median())))
    return found


def from_usual_ns(ended: pd.DataFrame) -> pd.Series[int]:
    """How much later than usual on its host each call ends, in ns; without those that are alone on their host.

    `ended` has the columns `collective_id`, `host` and `end_ns`. Usual is the middle one of the ends, and of an even
    number the earlier of the two.
    """
    place = ["collective_id", "host"]
    ordered = ended.dropna(subset=["host"]).sort_values("end_ns", kind="stable")
    of_host: SeriesGroupBy[int, Any] = ordered.groupby(place, sort=False)["end_ns"]
    size = of_host.transform("size")
    usual = ordered[of_host.cumcount() == (size - 1) // 2].set_index(place)["end_ns"]
    beside = ordered[size > 1].join(usual.rename("usual_ns"), on=place)
    return beside["end_ns"] - beside["usual_ns"]
