"""Counters of GPUs, such as clock and power, by step and by what the device did at each sample."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...core.intervals import Spans, Times, spans
from ...core.kinds import COMM, COMPUTE, KINDS
from ...core.schema import Row, grouped
from ...core.steps import Window, windows_of

if TYPE_CHECKING:
    import pandas as pd

# Other words in parentheses are no units: `Cycles (Current Kernel)`.
_NAMED = re.compile(r"(?P<name>.+) \((?P<unit>W|C|%|[kMG]?Hz|(?:[kMGT]?B)(?:/s)?)\)")
_WHOLE = Window(-1, -(1 << 63), (1 << 63) - 1)
_NEEDED = ["rank", "cycle", "device", "kind", "start_ns", "dur_ns", "step", "idle_since_ns"]


def counter_rows(samples: pd.DataFrame, activities: pd.DataFrame) -> Iterator[Row]:
    """Yield a row per rank, device, counter and step; of all that was recorded where no steps are marked.

    A sample counts in the step in whose window it was taken, and for what ran on the device at that moment.
    """
    sampled = samples[samples["value"].notna() & samples["name"].notna()]
    ran = {(rank, cycle): rows for (rank, cycle), rows in grouped(activities, ["rank", "cycle"], _NEEDED)}
    values: dict[tuple[int, str, str, int], list[tuple[NDArray[np.float64], NDArray[np.bool_]]]] = {}
    for (rank, device, cycle), of_device in grouped(sampled, ["rank", "device", "cycle"]):
        of_process = ran.get((rank, cycle), activities[:0])
        windows = windows_of(of_process) if len(of_process) else []
        here = of_process[of_process["device"] == device]
        running = [spans_of(here[here["kind"] == kind]) for kind in KINDS]
        for (name,), rows in grouped(of_device, ["name"]):
            times = rows["time_ns"].to_numpy(dtype=np.int64)
            value = rows["value"].to_numpy(dtype=np.float64)
            while_running = np.stack([inside(each, times) for each in running])
            for window in windows or [_WHOLE]:
                chosen = (times >= window.start_ns) & (times < window.end_ns)
                if chosen.any():
                    key = (rank, device, name, window.step)
                    values.setdefault(key, []).append((value[chosen], while_running[:, chosen]))
    for (rank, device, name, step), cycles in sorted(values.items()):
        value = np.concatenate([each for each, _ in cycles])
        while_running = np.concatenate([each for _, each in cycles], axis=1)
        counter, unit = name_and_unit(name)
        yield {
            "rank": rank,
            "device": device,
            "name": counter,
            "unit": unit,
            "step": None if step == _WHOLE.step else step,
            "samples": len(value),
            "mean": float(value.mean()),
            "max": float(value.max()),
            "while_compute_mean": _mean(value, while_running[KINDS.index(COMPUTE)]),
            "while_communication_mean": _mean(value, while_running[KINDS.index(COMM)]),
            "while_idle_mean": _mean(value, np.logical_not(np.logical_or.reduce(while_running))),
        }


def name_and_unit(name: str) -> tuple[str, str | None]:
    """The name of a counter and its unit, which stands in the name that torch writes; None if none does."""
    named = _NAMED.fullmatch(name)
    return (name, None) if named is None else (named["name"], named["unit"])


def spans_of(activities: pd.DataFrame) -> Spans:
    """When any of these runs."""
    starts = activities["start_ns"].to_numpy(dtype=np.int64)
    return spans(starts, starts + activities["dur_ns"].to_numpy(dtype=np.int64))


def inside(running: Spans, times: Times) -> NDArray[np.bool_]:
    """Whether each time is within one of the spans."""
    if not len(running.starts):
        return np.zeros(len(times), dtype=bool)
    place = np.searchsorted(running.starts, times, side="right") - 1
    inside: NDArray[np.bool_] = (place >= 0) & (times < running.ends[np.maximum(place, 0)])
    return inside


def _mean(value: NDArray[np.float64], chosen: NDArray[np.bool_]) -> float | None:
    return float(value[chosen].mean()) if chosen.any() else None
