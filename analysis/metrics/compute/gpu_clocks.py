"""The clock at which each GPU computes, with its power and temperature: whether it is throttled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from ...core.schema import Row, records

if TYPE_CHECKING:
    from ..device.breakdown import Device

SAMPLED, AT_THE_END = "samples while it computed", "the end of the capture"
LOWER_CLOCK = 0.95
"""Of the clock of the others: below it, a GPU is throttled."""
_SAMPLES = {"SM Clock": "mhz", "Power": "power_w", "Temperature": "temperature_c"}
"""Counters that say whether a GPU is throttled, and why."""


class Clock(NamedTuple):
    """Clock of a GPU's multiprocessors, in MHz, and what held it down when the capture ended.

    If it `is_sampled`, it is the mean while the GPU computed, as are power and temperature.
    """

    mhz: float | None
    slowed_by: tuple[str, ...]
    power_w: float | None = None
    temperature_c: float | None = None
    is_sampled: bool = False


def clocks_of(
    ended: Mapping[int, tuple[int | None, tuple[str, ...]]],
    counters: pd.DataFrame,
    devices: Iterable[Device],
    steps: Collection[int],
) -> dict[Device, Clock]:
    """The clock of each of these devices, where it is known: from the table `counters` in these steps, or in all.

    Else it is that at which the capture of its rank `ended`, with what held it down then.
    """
    sampled = counters[counters["name"].isin(list(_SAMPLES)) & counters["while_compute_mean"].notna()]
    sampled = sampled[sampled["step"].isin(list(steps))] if steps else sampled
    means = sampled.groupby(["rank", "device", "name"])["while_compute_mean"].mean().reset_index()
    found: dict[Device, dict[str, float]] = {}
    for row in records(means):
        found.setdefault((row["rank"], row["device"]), {})[_SAMPLES[row["name"]]] = row["while_compute_mean"]
    clocks: dict[Device, Clock] = {}
    for rank, device in devices:
        mhz, slowed_by = ended.get(rank, (None, ()))
        own = found.get((rank, device), {})
        if "mhz" in own:
            power, temperature = own.get("power_w"), own.get("temperature_c")
            clocks[rank, device] = Clock(own["mhz"], slowed_by, power, temperature, is_sampled=True)
        elif rank in ended:
            clocks[rank, device] = Clock(mhz, slowed_by)
    return clocks


def clock_beside(one: Device, others: Iterable[Device], clocks: Mapping[Device, Clock]) -> Row:
    """The columns of `shapes_ranks` on the clock of a device and those of others; none if it is not known."""
    own = clocks.get(one)
    if own is None:
        return {}
    known = [clocks[other] for other in others if other in clocks]
    alike = [clock for clock in known if clock.is_sampled == own.is_sampled]  # else one is busy, and the other idle
    return {
        "clock_mhz": None if own.mhz is None else round(own.mhz),
        "usual_clock_mhz": _median(clock.mhz for clock in alike),
        "power_w": own.power_w,
        "usual_power_w": _median(clock.power_w for clock in alike),
        "temperature_c": own.temperature_c,
        "usual_temperature_c": _median(clock.temperature_c for clock in alike),
        "clock_from": SAMPLED if own.is_sampled else AT_THE_END if own.mhz is not None else None,
        "slowed_by": ", ".join(own.slowed_by) or None,
    }


def has_lower_clock(row: Row) -> bool:
    """Whether the clock in such a row is lower than that of the others."""
    own, usual = row["clock_mhz"], row["usual_clock_mhz"]
    return own is not None and usual is not None and own < LOWER_CLOCK * usual


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
