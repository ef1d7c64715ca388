"""Whom every call had to wait for, by the kind of its collective and the time at which it ended.

A call cannot have waited for a rank that arrived after it ended; and after the arrival of the last rank it needs, a
call still takes the time that moving the data takes. Definitions: docs/metrics/rooted.md and
docs/metrics/missing-ranks.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...common.nccl_tests import SYNCHRONISING
from ..core.arrays import Flags, Ints

# In these, receivers need the root; in the others, the root needs all.
FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("reduce", "gather")
# In these, data passes from rank to rank, so any rank may hold up those after it, and the one just before it.
_CHAINED = ("broadcast", "reduce")
# By this part of the shortest duration, transfers may differ between ranks.
_JITTER_FRAC = 0.02
_NOBODY = -1
_UNKNOWN = -2


class _Needed(NamedTuple):
    """Time at which the last rank that each call needs had arrived, and that rank."""

    at_ns: Ints
    rank: Ints


def needs(joined: pd.DataFrame) -> pd.DataFrame:
    """When the last rank that each call needs had arrived (`needed_ns`), and which rank it was (`waited_for`).

    `joined` holds calls with `collective_id`, `kind` (of the collective as a whole), `pg_ranks`, `arrived_ns`,
    `is_source` (is it that of the root, or a sender), `device` and `batch`. NA where it is not known. A call that needs
    no other rank, or comes last itself, has its own arrival, and waited for no rank. Same index.
    """
    calls = _Calls.of(joined)
    last, source = calls.last(np.ones(len(joined), dtype=bool)), calls.last(calls.is_source)
    in_tree = calls.of_kind("broadcast") & calls.on_cpu
    alone = _Needed(calls.arrived_ns, np.full(len(joined), _NOBODY))
    rules = [
        (calls.of_kind(*SYNCHRONISING), last),
        (calls.of_kind("send_recv") & ~calls.is_source, source),
        # A message that is buffered has been sent before its receiver comes.
        (calls.of_kind("send_recv") & (last.at_ns > calls.ended_ns), alone),
        (calls.of_kind("send_recv"), last),
        (calls.of_kind(*FROM_ROOT, *TO_ROOT) & calls.on_cpu & (source.rank == _UNKNOWN), source),
        (in_tree, _last_in_tree(joined, calls, in_tree)),
        (calls.of_kind("scatter") & calls.on_cpu & ~calls.is_source, source),
        (calls.of_kind(*TO_ROOT) & calls.on_cpu & calls.is_source, last),
        (calls.of_kind(*_CHAINED) | (calls.of_kind("gather", "scatter") & calls.is_source), calls.last_in_time()),
        (calls.of_kind("gather", "scatter") & (source.rank == _UNKNOWN), source),
        (calls.of_kind("gather", "scatter") & (source.at_ns > calls.in_time_ns), alone),
        (calls.of_kind("gather", "scatter"), source),
    ]
    at_ns = np.select([rows for rows, _ in rules], [needed.at_ns for _, needed in rules], _UNKNOWN)
    rank = np.select([rows for rows, _ in rules], [needed.rank for _, needed in rules], _UNKNOWN)
    known, late = rank != _UNKNOWN, at_ns > calls.arrived_ns
    return _of_batches(pd.DataFrame({
        "needed_ns": pd.arrays.IntegerArray(np.where(late, at_ns, calls.arrived_ns), ~known),
        "waited_for": pd.arrays.IntegerArray(np.where(late, rank, 0), ~known | ~late | (rank == _NOBODY)),
    }, index=joined.index), joined["batch"])  # fmt: skip


class _Calls(NamedTuple):
    """The calls of many collectives as columns; `number`, from 0, is that of their collective."""

    number: Ints
    rank: Ints
    arrived_ns: Ints
    ended_ns: Ints
    is_source: Flags
    on_cpu: Flags
    kind: pd.Series[str]

    @classmethod
    def of(cls, joined: pd.DataFrame) -> _Calls:
        arrived_ns = joined["arrived_ns"].to_numpy(dtype=np.int64)
        return cls(
            pd.factorize(joined["collective_id"])[0].astype(np.int64),
            joined["rank"].to_numpy(dtype=np.int64),
            arrived_ns,
            arrived_ns + joined["dur_ns"].to_numpy(dtype=np.int64),
            joined["is_source"].to_numpy(dtype=bool),
            (joined["device"] == "cpu").to_numpy(dtype=bool),
            joined["kind"],
        )

    def of_kind(self, *kinds: str) -> Flags:
        """Which calls are of one of these kinds."""
        flags: Flags = self.kind.isin(kinds).to_numpy(dtype=bool)
        return flags

    def last(self, among: Flags) -> _Needed:
        """The last arrival in each collective among the calls marked; not known if none is marked."""
        rows = np.flatnonzero(among)
        ordered = rows[np.lexsort((self.rank[rows], self.arrived_ns[rows], self.number[rows]))]
        is_last = np.append(self.number[ordered][1:] != self.number[ordered][:-1], True)[: len(ordered)]
        of_number = np.full(int(self.number.max(initial=-1)) + 1, -1)
        of_number[self.number[ordered[is_last]]] = ordered[is_last]
        at = of_number[self.number]
        return _Needed(
            np.where(at >= 0, self.arrived_ns[at], np.iinfo(np.int64).max),
            np.where(at >= 0, self.rank[at], _UNKNOWN),
        )

    @property
    def in_time_ns(self) -> Ints:
        """The latest arrival that each call can have waited for: its end minus the time that the data need.

        On a CPU a sender is done as soon as its machine has the data, so that is its end.
        """
        took = self.ended_ns - self.arrived_ns
        shortest = np.full(int(self.number.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(shortest, self.number, took)
        needed = (shortest[self.number] * (1 - _JITTER_FRAC)).astype(np.int64)
        result: Ints = self.ended_ns - np.where(self.on_cpu, 0, needed)
        return result

    def last_in_time(self) -> _Needed:
        """The last arrival in each call's collective that it can have waited for."""
        count = len(self.number)
        times = np.concatenate([self.arrived_ns, self.in_time_ns])
        is_limit = np.repeat([False, True], count)
        order = np.lexsort((is_limit, times, np.tile(self.number, 2)))
        # Each call's own arrival is before its limit, so there always is one.
        before = np.maximum.accumulate(np.where(is_limit[order], -1, np.arange(2 * count)))
        limits = np.flatnonzero(is_limit[order])
        at = np.empty(count, dtype=np.int64)
        at[order[limits] - count] = order[before[limits]]
        return _Needed(self.arrived_ns[at], self.rank[at])


