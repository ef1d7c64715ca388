"""Devices of one process that do unequal work: under DataParallel the first one does more than the others."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

_UNEQUAL = 0.5
"""Devices are unequal if one computes for less than this part of the time that another one does."""
_MOST_NAMED = 4


class Unequal(NamedTuple):
    """How long devices of a rank compute in a step, in ns, the longest first; `others` of them less than these."""

    rank: int
    compute_ns: tuple[tuple[int, float], ...]
    others: int
    is_only_rank: bool


def unequal_devices(steps: pd.DataFrame) -> Unequal | None:
    """The devices of the rank where they are most unequal, by rows of `breakdown` or of its counted steps.

    None where each rank has one device, or those of no rank are that unequal.
    """
    computed = steps.groupby(["rank", "device"])["compute_ns"].mean()
    of_rank = computed.groupby("rank").agg(["min", "max", "size"])
    unequal = of_rank[of_rank["min"] < _UNEQUAL * of_rank["max"]]
    if not len(unequal):
        return None
    rank = (unequal["min"] / unequal["max"]).idxmin()
    by_device = computed.loc[rank].sort_values(ascending=False, kind="stable")
    named = by_device.head(_MOST_NAMED)
    longest = tuple((int(device), float(ns)) for device, ns in named.items())
    return Unequal(int(rank), longest, len(by_device) - len(named), len(of_rank) == 1)
