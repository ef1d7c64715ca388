"""Counters of GPUs that torch records: power, temperature, clocks, and shares of what the hardware can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, each_rank
from ..core.schema import Schema
from ..core.tables.columns import DEVICE, PARTIAL, RANK

if TYPE_CHECKING:
    import pandas as pd

COUNTERS = Schema("counters", "rank, device, counter and step", {
    "rank": RANK,
    "device": DEVICE,
    "name": ("string", "counter, as torch calls it without its unit: Power, SM Clock, DRAM BW, NVLink RX, ..."),
    "unit": ("string", "W, C, MHz, % ...; NA where its name has none"),
    "step": ("Int64", "N of the ProfilerStep#N in whose window it was sampled; NA where no steps are marked"),
    "samples": ("int64", "samples in the step"),
    "mean": ("float64", "mean of the samples, in this unit"),
    "max": ("float64", "largest of them"),
    "while_compute_mean": ("Float64", "mean of those at whose moment a kernel computed; NA without any"),
    "while_communication_mean": ("Float64", "likewise while a kernel communicated, whatever else ran"),
    "while_idle_mean": ("Float64", "likewise while nothing ran on the device"),
    "partial": PARTIAL,
})  # fmt: skip


@TableEntry(
    COUNTERS,
    Topic.time,
    "Power, temperature, clocks and other counters of GPUs, by step.",
    "counters.md#samples-by-step",
    command="table counters",
    after="gpus",
    narrow=(
        "rank", "device", "name", "unit", "step", "mean", "while_compute_mean", "while_communication_mean",
        "while_idle_mean", "max",
    ),
    none_found=(
        "the traces have no counters of GPUs; torch 2.14 and later record them with cupti_monitor and "
        "enable_environment_counters"
    ),
)  # fmt: skip
@each_rank
def counters(counter_samples: pd.DataFrame, activities: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device, counter and step. Needs `details`."""
    from ..metrics.device.counters import counter_rows

    return COUNTERS.frame(counter_rows(counter_samples, activities))
