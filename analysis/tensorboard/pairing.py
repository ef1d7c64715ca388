"""Devices of a run as workers of torch-tb-profiler, and the collectives that it pairs correctly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core.intervals import covered, spans
from ..core.kinds import COMM
from ..core.schema import grouped
from ..core.steps import NO_STEP, Window, windows_of

# Those that torch-tb-profiler knows.
_KNOWN = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_PLACE = ["start_ns", "dur_ns", "stream"]

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class DeviceWorker:
    """A device of a rank in one cycle: its activities and calls.

    These have the `collective_id` of their collective, and whether it is `complete`; both NA for none.
    """

    rank: int
    device: str
    activities: pd.DataFrame
    calls: pd.DataFrame

    @cached_property
    def windows(self) -> Sequence[Window]:
        """The steps, or the whole time as step 0."""
        starts, ends = _ends(self.activities)
        return windows_of(self.activities) or [Window(0, int(starts.min()), int(ends.max()))]

    @property
    def communication(self) -> pd.DataFrame:
        """Communication that overlaps a step."""
        starts, ends = _ends(self.activities)
        inside = (ends > self.windows[0].start_ns) & (starts < self.windows[-1].end_ns)
        return self.activities[inside & (self.activities["kind"] == COMM)]

    def unpaired(self, paired: pd.DataFrame) -> pd.DataFrame:
        """The communication without these calls."""
        known = pd.MultiIndex.from_frame(paired[_PLACE])
        return self.communication[~pd.MultiIndex.from_frame(self.communication[_PLACE]).isin(known)]

    def candidates(self) -> pd.DataFrame:
        """Begin and step of each collective that may be paired, by its number.

        No rank of it may be missing, and it has to lie in one step as a whole, without gaps in it.
        """
        calls = self.calls[self.calls["collective"].isin(_KNOWN) & self.calls["complete"].fillna(False)]
        starts, ends = _ends(calls)
        whole = covered(spans(*_ends(self.communication)), starts, ends) == ends - starts
        step = np.where(whole, self._step_around(starts, ends), NO_STEP)
        ids = calls["collective_id"].to_numpy(dtype=np.int64)
        begun = pd.DataFrame({"start_ns": starts, "step": step}, index=ids)
        once: pd.DataFrame = begun[(step != NO_STEP) & ~begun.index.duplicated(keep=False)]
        return once

    def _step_around(self, starts: _Ints, ends: _Ints) -> _Ints:
        steps, begins, finishes = (np.array(column, dtype=np.int64) for column in zip(*self.windows, strict=True))
        at = np.maximum(np.searchsorted(begins, starts, side="right") - 1, 0)
        return np.where((starts >= begins[at]) & (ends <= finishes[at]), steps[at], NO_STEP)


def workers_of(activities: pd.DataFrame, calls: pd.DataFrame) -> list[DeviceWorker]:
    """The workers of one cycle, by rank and device. `calls` are as described for a worker."""
    by_device = dict(grouped(calls, ["rank", "device"]))
    none = calls.iloc[:0]
    return [
        DeviceWorker(rank, device, own, by_device.get((rank, device), none))
        for (rank, device), own in grouped(activities, ["rank", "device"])
    ]


def paired_collectives(workers: Sequence[DeviceWorker]) -> dict[int, int]:
    """Collectives of all workers, in one step and in the same order, numbered from 1.

    torch-tb-profiler pairs the n-th of each worker, whatever it is.
    """
    candidates: Any = pd.concat(dict(enumerate(worker.candidates() for worker in workers)), axis=1, join="inner")
    starts, steps = (candidates.xs(name, axis=1, level=1).to_numpy() for name in ("start_ns", "step"))
    numbers: dict[int, int] = {}
    last = np.full(len(workers), np.iinfo(np.int64).min)
    for row in np.lexsort(starts.T[::-1]):
        if (starts[row] > last).all() and (steps[row] == steps[row, 0]).all():
            numbers[int(candidates.index[row])] = len(numbers) + 1
            last = starts[row]
    return numbers


def _ends(table: pd.DataFrame) -> tuple[_Ints, _Ints]:
    """Begin and end of each row."""
    starts = table["start_ns"].to_numpy()
    return starts, starts + table["dur_ns"].to_numpy()
