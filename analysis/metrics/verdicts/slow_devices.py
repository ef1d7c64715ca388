"""Why a rank computes longer: its device is slow, runs another kernel, or has more to compute than the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pandas as pd

from ...core.schema import Row, records
from ..compute.gpu_clocks import Clock, clock_beside
from ..device.breakdown import Device
from ..pipelines.stages import HeavyStage

_LEAST_MORE = 1.02
"""FLOPs of a rank over those of the others, to be more of them."""


class SlowDevice(NamedTuple):
    """What a device is slower at: its row of `shapes_ranks`, and how much longer that takes in a step, in ms."""

    row: Row
    ms_per_step: float


class MoreWork(NamedTuple):
    """How many times the FLOPs of the others a rank has, and how much longer these take in a step, in ms."""

    times: float
    ms_per_step: float


class SampledClock(NamedTuple):
    """The clock of a GPU beside those of others, where no shapes are known that it is slower at.

    `row` has the columns of `shapes_ranks` on clocks, and `ms_per_step` is how much longer it computes than others.
    """

    row: Row
    ms_per_step: float


Slow = SlowDevice | MoreWork | SampledClock | HeavyStage


def stage_or_device(heavy: HeavyStage, slow: Slow | None) -> Slow:
    """Why the rank of a heavy stage computes longer: a slow device is slow at all its stages, and at the same work."""
    if heavy.is_alone or slow is None or isinstance(slow, MoreWork):
        return heavy
    return slow


def slow_devices(
    shapes_ranks: pd.DataFrame,
    mfu: pd.DataFrame,
    steps: int,
    clocks: Mapping[Device, Clock],
    breakdown_steps: pd.DataFrame,
) -> dict[int, Slow]:
    """Why each rank that does computes longer in one of `steps`; of several reasons that which takes longest.

    `clocks` are those of the devices, and `breakdown_steps` is that table in these steps.
    """
    found: dict[int, Slow] = {}
    for row in records(shapes_ranks.dropna(subset=["slow_at"])):
        found.setdefault(row["rank"], SlowDevice(row, row["extra_ns"] / 1e6 / max(steps, 1)))
    for rank, more in _more_work(mfu, steps):
        if rank not in found or more.ms_per_step > found[rank].ms_per_step:
            found[rank] = more
    for (rank, _), one in _by_clock(clocks, breakdown_steps):
        found.setdefault(rank, one)
    return found


def _by_clock(clocks: Mapping[Device, Clock], by_step: pd.DataFrame) -> Iterator[tuple[Device, SampledClock]]:
    """Yield devices whose clock was sampled, and that compute longer than the median of the others."""
    computed_ns = by_step.groupby(["rank", "device"])["compute_ns"].mean()
    for device, clock in clocks.items():
        others = [other for other in clocks if other != device and other in computed_ns.index]
        if not clock.is_sampled or device not in computed_ns.index or not others:
            continue
        row = clock_beside(device, others, clocks)
        longer_ns = float(computed_ns[device]) - float(computed_ns[others].median())
        if longer_ns > 0 and row["usual_clock_mhz"] is not None:
            yield device, SampledClock(row, longer_ns / 1e6)


def _more_work(mfu: pd.DataFrame, steps: int) -> Iterator[tuple[int, MoreWork]]:
    """Ranks with more FLOPs than the median of the others, whose whole compute time is taken to grow alike."""
    known = mfu[mfu["tflop"].notna()]
    computed_ns = (known["at_peak_ns"].fillna(0) + known["below_peak_ns"]).groupby(known["rank"]).sum()
    flop = known.groupby("rank")["tflop"].sum()
    for rank in flop.index.tolist():
        others = flop.index != rank
        times = float(flop[rank] / flop[others].median()) if others.any() else 1.0
        if times >= _LEAST_MORE:
            yield rank, MoreWork(times, float(computed_ns[others].median()) * (times - 1) / 1e6 / max(steps, 1))
