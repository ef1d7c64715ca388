"""Collectives in which some members have no trace: what the other members show about wait and transfer.

Every rank present waited at least until the last of those present arrived. The shortest call shows whether a missing
rank came even later: then it lasts longer than moving the data takes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...common.nccl_tests import SYNCHRONISING
from ..core.arrays import Flags, Floats
from ..core.schema import text_codes

_KEYS = ["kind", "group_size", "size_bytes"]
_COMPARED = ["collective_id", *_KEYS, "pg_ranks", "arrived_ns", "dur_ns", "whole"]
_SLACK_FRAC, _SLACK_NS = 0.1, 2_000
_LEAST_CALLS = 5
_STEADY, _LEAST_SPREAD_NS = 3.0, 2_000


def waited_for_present(joined: pd.DataFrame) -> pd.DataFrame:
    """How long each call waited for ranks with a trace (`wait_low_ns`), and if no other rank was later.

    `joined` holds calls with `collective_id`, `kind`, `group_size`, `size_bytes`, `pg_ranks`, `arrived_ns`, `dur_ns`,
    `rank`, and whether the collective is `whole`. NA where it does not synchronise all members. Same index.
    """
    of_collective = joined.groupby("collective_id", sort=False)
    synchronising = joined["kind"].isin(SYNCHRONISING) & (of_collective["rank"].transform("size") > 1)
    last = of_collective["arrived_ns"].transform("max")
    low = (last - joined["arrived_ns"]).clip(upper=joined["dur_ns"]).astype("Int64").where(synchronising)
    whole = joined["whole"].all()
    known = [] if whole else _nobody_later(joined.loc[synchronising, _COMPARED], _Traced.of(joined))
    return pd.DataFrame({"wait_low_ns": low, "nobody_later": joined["collective_id"].isin(known)})


class _Traced(NamedTuple):
    """The ranks that have a trace, and all process groups in these traces."""

    ranks: frozenset[int]
    groups: list[frozenset[int]]

    @classmethod
    def of(cls, calls: pd.DataFrame) -> _Traced:
        groups = text_codes(calls["pg_ranks"])[1]
        return cls(frozenset(calls["rank"].tolist()), [frozenset(map(int, group.split())) for group in groups])

    def are_coupled(self, pg_ranks: object) -> bool:
        """Whether missing members of a group meet present ones in other groups, so that they arrive as late."""
        if not isinstance(pg_ranks, str):
            return len(self.groups) > 0
        members = frozenset(map(int, pg_ranks.split()))
        missing, present = members - self.ranks, members & self.ranks
        return any(group != members and group & missing and group & present for group in self.groups)


def _nobody_later(joined: pd.DataFrame, traced: _Traced) -> list[int]:
    """The collectives whose shortest call takes no longer than moving the data."""
    collectives: list[int] = []
    for _, same in joined.groupby(_KEYS, sort=False):
        per = same.groupby("collective_id").agg(
            shortest=("dur_ns", "min"),
            whole=("whole", "first"),
            pg_ranks=("pg_ranks", "first"),
            last=("arrived_ns", "max"),
            middle=("arrived_ns", "median"),
        )
        usual = float(per["shortest"][per["whole"]].median())
        for pg_ranks, members in per[~per["whole"]].groupby("pg_ranks", dropna=False, sort=False):
            shortest = members["shortest"].to_numpy(dtype=np.float64)
            if not np.isnan(usual):
                near = np.abs(shortest - usual) <= usual * _SLACK_FRAC + _SLACK_NS
            elif traced.are_coupled(pg_ranks):
                continue
            else:
                near = _steady(shortest, (members["last"] - members["middle"]).to_numpy(dtype=np.float64))
            collectives += members.index[near].tolist()
    return collectives


def _steady(shortest: Floats, skew: Floats) -> Flags:
    """Which calls are as short as the shortest, provided that the shortest are steady.

    Had a missing rank been last in all of them, their shortest calls would differ by as much as arrivals of those
    present do.
    """
    near: Flags = shortest <= shortest.min() * (1 + _SLACK_FRAC) + _SLACK_NS
    if near.sum() < _LEAST_CALLS or _spread(skew[near]) <= max(_STEADY * _spread(shortest[near]), _LEAST_SPREAD_NS):
        return np.zeros(len(shortest), dtype=bool)
    return near


def _spread(values: Floats) -> float:
    """The median absolute deviation from the median."""
    return float(np.median(np.abs(values - np.median(values))))
