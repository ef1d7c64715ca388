"""Collectives of which some members have no trace: what the others tell about waiting and transfer.

Nobody present waited less than until the last of those present was there. Whether a missing rank came later still shows
in the shortest call: then it lasts longer than moving the data takes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..nccl_tests import SYNCHRONISING
from .clocks.frame import Flags, Floats

_KEYS = ["kind", "group_size", "size_bytes"]
_SLACK_FRAC, _SLACK_NS = 0.1, 2_000
_LEAST_CALLS = 5
_STEADY, _LEAST_SPREAD_NS = 3.0, 2_000


def waited_for_present(joined: pd.DataFrame) -> pd.DataFrame:
    """How long each call waited for those present, `wait_low_ns`, and did nobody missing come later, `nobody_later`?

    `joined` holds calls with `collective_id`, `kind`, `group_size`, `size_bytes`, `arrived_ns`, `dur_ns`, `rank`, and
    whether the collective is `whole`. NA where it does not synchronise all members. Same index.
    """
    of_collective = joined.groupby("collective_id", sort=False)
    synchronising = joined["kind"].isin(SYNCHRONISING) & (of_collective["rank"].transform("size") > 1)
    last = of_collective["arrived_ns"].transform("max")
    low = (last - joined["arrived_ns"]).clip(upper=joined["dur_ns"]).astype("Int64").where(synchronising)
    later = _nobody_later(joined[synchronising] if not joined["whole"].all() else joined[:0])
    return pd.DataFrame({"wait_low_ns": low, "nobody_later": joined["collective_id"].isin(later.index[later])})


def _nobody_later(joined: pd.DataFrame) -> pd.Series[bool]:
    """By collective: is its shortest call as short as moving the data takes?"""
    found: dict[int, bool] = {}
    for _, same in joined.groupby(_KEYS, sort=False):
        if same["whole"].all():
            continue
        per = same.groupby("collective_id").agg(
            shortest=("dur_ns", "min"),
            whole=("whole", "first"),
            last=("arrived_ns", "max"),
            middle=("arrived_ns", "median"),
        )
        shortest = per["shortest"].to_numpy(dtype=np.float64)
        whole = per["whole"].to_numpy(dtype=bool)
        near = _as_short(shortest, whole, (per["last"] - per["middle"]).to_numpy(dtype=np.float64))
        found |= dict(zip(per.index.tolist(), (near & ~whole).tolist(), strict=True))
    return pd.Series(found, dtype=bool)


def _as_short(shortest: Floats, whole: Flags, skew: Floats) -> Flags:
    """Which calls are as short as those of whole collectives; without any, as the steady ones among many.

    Had a missing rank been last in all of them, their shortest calls would differ by as much as arrivals of those
    present do.
    """
    if whole.any():
        most = float(np.median(shortest[whole])) * (1 + _SLACK_FRAC) + _SLACK_NS
        return shortest <= most
    near: Flags = shortest <= shortest.min() * (1 + _SLACK_FRAC) + _SLACK_NS
    if near.sum() < _LEAST_CALLS or _spread(skew[near]) <= max(_STEADY * _spread(shortest[near]), _LEAST_SPREAD_NS):
        return np.zeros(len(shortest), dtype=bool)
    return near


def _spread(values: Floats) -> float:
    """The median distance from the median."""
    return float(np.median(np.abs(values - np.median(values))))
