"""What ranks did, looked up rank by rank where their activities are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from ..core.intervals import Spans
from ..metrics.causes.details import Between, computed_between
from ..metrics.causes.sequences import LOOKED_AT, readiness, without_work
from ..run.event_tables import EventTables
from ..run.spread import rows_of_ranks

if TYPE_CHECKING:
    from ..run.event_tables import RunTables

Computed = dict[int, dict[Between, dict[str, int]]]


@dataclass(frozen=True)
class RanOnRanks:
    """One rank after the other; see `RanByRank`."""

    tables: RunTables

    def readiness(self, members: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
        """When calls were ready to run."""
        ranks = [int(rank) for rank in members["rank"].unique()]
        mine, own_clocks = rows_of_ranks(members[LOOKED_AT], ranks), rows_of_ranks(clocks, ranks)
        given = {rank: (mine[rank], own_clocks[rank]) for rank in sorted(ranks)}
        return pd.concat(self.tables.by_rank(readiness, given)).reindex(members.index)

    def computed(self, wanted: Mapping[int, list[Between]]) -> Computed:
        """Compute time by kernel."""
        found: Computed = {}
        for part in self.tables.by_rank(_computed, {rank: ({rank: times},) for rank, times in wanted.items()}):
            found |= part
        return found

    def without_work(self, members: pd.DataFrame, rank: int) -> Spans | None:
        """Gaps caused by the CPU."""
        return without_work(self.tables.of_rank(rank), members[members["rank"] == rank], rank)


def _computed(tables: EventTables, wanted: Mapping[int, list[Between]]) -> Computed:
    return computed_between(tables.activities, wanted)
