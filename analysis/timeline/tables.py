"""The tables that a timeline shows, the requested part of them, and columns as arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ...common.wording import counted, shortened
from ..core.tables.communication import MEMBERS
from ..core.tables.events import ACTIVITIES, COUNTER_SAMPLES
from ..errors import NothingMeasured
from ..metrics.device.queues import OnStream
from ..metrics.memory.held import DeviceMemory
from ..run.event_tables import RanInCycle
from ..tables.calls import CALLS
from ..tables.clocks import CLOCKS
from ..tables.collectives import COLLECTIVES
from ..tables.lateness import LATENESS
from .slices import Integers, Mask, Numbers, Texts

_MOST_NAMED = 16


@dataclass(frozen=True)
class Tables:
    """Tables of the run `name`; of `steps`, or of all steps for None.

    `path` has the pieces of its critical path, None if that is not known; `queues` are launches that wait on streams,
    `memory` what devices hold, `counter_samples` those of its GPUs;
    `idle` where its devices were idle, see `idle_pieces`, and `cpus` what its CPUs did, see `cpu_work`. `opened` is the
    rank whose lines are seen at once; the first one for None. `headline`, its `reasons` by what they are, and the
    sentences `notes`, are said of all.
    Tables that are not given are empty.
    """

    name: str
    activities: pd.DataFrame = field(default_factory=ACTIVITIES.empty)
    calls: pd.DataFrame = field(default_factory=CALLS.empty)
    participation: pd.DataFrame = field(default_factory=MEMBERS.empty)
    collectives: pd.DataFrame = field(default_factory=COLLECTIVES.empty)
    lateness: pd.DataFrame = field(default_factory=LATENESS.empty)
    clocks: pd.DataFrame = field(default_factory=CLOCKS.empty)
    path: pd.DataFrame | None = None
    queues: Sequence[OnStream] = ()
    memory: Sequence[DeviceMemory] = ()
    counter_samples: pd.DataFrame = field(default_factory=COUNTER_SAMPLES.empty)
    idle: pd.DataFrame | None = None
    cpus: pd.DataFrame | None = None
    opened: int | None = None
    headline: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    steps: Collection[int] | None = None

    def of_ranks(self, ranks: Collection[int]) -> Tables:
        """Keep only these ranks."""
        return replace(
            self,
            activities=_rows(self.activities, ranks),
            calls=_rows(self.calls, ranks),
            participation=_rows(self.participation, ranks),
            lateness=_rows(self.lateness, ranks),
            clocks=_rows(self.clocks, ranks),
            path=None if self.path is None else _rows(self.path, ranks),
            idle=None if self.idle is None else _rows(self.idle, ranks),
            cpus=None if self.cpus is None else _rows(self.cpus, ranks),
        )

    def of_steps(self, steps: Collection[int]) -> Tables:
        """Show only these steps. Activities stay: where a step begins depends on those of the next one."""
        chosen = replace(self, steps=steps)
        calls = self.calls[chosen.in_steps(self.calls)]
        member = self.participation["call_id"].isin(calls["call_id"])
        return replace(chosen, calls=calls, participation=self.participation[member])

    def in_steps(self, table: pd.DataFrame) -> Mask:
        """Whether each row of a table is in a shown step."""
        if self.steps is None:
            return np.ones(len(table), dtype=bool)
        return table["step"].isin(list(self.steps)).to_numpy(dtype=bool)


def shown_cycles(
    name: str, ran: Collection[RanInCycle], *, steps: Collection[int] | None, ranks: Collection[int] | None
) -> list[RanInCycle]:
    """The cycles of the run `name` with activities to show: of these steps and ranks, or of all for None.

    Raises NothingMeasured if one of the ranks did nothing or has no trace, or if no step has an activity.
    """
    known = {each.rank for each in ran}
    missing = sorted(set(ranks or ()) - known)
    if missing:
        raise NothingMeasured(
            f"{name}: shows no activity of {counted(len(missing), 'rank')} that the timeline is to show: "
            f"{shortened(missing, _MOST_NAMED)}; there are {shortened(sorted(known), _MOST_NAMED)}"
        )
    of_ranks = [each for each in ran if ranks is None or each.rank in ranks]
    shown = [each for each in of_ranks if steps is None or not set(each.steps).isdisjoint(steps)]
    if steps is not None and not shown:
        numbers = sorted({step for each in of_ranks for step in each.steps})
        there = f"there are {shortened(numbers, _MOST_NAMED)}" if numbers else "no activity has a step"
        raise NothingMeasured(
            f"{name}: shows no activity of the steps {shortened(sorted(steps), _MOST_NAMED)}; {there}"
        )
    return shown


def _rows(table: pd.DataFrame, ranks: Collection[int]) -> pd.DataFrame:
    return table[table["rank"].isin(list(ranks))]


def integers_in(column: pd.Series[int]) -> Integers:
    """Convert a column of integers with NA."""
    assert column.dtype in ("int64", "Int64"), "floats cannot hold times"
    known = column.notna().to_numpy(dtype=bool)
    return Integers(np.asarray(column.fillna(0), dtype=np.int64), known)


def names_in(column: pd.Series[str]) -> Texts:
    """Convert a column of texts with NA."""
    codes, values = pd.factorize(column)
    return Texts(codes.astype(np.int64), tuple(map(str, values)))


OfRank = dict[tuple[Any, ...], Numbers]
"""Rows of one rank, by what else tells them apart, in ascending order."""
RowsByRank = dict[int, OfRank]


def rows_by(table: pd.DataFrame, keys: list[str], numbers: Numbers | None = None) -> RowsByRank:
    """Rows by rank, the first key, and by the other keys, which have no NA.

    `numbers` are those of the rows; for None they count from 0.
    """
    kinds = [pd.factorize(table[key], sort=True) for key in keys]
    code = np.zeros(len(table), dtype=np.int64)
    for codes, values in kinds:
        code = code * len(values) + codes
    order = np.argsort(code, kind="stable")
    begins = np.flatnonzero(np.diff(code[order], prepend=-1))
    by_rank: RowsByRank = {}
    for part in np.split(order, begins[1:]) if len(order) else ():
        rank, *where = (values[codes[part[0]]] for codes, values in kinds)
        by_rank.setdefault(int(rank), {})[tuple(where)] = part if numbers is None else numbers[part]
    return by_rank
