"""Devices of one process that do unequal work: under DataParallel the first one does more than the others."""

from __future__ import annotations

import pandas as pd

from ....common.wording import counted, listed
from .culprits import length

_UNEQUAL = 0.5
"""Devices are unequal if one computes for less than this part of the time that another one does."""
_MOST_NAMED = 4


def unequal_devices(steps: pd.DataFrame) -> str:
    """`Device 0 computes for 8.9 ms of it, device 1 for 2.1 ms.`, by rows of `breakdown` or of its counted steps.

    Empty where each rank has one device, or those of no rank are that unequal; of several such ranks, the most unequal.
    """
    computed = steps.groupby(["rank", "device"])["compute_ns"].mean()
    of_rank = computed.groupby("rank").agg(["min", "max", "size"])
    unequal = of_rank[of_rank["min"] < _UNEQUAL * of_rank["max"]]
    if not len(unequal):
        return ""
    rank = (unequal["min"] / unequal["max"]).idxmin()
    by_device = computed.loc[rank].sort_values(ascending=False, kind="stable")
    named = [f"device {device} for {length(ns / 1e6)}" for device, ns in by_device.head(_MOST_NAMED).items()]
    others = len(by_device) - len(named)
    named += [f"{counted(others, 'other')} for less"] if others else []
    who = f"Of rank {rank}, " if len(of_rank) > 1 else ""
    said = f"{who}{named[0].replace(' for', ' computes for', 1)} of it, {listed(named[1:])}."
    return said[0].upper() + said[1:]
