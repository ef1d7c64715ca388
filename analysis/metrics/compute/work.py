"""Which operator each kernel belongs to, with the shapes that it was called with.

A kernel belongs to the operator around its launch: to the outermost one with a formula for its FLOPs, as what that
calls is part of it, else to the innermost one. One that only hands over to its like does not count. On runs without a
GPU an operator is its own work: one with a formula takes as long as it takes, any other as long as what it does itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.arrays import Ints
from ...core.intervals import Times
from ...core.kinds import COMPUTE, MEMORY
from ...core.schema import bare, grouped, text_codes
from ...core.steps import NO_STEP, Mark, steps_at
from ..device.launches import enclosing, innermost
from .flops import counted_once, counts, handing_over

_OF_LAUNCHES = ("blocks_per_sm", "occupancy_frac")
WORK_COLUMNS = ("rank", "device", "step", "kernel", "start_ns", "dur_ns", *_OF_LAUNCHES, "call", "operator", "inputs")
"""Columns of `compute_work`."""
_NONE = -1
_NO_ID = np.iinfo(np.int64).min


def compute_work(
    activities: pd.DataFrame, launches: pd.DataFrame, operator_calls: pd.DataFrame, annotations: pd.DataFrame
) -> pd.DataFrame:
    """What ran, with its operator: a row per kernel, copy or fill, without communication; on CPUs per operator.

    The arguments are the tables of these names. `kernel` is NA on CPUs; `call` numbers the calls of operators, and is
    NA with `operator` and `inputs` where no operator with shapes is around the launch.
    """
    calls, launched = (dict(grouped(table, ["rank", "cycle"])) for table in (operator_calls, launches))
    marks = dict(grouped(annotations, ["rank", "cycle"]))
    parts: list[pd.DataFrame] = []
    before = 0
    for key, ran in grouped(activities, ["rank", "cycle"]):
        of_file = calls.get(key)
        if of_file is None:
            of_file = operator_calls[:0]
        operators = _Operators(of_file)
        if (bare(ran["device"]) == "cpu").all():
            part = operators.on_cpu(key[0], _marks(marks.get(key)))
        else:
            part = operators.of_kernels(ran[ran["kind"].isin([COMPUTE, MEMORY])], launched.get(key, launches[:0]))
        parts.append(part.assign(call=part["call"] + before))
        before += len(of_file)
    if not parts:
        return pd.DataFrame({name: pd.Series(dtype="object") for name in WORK_COLUMNS})
    return pd.concat(parts, ignore_index=True)


def _marks(annotations: pd.DataFrame | None) -> list[Mark]:
    if annotations is None:
        return []
    return list(zip(*(annotations[name].tolist() for name in ("name", "start_ns", "dur_ns")), strict=True))


class _Operators:
    """The operators of one file as arrays in order of start, the outer one of two first; of shape (operators,)."""

    def __init__(self, calls: pd.DataFrame) -> None:
        thread, start, dur = (calls[name].to_numpy() for name in ("thread", "start_ns", "dur_ns"))
        order = np.lexsort((-dur, start, thread))
        self.thread, self.start, self.dur = thread[order], start[order], dur[order]
        self.end = self.start + self.dur
        codes, names = text_codes(calls["name"])
        self.name = calls["name"].array[order]
        inputs = calls["inputs"].array[order]
        # Without its inputs, an operator has no FLOPs: then what it calls may.
        has_formula = np.array([counts(name) for name in names], dtype=bool)
        self.counted = has_formula[codes][order] & ~np.asarray(pd.isna(inputs), dtype=bool)
        self.hands_over = np.zeros(len(order), dtype=bool)
        self.owner = np.arange(len(order))
        for rows in self._threads():
            self.hands_over[rows] = handing_over(self.name[rows], self.start[rows], self.end[rows], self.counted[rows])
            self.counted[rows] &= ~self.hands_over[rows]
            self.owner[rows] = rows.start + _owners(self.start[rows], self.end[rows], self.counted[rows])

        self.inputs = inputs.take(np.where(self.hands_over, _NONE, np.arange(len(order))), allow_fill=True)

    def _threads(self) -> Iterator[slice]:
        """The places of each thread."""
        if len(self.thread):
            bounds = [0, *(np.flatnonzero(np.diff(self.thread)) + 1).tolist(), len(self.thread)]
            yield from map(slice, bounds[:-1], bounds[1:])

    def of_kernels(self, ran: pd.DataFrame, launches: pd.DataFrame) -> pd.DataFrame:
        """A row of `work` for each of these activities."""
        owner = np.full(len(ran), _NONE)
        place = pd.Index(launches["correlation"]).get_indexer(ran["correlation"].fillna(_NO_ID).astype("int64"))
        launched = np.flatnonzero(place >= 0)
        thread, times = (launches[name].to_numpy()[place[launched]] for name in ("thread", "start_ns"))
        for rows in self._threads():
            here = thread == self.thread[rows.start]
            inner = innermost(self.start[rows], self.end[rows], times[here])
            owner[launched[here]] = np.where(inner >= 0, self.owner[rows][inner], _NONE)
        start, took = (ran[name].to_numpy() for name in ("start_ns", "dur_ns"))
        launched_as = {name: ran[name].array for name in _OF_LAUNCHES}
        return self._table(ran["rank"], ran["device"], ran["step"], ran["name"], start, took, launched_as, owner)

    def on_cpu(self, rank: int, marks: Iterable[Mark]) -> pd.DataFrame:
        """A row of `work` for each operator of a run without a GPU that is not part of another one."""
        own = self.dur.copy()
        for rows in self._threads():
            outer = enclosing(self.start[rows], self.end[rows] - 1)
            inside = np.flatnonzero((outer >= 0) & (self.owner[rows] == np.arange(rows.start, rows.stop)))
            np.subtract.at(own, rows.start + outer[inside], self.dur[rows][inside])
        places = np.flatnonzero((self.owner == np.arange(len(self.owner))) & ~self.hands_over)
        step = steps_at(self.start[places], marks)
        steps = pd.array(step, dtype="Int64")
        steps[step == NO_STEP] = pd.NA
        count = len(places)
        took = np.maximum(np.where(self.counted[places], self.dur[places], own[places]), 0)
        no_kernel = pd.array([pd.NA] * count, dtype="string")
        no_launch = dict.fromkeys(_OF_LAUNCHES, pd.array([pd.NA] * count, dtype="Float64"))
        start = self.start[places]
        return self._table([rank] * count, ["cpu"] * count, steps, no_kernel, start, took, no_launch, places)

    def _table(
        self,
        rank: Any,
        device: Any,
        step: Any,
        kernel: Any,
        start_ns: Times,
        dur_ns: Times,
        launched_as: Mapping[str, Any],
        owner: Ints,
    ) -> pd.DataFrame:
        place = np.where(owner < 0, -1, owner)
        columns = {
            "rank": np.asarray(rank, dtype=np.int64),
            "device": pd.array(list(device), dtype="string"),
            "step": pd.array(step, dtype="Int64"),
            "kernel": pd.array(kernel, dtype="string"),
            "start_ns": np.asarray(start_ns, dtype=np.int64),
            "dur_ns": np.asarray(dur_ns, dtype=np.int64),
            **launched_as,
            "call": pd.arrays.IntegerArray(np.where(owner < 0, 0, owner), owner < 0),
            "operator": self.name.take(place, allow_fill=True),
            "inputs": self.inputs.take(place, allow_fill=True),
        }
        return pd.DataFrame(columns, copy=False)


def _owners(starts: Times, ends: Times, counted: NDArray[np.bool_]) -> Ints:
    """For each operator of a thread the counted one that it is part of, else itself; places, of shape (operators,)."""
    owner = np.arange(len(starts))
    outer = np.flatnonzero(counted_once(starts, ends, counted))
    if len(outer):
        last = np.searchsorted(starts[outer], starts, side="right") - 1
        inside = (last >= 0) & (ends <= ends[outer[last]])
        owner[inside] = outer[last[inside]]
    return owner
