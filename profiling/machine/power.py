"""Power of a GPU while something runs on it, through NVML; None with a reason if not known."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import nvml

try:
    import pynvml
except ImportError:
    pynvml = None

# Readings of nvmlDeviceGetPowerUsage are means over up to 1 s (Ampere and later): those of the first second include
# what ran before.
_SETTLE_S = 1.0


@dataclass(frozen=True)
class Power:
    """`watts` of the whole board, from its `energy` counter or power `readings`; None has a `reason`."""

    watts: float | None
    source: str | None = None
    reason: str | None = None


def power(
    uuid: str | None,
    work: Callable[[], None],
    at_least_s: float,
    *,
    library: Any = pynvml,
    now_s: Callable[[], float] = time.monotonic,
) -> Power:
    """Mean power of the GPU `uuid` while `work` is repeated; `work` returns when the GPU has finished it.

    If the GPU has an energy counter (Volta and later), which misses nothing: energy over time. Otherwise the mean of
    readings after each repetition, without the first second. Source: NVML API Reference,
    nvmlDeviceGetTotalEnergyConsumption (mJ), nvmlDeviceGetPowerUsage (mW).
    """
    if uuid is None:
        return Power(None, reason="NVML knows NVIDIA GPUs only: not a CUDA device")
    with nvml.sensors(uuid, library) as (sensors, reason):
        if sensors is None:
            return Power(None, reason=reason)
        begin_mj, begin_s = sensors.energy_mj(), now_s()
        readings_mw: list[int | None] = []
        while (passed_s := now_s() - begin_s) < at_least_s or not readings_mw:
            work()
            reading_mw = sensors.power_mw()
            if passed_s >= min(_SETTLE_S, at_least_s / 2):
                readings_mw.append(reading_mw)
        end_mj, end_s = sensors.energy_mj(), now_s()
    if begin_mj is not None and end_mj is not None and end_mj > begin_mj:
        return Power((end_mj - begin_mj) / 1e3 / (end_s - begin_s), "energy")
    known_mw = [reading for reading in readings_mw if reading is not None]
    if not known_mw:
        return Power(None, reason="this GPU or its driver reports neither energy nor power to NVML")
    return Power(statistics.fmean(known_mw) / 1e3, "readings")
