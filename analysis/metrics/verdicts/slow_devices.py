"""Why a rank computes longer, from the table `shapes_ranks`: its device is slow, or runs another kernel."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from ...core.schema import Row, records
from ..compute.shapes_ranks import AT_EVERYTHING, AT_KERNEL, AT_PRODUCTS

_LOWER_CLOCK = 0.95


class SlowDevice(NamedTuple):
    """What a device is slower at, as a clause, and how much longer that takes in a step, in ms."""

    clause: str
    ms_per_step: float


def slow_devices(shapes_ranks: pd.DataFrame, steps: int, *, on_cpu: bool) -> dict[int, SlowDevice]:
    """The slow device of each rank that has one; the slowest of several."""
    found: dict[int, SlowDevice] = {}
    for row in records(shapes_ranks.dropna(subset=["slow_at"])):
        clause = _clause(row, "CPU" if on_cpu else "GPU")
        found.setdefault(row["rank"], SlowDevice(clause, row["extra_ns"] / 1e6 / max(steps, 1)))
    return found


def _clause(row: Row, what: str) -> str:
    """`its GPU is 12% slower at every operator: throttled or shared (1,200 MHz, others 1,980 MHz: power cap)`."""
    if row["slow_at"] in (AT_EVERYTHING, AT_PRODUCTS):
        at, cause = (
            ("at every operator", "throttled or shared")
            if row["slow_at"] == AT_EVERYTHING
            else ("at products of matrices, and not at what memory bounds", "its clock is lower")
        )
        model = None if row["note"] is None else row["note"].replace("its device is", "it is")
        return f"its {what} is {row['slow_over_frac']:.0%} slower {at}: {model or cause}{_clocks(row)}"
    call = f"`{row['operator']}` [{row['inputs'] or 'scalars'}]"
    over = f"{row['slow_over_frac']:.0%} longer"
    if row["slow_at"] == AT_KERNEL:
        return f"it runs another kernel for {call}, which takes {over}"
    return f"{call} takes {over}, by the same kernel"


def _clocks(row: Row) -> str:
    own, usual, slowed_by = row["clock_mhz"], row["usual_clock_mhz"], row["slowed_by"]
    is_lower = own is not None and usual is not None and own < _LOWER_CLOCK * usual
    clocks = f"{own:,} MHz, others {usual:,.0f} MHz" if is_lower else ""
    said = ": ".join(part for part in (clocks, slowed_by) if part)
    return f" ({said})" if said else ""