def _last_in_tree(joined: pd.DataFrame, calls: _Calls, among: Flags) -> _Needed:
    """The last arrival that a rank waits for in a broadcast of gloo: of those above it, and those just below it.

    Every rank gets the data from the one whose place, counted from the root's, lacks the highest bit of its own. It
    sends them on to each rank below when that has come. Only for the calls of `among`, whose roots are known.
    Source: facebookincubator/gloo, gloo/broadcast.cc.
    """
    at_ns, rank = calls.arrived_ns.copy(), calls.rank.copy()
    for _, rows in pd.Series(np.flatnonzero(among)).groupby(calls.number[among]):
        of_group = rows.to_numpy()
        ranks, arrived_ns = calls.rank[of_group], calls.arrived_ns[of_group]
        listed = joined["pg_ranks"].iloc[of_group[0]]
        group = sorted(ranks.tolist()) if pd.isna(listed) else [int(one) for one in str(listed).split()]
        place = np.array([group.index(one) for one in ranks.tolist()])
        place = (place - place[calls.is_source[of_group]].max(initial=0)) % len(group)
        is_above = _is_above(place[np.newaxis], place[:, np.newaxis])
        further = place[np.newaxis] - place[:, np.newaxis]
        is_below = is_above.T & (further & (further - 1) == 0)
        others_ns = np.where(is_above | is_below, arrived_ns[np.newaxis], arrived_ns[:, np.newaxis])
        last = others_ns.argmax(axis=1)
        later = others_ns.max(axis=1) > arrived_ns
        at_ns[of_group], rank[of_group] = others_ns.max(axis=1), np.where(later, ranks[last], ranks)
    return _Needed(at_ns, rank)


def _is_above(place: Ints, other: Ints) -> Flags:
    """Whether a broadcast passes `place` on the way from the root, whose place is 0, to the other one."""
    result: Flags = (place < other) & (other % (1 << np.frexp(place)[1].astype(np.int64)) == place)
    return result


def _of_batches(needed: pd.DataFrame, batch: pd.Series[int]) -> pd.DataFrame:
    """Give all parts of one kernel the last rank that any of them needs: the kernel ends when all are done."""
    parts = batch.notna()
    if not parts.any():
        return needed
    ordered = needed[parts].assign(batch=batch[parts]).sort_values("needed_ns", kind="stable", na_position="last")
    last = ordered.drop_duplicates("batch", keep="last").set_index("batch")
    result = needed.copy()
    for column in ("needed_ns", "waited_for"):
        of_part = batch[parts].map(last[column])
        result.loc[parts, column] = of_part.astype("Int64")
    return result
