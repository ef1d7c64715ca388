"""Why a rank computes longer, from the table `shapes_ranks`: its device is slow, or runs another kernel."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from ...core.schema import Row, records


class SlowDevice(NamedTuple):
    """What a device is slower at: its row of `shapes_ranks`, and how much longer that takes in a step, in ms."""

    row: Row
    ms_per_step: float


def slow_devices(shapes_ranks: pd.DataFrame, steps: int) -> dict[int, SlowDevice]:
    """The slow device of each rank that has one; the slowest of several."""
    found: dict[int, SlowDevice] = {}
    for row in records(shapes_ranks.dropna(subset=["slow_at"])):
        found.setdefault(row["rank"], SlowDevice(row, row["extra_ns"] / 1e6 / max(steps, 1)))
    return found
