"""Values of every step of a run, by number: what runs are compared by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core import markers
from ..metrics.memory.categories import UNKNOWN_USE
from ..metrics.memory.held import memory_of
from ..metrics.memory.table import CATEGORY_COLUMNS
from ..metrics.periods import START_UP_STEPS, Period

Values = NDArray[np.float64]
Key = tuple[str | None, ...]

_OF_BREAKDOWN = {
    "compute": "compute_ns",
    "comm": "comm_ns",
    "exposed_comm": "exposed_comm_ns",
    "exposed_wait": "exposed_wait_ns",
    "exposed_transfer": "exposed_transfer_ns",
    "exposed_memory": "exposed_memory_ns",
    "idle": "idle_ns",
}
UNPROFILED, PROFILED, TRACED = "unprofiled steps", "profiled steps", "step windows of the traces"
SOURCES = (UNPROFILED, PROFILED, TRACED)
"""Where the length of a step may come from, the best source first."""


@dataclass(frozen=True, eq=False)
class Capture:
    """The steps of one capture: their values and numbers."""

    steps: NDArray[np.int64]
    values: Values

    def __len__(self) -> int:
        return len(self.values)

    def only(self, steps: NDArray[np.int64]) -> Capture:
        """The steps of these numbers."""
        wanted = np.isin(self.steps, steps)
        return Capture(self.steps[wanted], self.values[wanted])


def step_lengths(step_times: pd.DataFrame, breakdown_steps: pd.DataFrame) -> dict[str, pd.Series[float]]:
    """Step lengths in ns by source, the best source first; the slowest rank counts.

    Steps that some rank does not list are left out, as are the first ones of a side file. Cycles that number steps
    anew, as two captures of one run do, are one: the mean of the steps of a number.
    """
    settled = step_times[step_times["step"] >= START_UP_STEPS]
    ranks = step_times["rank"].nunique()
    lengths = {}
    for source, phase in ((UNPROFILED, "idle"), (PROFILED, "active")):
        by_step = settled[settled["phase"] == phase].groupby("step")["dur_ns"]
        lengths[source] = _floats(by_step.max()[by_step.size() == ranks])
    nth = breakdown_steps.groupby(["rank", "device", "step"]).cumcount()
    slowest = breakdown_steps.groupby(["step", nth])["window_ns"].max()
    lengths[TRACED] = _floats(slowest.groupby("step").mean())
    return lengths


def measures(
    breakdown_steps: pd.DataFrame, calls: pd.DataFrame, participation: pd.DataFrame
) -> dict[str, pd.Series[float]]:
    """Mean of each measure over ranks and devices by step, in ns; steps with unknown values are left out."""
    mean = breakdown_steps.groupby("step")[list(_OF_BREAKDOWN.values())].agg(_mean_if_known)
    values = {measure: _floats(mean[column].dropna()) for measure, column in _OF_BREAKDOWN.items()}
    devices = _devices(breakdown_steps)
    split = participation[["call_id", "wait_ns", "transfer_ns"]].merge(calls[["call_id", "step"]], on="call_id")
    split = split[split["step"].notna()]
    for measure in ("wait", "transfer"):
        sums = split.groupby("step")[f"{measure}_ns"].agg(_sum_if_known)
        values[measure] = _floats((sums / devices).dropna())
    return values


def time_per_step(time: pd.DataFrame, keys: list[str]) -> dict[Key, pd.Series[float]]:
    """Mean device time per device and step by `keys`, in ns; 0 in steps without any.

    `time` is that of `kernels.device_time`; what was launched outside every step is left out.
    """
    stepped = time[time["step"].notna()]
    devices = _devices(stepped)
    steps = sorted(stepped["step"].unique())
    times = {}
    for key, of_key in stepped.groupby(keys, dropna=False, sort=True):
        sums = of_key.groupby("step")["dur_ns"].sum().reindex(steps, fill_value=0)
        times[tuple(part if isinstance(part, str) else None for part in key)] = _floats(sums / devices)
    return times


def _devices(stepped: pd.DataFrame) -> pd.Series[int]:
    """Number of devices with each step: fewer where ranks have different windows."""
    return stepped[["step", "rank", "device"]].drop_duplicates().groupby("step").size()


def peak_memory(memory_events: pd.DataFrame, annotations: pd.DataFrame) -> pd.Series[float]:
    """Largest allocation in each step on the device with the most, with what it began with; empty if not known.

    In bytes. GPUs count, or the CPU if there are none.
    """
    on_gpu = memory_events[memory_events["device"] != "cpu"]
    known = (on_gpu if len(on_gpu) else memory_events).dropna(subset="allocated_bytes")
    marks = _marks(annotations)
    peaks: dict[int, int] = {}
    for memory in memory_of(known):
        here = marks[(marks["rank"] == memory.rank) & (marks["cycle"] == memory.cycle)]
        for step, start, dur in zip(here["step"], here["start_ns"], here["dur_ns"], strict=True):
            most = memory.allocated_at(memory.peak_within(memory.event_at(start - 1), memory.event_at(start + dur)))
            peaks[step] = max(peaks.get(step, 0), most)
    return pd.Series(peaks, dtype="float64").sort_index()


def memory_at_peak(memory: pd.DataFrame) -> dict[str, int]:
    """What the device with the highest peak in the table `memory` holds at it, by category; empty if not known.

    GPUs count, or the CPU if there are none.
    """
    on_gpu = memory[memory["device"] != "cpu"]
    known = on_gpu if len(on_gpu) else memory
    if not len(known):
        return {}
    row = known.loc[known["peak_allocated_bytes"].idxmax()]
    parts = {category: row[column] for category, column in CATEGORY_COLUMNS.items()}
    return {} if pd.isna(parts[UNKNOWN_USE]) else {name: 0 if pd.isna(n) else int(n) for name, n in parts.items()}


def closed_steps(breakdown_steps: pd.DataFrame, last: Sequence[int]) -> pd.DataFrame:
    """Drop the last step of each cycle, which ends with its last activity, if others remain."""
    closed = breakdown_steps[~breakdown_steps["step"].isin(last)]
    return closed if len(closed) else breakdown_steps


def midmean(values: Values) -> float:
    """The mean of the middle half of these values, of three the one between; one at a border counts by its part inside.

    A median hardly moves where nearly half of the steps are longer, as where every second one is, and then jumps; the
    mean of all steps goes with a single pause.
    Source: Tukey, Exploratory Data Analysis (1977).
    """
    ordered, count = np.sort(values), len(values)
    cut = max(count / 4, min(1.0, (count - 1) / 2))
    inside = np.diff(np.clip(np.arange(count + 1), cut, count - cut)) / (count - 2 * cut)
    base = ordered[count // 2]  # so that equal values have no mean but this one
    return float(base + (ordered - base) @ inside)


def last_steps(annotations: pd.DataFrame) -> list[int]:
    """The last step of each profiling cycle, in order; of cycles that number steps alike, of all of them together."""
    of_cycles = _marks(annotations).groupby("cycle")["step"].agg(["min", "max"]).sort_values("min")
    last: list[int] = []
    for first, end in of_cycles.to_numpy().tolist():
        if last and first <= last[-1]:
            last[-1] = max(last[-1], end)
        else:
            last.append(end)
    return last


def by_cycle(steps: pd.Series[float], last: Sequence[int], period: Period | None = None) -> list[Capture]:
    """Split steps by the last step of each cycle; later steps belong to the last cycle.

    Where steps repeat after a `period`, each value is the mean of a whole one, and periods have numbers instead.
    """
    numbers, values = steps.index.to_numpy(dtype="int64"), steps.to_numpy()
    cycle = np.minimum(np.searchsorted(last, numbers), max(len(last) - 1, 0))
    found = [Capture(numbers[cycle == number], values[cycle == number]) for number in range(max(len(last), 1))]
    return found if period is None else [_of_periods(one, period) for one in found]


def _of_periods(one: Capture, period: Period) -> Capture:
    whole = one.only(np.array(period.whole(one.steps.tolist()), dtype=np.int64))
    means = np.reshape(whole.values, (-1, period.steps)).mean(axis=1)
    return Capture(whole.steps[:: period.steps] // period.steps, means)


def best_source(captures: Sequence[Mapping[str, Capture]], enough: int) -> str | None:
    """The first source of step lengths with enough steps in every capture; else the fullest one."""
    least = {source: min(len(capture[source]) for capture in captures) for source in captures[0]}
    best = next((source for source, count in least.items() if count >= enough), max(least, key=lambda s: least[s]))
    return best if least[best] else None


def _marks(annotations: pd.DataFrame) -> pd.DataFrame:
    """The annotations of steps with the step's number."""
    marks = annotations[annotations["name"].str.startswith(markers.PROFILER_STEP).fillna(False)]
    return marks.assign(step=marks["name"].str.removeprefix(markers.PROFILER_STEP).astype("int64"))


def _floats(series: pd.Series[Any]) -> pd.Series[float]:
    return series.astype("float64")


def _mean_if_known(values: pd.Series[int]) -> float:
    return float("nan") if values.isna().any() else float(values.mean())


def _sum_if_known(values: pd.Series[int]) -> float:
    return float("nan") if values.isna().any() else float(values.sum())
