"""Rows of an analysis beside the true calls and collectives that they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .truth import Truth

_KEY = ["rank", "stream", "start_ns"]


@dataclass(frozen=True)
class Compared:
    """Rows of the analysis with the numbers of the true calls and collectives that they are."""

    analysis: Any
    truth: Truth

    @cached_property
    def ids(self) -> list[tuple[int, ...]]:
        """True collectives of each true call."""
        return list(self.truth.calls["collectives"])

    @cached_property
    def _known(self) -> pd.DataFrame:
        """`call_id` of the analysis, and number of the true `call`, NA for none."""
        own = self.truth.calls[_KEY].assign(call=np.arange(len(self.truth.calls)))
        known: pd.DataFrame = self.analysis.calls[["call_id", *_KEY]].merge(own, on=_KEY, how="left")
        return known

    @cached_property
    def unknown(self) -> int:
        return int(self._known["call"].isna().sum())

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Call and collective of the analysis, once each, whether certain, and the true call."""
        matches, names = self.analysis.matches, ["call_id", "collective_id"]
        both = pd.concat([matches[names], self.analysis.participation[names]]).drop_duplicates()
        told = matches.drop_duplicates(names).set_index(names)["certain"]
        known = told.reindex(pd.MultiIndex.from_frame(both)).to_numpy(dtype=object)
        by_call = matches.groupby("call_id")["certain"].all().reindex(both["call_id"]).to_numpy(dtype=object)
        both["certain"] = np.where(pd.isna(known), by_call, known).astype(bool)
        merged: pd.DataFrame = both.merge(self._known[["call_id", "call"]], on="call_id").dropna(subset=["call"])
        return merged.astype({"call": "int64"})

    @cached_property
    def by_collective(self) -> dict[int, list[int]]:
        """True calls by collective of the analysis."""
        return _lists(self.rows)

    @cached_property
    def certain_by_collective(self) -> dict[int, list[int]]:
        return _lists(self.rows[self.rows["certain"]])

    @cached_property
    def shown(self) -> dict[int, set[int]]:
        """True calls by true collective."""
        found: dict[int, set[int]] = {}
        for call, ids in enumerate(self.ids):
            for number in ids:
                found.setdefault(number, set()).add(call)
        return found

    @cached_property
    def pairs_together(self) -> set[tuple[int, int]]:
        """True call and collective, where another member is shown."""
        return {(call, number) for number, calls in self.shown.items() if len(calls) > 1 for call in calls}

    @cached_property
    def calls_together(self) -> set[int]:
        return {call for call, _ in self.pairs_together}

    @cached_property
    def calls_whole(self) -> set[int]:
        """True calls whose collectives are shown by all ranks."""
        members = [len(ranks) for ranks in self.truth.collectives["members"]]
        whole = {number for number, calls in self.shown.items() if len(calls) == members[number]}
        return {call for call, ids in enumerate(self.ids) if whole.issuperset(ids)}

    def is_wrong(self, calls: Iterable[int]) -> bool:
        """Do two of these calls share no true collective?"""
        distinct = {self.ids[call] for call in calls}
        if len(distinct) < 2:
            return False
        sets = [set(ids) for ids in distinct]
        return any(a.isdisjoint(b) for place, a in enumerate(sets) for b in sets[:place])

    @cached_property
    def true_number(self) -> dict[int, int]:
        """Collective of the analysis -> the true one whose shown members it has, all of them and no others."""
        found = {}
        for collective, calls in self.by_collective.items():
            members = set(calls)
            common = set.intersection(*(set(self.ids[call]) for call in members))
            fitting = [number for number in common if self.shown[number] == members]
            if fitting and len(members) > 1:
                found[collective] = fitting[0]
        return found

    @cached_property
    def right(self) -> tuple[set[int], set[tuple[int, int]]]:
        """Calls, and pairs of call and true collective, that are in such a one."""
        pairs = {(call, number) for c, number in self.true_number.items() for call in self.by_collective[c]}
        return {call for call, _ in pairs}, pairs

    @cached_property
    def waits(self) -> pd.Series[float]:
        """Wait in ns by true call; the longest where a kernel is several calls."""
        split = self.analysis.participation.dropna(subset=["wait_ns"])
        joined = split[["call_id", "wait_ns"]].merge(self._known, on="call_id").dropna(subset=["call"])
        longest: pd.Series[float] = (
            joined.astype({"call": "int64", "wait_ns": "float64"}).groupby("call")["wait_ns"].max()
        )
        return longest

    @property
    def wait_errors_ns(self) -> NDArray[np.float64]:
        true = self.truth.calls["wait_ns"].to_numpy(dtype=np.float64)
        errors: NDArray[np.float64] = self.waits.to_numpy() - true[self.waits.index.to_numpy(dtype=np.int64)]
        return errors


def _lists(rows: pd.DataFrame) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for collective, call in zip(rows["collective_id"].tolist(), rows["call"].tolist(), strict=True):
        found.setdefault(collective, []).append(call)
    return found
