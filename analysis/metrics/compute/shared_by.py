"""What compute shares with communication beside it, memory bandwidth or multiprocessors: by counters of the GPU.

Sources: torch 2.14 samples, with `enable_pm_sampling`, CUPTI's gpu__dram_throughput and sm__cycles_active as parts of
what the hardware sustains, once in a ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...core.kinds import COMPUTE
from ...core.schema import Row, grouped
from ..device.counters import inside, name_and_unit, spans_of

if TYPE_CHECKING:
    import pandas as pd

_MEMORY, _MULTIPROCESSORS = "memory bandwidth", "multiprocessors"
_MEMORY_COUNTER, _BUSY_COUNTER = ("DRAM BW", "%"), ("SM Active", "%")
_FULL, _FREE = 0.75, 0.5
"""Of the memory bandwidth: copies reach some 0.9, so that means from 0.75 on are of memory that is mostly full; where
half of it is free, what kernels lack is something else, and NCCL's take multiprocessors."""
_BUSY = 0.75
"""Of the multiprocessors: where more of them have nothing to do, they are not what is missing either."""
_LEAST_SAMPLES = 3


class Load(NamedTuple):
    """How busy a GPU is while it computes beside a kind of collective, as parts of 1; None where that is not known."""

    memory_frac: float | None
    busy_frac: float | None

    @property
    def shared(self) -> str | None:
        """What compute lacks beside that communication, if it is slower there; None where that stays open."""
        if self.memory_frac is not None and self.memory_frac >= _FULL:
            return _MEMORY
        are_free = self.memory_frac is not None and self.memory_frac <= _FREE
        return _MULTIPROCESSORS if are_free and (self.busy_frac or 0.0) >= _BUSY else None


def loads_beside(
    samples: pd.DataFrame, activities: pd.DataFrame, calls: pd.DataFrame
) -> dict[tuple[int, str | None], Load]:
    """The mean load of each rank's devices at samples that fall into compute beside a kind of collective.

    Of fewer than three samples nothing is said.
    """
    sampled = samples[samples["value"].notna() & samples["name"].notna()]
    computes = dict(grouped(activities[activities["kind"] == COMPUTE], ["rank", "device", "cycle"]))
    of_calls = calls.groupby(["rank", "device", "cycle"], sort=False)
    communicates = dict(iter(of_calls))
    found: dict[tuple[int, str | None], dict[tuple[str, str | None], list[float]]] = {}
    for (rank, device, cycle), own in grouped(sampled, ["rank", "device", "cycle"]):
        compute, beside = (each.get((rank, device, cycle)) for each in (computes, communicates))
        if compute is None or beside is None:
            continue
        times, values = own["time_ns"].to_numpy(dtype=np.int64), own["value"].to_numpy(dtype=np.float64)
        while_computing = inside(spans_of(compute), times)
        named = [name_and_unit(name) for name in own["name"].tolist()]
        for collective, of_kind in beside.groupby("collective", dropna=False, sort=True):
            kind = collective if isinstance(collective, str) else None
            loads = found.setdefault((rank, kind), {})
            for at in np.flatnonzero(while_computing & inside(spans_of(of_kind), times)).tolist():
                loads.setdefault(named[at], []).append(float(values[at]) / 100)
    return {key: Load(_mean(of, _MEMORY_COUNTER), _mean(of, _BUSY_COUNTER)) for key, of in found.items()}


def _mean(loads: Mapping[tuple[str, str | None], list[float]], counter: tuple[str, str]) -> float | None:
    values = loads.get(counter, [])
    return sum(values) / len(values) if len(values) >= _LEAST_SAMPLES else None


def with_loads(rows: Iterable[Row], loads: Mapping[tuple[int, str | None], Load]) -> list[Row]:
    """Rows of `contention` with the load of their rank beside their kind of collective."""
    return [row | _of_row(row, loads.get((row["rank"], row["collective"]))) for row in rows]


def _of_row(row: Row, load: Load | None) -> Row:
    if load is None:
        return {"memory_frac": None, "sm_active_frac": None, "shared": None}
    is_slower = (row.get("slowdown_low") or 0.0) > 1
    return {
        "memory_frac": load.memory_frac,
        "sm_active_frac": load.busy_frac,
        "shared": load.shared if is_slower else None,
    }
