"""Results from the activities of each rank: computed here, or rank by rank in other processes.

Both give the same numbers: every one of these functions looks at one rank after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pandas as pd

from ..core.intervals import Spans, covered
from ..core.tables.communication import BREAKDOWN, BREAKDOWN_STEPS, MEMBERS
from ..metrics.causes.details import Between, computed_between
from ..metrics.causes.sequences import LOOKED_AT, readiness, without_work
from ..metrics.device.breakdown import (
    NOTHING,
    DeviceProfile,
    breakdown,
    breakdown_steps,
    exposed,
    exposed_waits,
    not_computing,
    profiles,
)
from ..run.event_tables import EventTables

if TYPE_CHECKING:
    from ..run.spread import SpreadTables
    from .early_work import Devices

EXPOSED = ["exposed_wait_ns", "exposed_transfer_ns", "exposed_wait_low_ns"]
Computed = dict[int, dict[Between, dict[str, int]]]


class DeviceWork(Protocol):
    """Tables of a run that need its ranks' activities."""

    def exposed(self) -> pd.DataFrame:
        """The participation table with its exposed columns."""

    def breakdown(self) -> pd.DataFrame:
        """One row per rank and device."""

    def breakdown_steps(self) -> pd.DataFrame:
        """One row per rank, device and step."""

    def exposed_waits(self) -> pd.DataFrame:
        """The exposed wait of each call, by step."""

    def readiness(self, members: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
        """See `RanByRank`, as for the next two."""

    def computed(self, wanted: Mapping[int, list[Between]]) -> Computed:
        """Compute time by kernel."""

    def without_work(self, members: pd.DataFrame, rank: int) -> Spans | None:
        """Gaps caused by the CPU."""


@dataclass(frozen=True)
class WorkHere:
    """All ranks at once in this process. `split` makes the participation when needed."""

    tables: EventTables
    split: Callable[[], pd.DataFrame]
    is_alone: bool = False

    def exposed(self) -> pd.DataFrame:
        """The participation table with its exposed columns."""
        return exposed(self.split(), not_computing(self.tables.activities))

    def breakdown(self) -> pd.DataFrame:
        """One row per rank and device."""
        return breakdown(self._profiles, self._splits)

    def breakdown_steps(self) -> pd.DataFrame:
        """One row per rank, device and step."""
        return breakdown_steps(self._profiles, self._splits)

    def exposed_waits(self) -> pd.DataFrame:
        """The exposed wait of each call, by step."""
        return exposed_waits(self._profiles, self._splits)

    def readiness(self, members: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
        """When calls were ready to run."""
        return readiness(self.tables, members, clocks)

    def computed(self, wanted: Mapping[int, list[Between]]) -> Computed:
        """Compute time by kernel."""
        return computed_between(self.tables.activities, wanted)

    def without_work(self, members: pd.DataFrame, rank: int) -> Spans | None:
        """Gaps caused by the CPU."""
        return without_work(self.tables, members, rank)

    @cached_property
    def _profiles(self) -> list[DeviceProfile]:
        return list(profiles(self.tables.activities))

    @property
    def _splits(self) -> pd.DataFrame:
        """The participation table; empty for a single device, whose calls lack partners."""
        return MEMBERS.empty() if self.is_alone else self.split()


@dataclass(frozen=True)
class WorkByRank:
    """One rank after the other, in any process."""

    tables: SpreadTables
    split: Callable[[], pd.DataFrame]

    def exposed(self) -> pd.DataFrame:
        """The participation table with its exposed columns."""
        split = self.split()
        parts = [part.exposed for part in self._times]
        found = pd.concat(parts).reindex(split.index) if parts else pd.DataFrame(columns=EXPOSED, index=split.index)
        return split.assign(**{column: found[column].astype("Int64") for column in EXPOSED})

    def breakdown(self) -> pd.DataFrame:
        """One row per rank and device."""
        return BREAKDOWN.concat(part.breakdown for part in self._times)

    def breakdown_steps(self) -> pd.DataFrame:
        """One row per rank, device and step."""
        return BREAKDOWN_STEPS.concat(part.steps for part in self._times)

    def exposed_waits(self) -> pd.DataFrame:
        """The exposed wait of each call, by step."""
        none = exposed_waits((), MEMBERS.empty())
        return pd.concat([none, *(part.waits for part in self._times)], ignore_index=True)

    def readiness(self, members: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
        """When calls were ready to run."""
        mine = _of_ranks(members[LOOKED_AT], {int(rank) for rank in members["rank"].unique()})
        with_clocks = {rank: (own, clocks[clocks["rank"] == rank]) for rank, (own,) in mine.items()}
        return pd.concat(self.tables.by_rank(readiness, with_clocks)).reindex(members.index)

    def computed(self, wanted: Mapping[int, list[Between]]) -> Computed:
        """Compute time by kernel."""
        found: Computed = {}
        for part in self.tables.by_rank(_computed, {rank: ({rank: times},) for rank, times in wanted.items()}):
            found |= part
        return found

    def without_work(self, members: pd.DataFrame, rank: int) -> Spans | None:
        """Gaps caused by the CPU."""
        return without_work(self.tables.of_rank(rank), members[members["rank"] == rank], rank)

    @property
    def _ranks(self) -> set[int]:
        return {ran.rank for ran in self.tables.ran}

    @cached_property
    def _times(self) -> list[_Times]:
        """Everything that depends on the split, each rank read once."""
        return list(self.tables.by_rank(_times, _of_ranks(self.split(), self._ranks)))


@dataclass(frozen=True)
class WorkSeen(WorkByRank):
    """Work from device profiles made while files were read; the split needs nothing else."""

    devices: Devices

    def exposed(self) -> pd.DataFrame:
        """The participation table with its exposed columns."""
        idle = self.devices.idle
        return exposed(self.split(), lambda device, starts, ends: covered(idle.get(device, NOTHING), starts, ends))

    def breakdown(self) -> pd.DataFrame:
        """One row per rank and device."""
        return breakdown(self.devices.profiles, self.split())

    def breakdown_steps(self) -> pd.DataFrame:
        """One row per rank, device and step."""
        return breakdown_steps(self.devices.profiles, self.split())

    def exposed_waits(self) -> pd.DataFrame:
        """The exposed wait of each call, by step."""
        return exposed_waits(self.devices.profiles, self.split())


@dataclass(frozen=True)
class WorkUntimed:
    """Work of a run without start times: nothing is known about what its devices did at the same time."""

    split: Callable[[], pd.DataFrame]

    def exposed(self) -> pd.DataFrame:
        """The participation table with exposed columns NA."""
        return self.split()

    def breakdown(self) -> pd.DataFrame:
        """The table without rows."""
        return BREAKDOWN.empty()

    def breakdown_steps(self) -> pd.DataFrame:
        """The table without rows."""
        return BREAKDOWN_STEPS.empty()

    def exposed_waits(self) -> pd.DataFrame:
        """The table without rows."""
        return exposed_waits((), MEMBERS.empty())

    def readiness(self, members: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
        """Never called: without starts, no lateness is explained."""
        raise NotImplementedError

    def computed(self, wanted: Mapping[int, list[Between]]) -> Computed:
        """Never called."""
        raise NotImplementedError

    def without_work(self, members: pd.DataFrame, rank: int) -> Spans | None:
        """Never called."""
        raise NotImplementedError


class _Times(NamedTuple):
    """The results of one rank."""

    exposed: pd.DataFrame
    breakdown: pd.DataFrame
    steps: pd.DataFrame
    waits: pd.DataFrame


def _times(tables: EventTables, split: pd.DataFrame) -> _Times:
    ran, own = tables.activities, list(profiles(tables.activities))
    return _Times(
        exposed=exposed(split, not_computing(ran))[EXPOSED],
        breakdown=breakdown(own, split),
        steps=breakdown_steps(own, split),
        waits=exposed_waits(own, split),
    )


def _computed(tables: EventTables, wanted: Mapping[int, list[Between]]) -> Computed:
    return computed_between(tables.activities, wanted)


def _of_ranks(table: pd.DataFrame, ranks: set[int]) -> dict[int, tuple[pd.DataFrame]]:
    """The rows of each rank, by rank; an empty table for a rank without rows."""
    rows = {int(str(rank)): index for rank, index in table.groupby("rank").indices.items()}
    return {rank: (table.iloc[rows.get(rank, [])],) for rank in sorted(ranks)}
