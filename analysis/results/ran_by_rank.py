"""What ranks did, looked up rank by rank where their activities are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from ..core.intervals import Spans
from ..metrics.causes.details import Between, computed_between
from ..metrics.causes.sequences import without_work
from ..run.event_tables import EventTables

if TYPE_CHECKING:
    from ..run.event_tables import RunTables

Computed = dict[int, dict[Between, dict[str, int]]]


@dataclass(frozen=True)
class RanOnRanks:
    """One rank after the other; see `RanByRank`."""

    tables: RunTables

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
