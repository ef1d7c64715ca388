"""Infer the process group of calls whose trace does not name it, by who else takes part.

These are mostly kernels that were launched before the window. The header of a trace lists the groups that its rank is
in. Each of the rank's calls belongs to one of them, and all members of that group then show a kernel of the same name
that ends at nearly the same time. If two groups fit about as well, the call gets the better one, and is never certain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...core.arrays import Flags, Floats, Ints
from .state import AMBIGUOUS, Findings, Grouping, State, rows_by_key

# So many of a group's members are looked at.
_MOST_MEMBERS = 8
# By this factor the ends of the second best group must be farther away.
_CLEARLY = 4.0


class _Group(NamedTuple):
    """A process group as headers list it."""

    name: str
    pg_ranks: str

    @property
    def ranks(self) -> list[int]:
        return [int(rank) for rank in self.pg_ranks.split()]


def by_membership(state: State, calls: pd.DataFrame, groups: pd.DataFrame) -> Findings:
    """Give each call without a process group the one that fits best; if several do, the call is never certain.

    A call that says how many ranks take part is of a group of as many, or of one that nothing lists.

    `groups` is the table of process groups that headers list.
    """
    unknown = calls["process_group"].isna() & (calls["device"] != "cpu") & ~calls["collective"].isin(["peer_copy"])
    unknown &= ~calls["collective"].isin(["send", "recv"]) & (state.collective < 0)
    if not unknown.any():
        return
    of_rank = _listed(groups, calls)
    rows = np.flatnonzero(unknown.to_numpy() & calls["rank"].isin(list(of_rank)).to_numpy())
    if not len(rows):
        return
    codes = _codes(state, calls, of_rank)
    ranks = np.unique(calls["rank"].to_numpy(dtype=np.int64))
    clock_of = {r: i for i, r in enumerate(ranks.tolist())}
    complete = frozenset(groups["rank"].unique().tolist())
    unnamed = rows_by_key(state.clock, np.flatnonzero(unknown))
    neighbours = _Neighbours(state, unnamed, clock_of, _named_groups(calls, codes), complete)
    chosen = []
    for clock, rows_of_clock in rows_by_key(state.clock, rows).items():
        known = calls["pg_ranks"].iloc[rows_of_clock[0]]
        of_clock = [g for g in of_rank[int(ranks[clock])] if pd.isna(known) or known == g.pg_ranks]
        for members, rows_of_size in rows_by_key(state.group_size, rows_of_clock).items():
            listed = [g for g in of_clock if members in (-1, len(g.ranks))]
            if listed:
                chosen.append(_chosen(neighbours, rows_of_size, _distinct(neighbours, listed, codes), codes))
    named = {code: (group.name, tuple(group.ranks)) for group, code in codes.items()}
    yield Grouping(rows[:0], rows[:0], rows[:0], named)
    for rows_of_clock, of_call, size, clear in chosen:
        yield Grouping(rows_of_clock, of_call, size, {})
        yield state.decided(rows_of_clock[~clear])._replace(group_assumed=True, note=AMBIGUOUS)


def _listed(groups: pd.DataFrame, calls: pd.DataFrame) -> dict[int, list[_Group]]:
    """The groups of more than one rank that each rank is in, by headers and by calls of any rank."""
    columns = ["process_group", "pg_ranks"]
    both = pd.concat([groups[columns], calls.loc[~calls["collective"].isin(["send", "recv"]), columns]])
    known = both.dropna().drop_duplicates()
    of_rank: dict[int, list[_Group]] = {}
    for name, pg_ranks in zip(known["process_group"], known["pg_ranks"], strict=True):
        group = _Group(str(name), str(pg_ranks))
        for rank in group.ranks if len(group.ranks) > 1 else ():
            of_rank.setdefault(rank, []).append(group)
    return of_rank


def _codes(state: State, calls: pd.DataFrame, of_rank: dict[int, list[_Group]]) -> dict[_Group, int]:
    """The code of each listed group in `State.group`; a new one for a group that no call names."""
    collective = ~calls["collective"].isin(["send", "recv"])
    known = calls[collective & calls["process_group"].notna() & calls["pg_ranks"].notna()]
    first = known.drop_duplicates(["process_group", "pg_ranks"])
    rows = calls.index.get_indexer(first.index)
    codes = {
        _Group(str(name), str(ranks)): int(state.group[row])
        for name, ranks, row in zip(first["process_group"], first["pg_ranks"], rows, strict=True)
    }
    new = dict.fromkeys(g for listed in of_rank.values() for g in listed if g not in codes)
    return codes | {group: state.groups + 1 + place for place, group in enumerate(new)}


def _named_groups(calls: pd.DataFrame, codes: dict[_Group, int]) -> Ints:
    """The code of the group that each call names, -1 where it names none; unlike `State.group`, also for messages."""
    named = calls[["process_group", "pg_ranks"]].drop_duplicates().dropna()
    of_pair = {
        (name, ranks): codes.get(_Group(str(name), str(ranks)), -1)
        for name, ranks in zip(named["process_group"], named["pg_ranks"], strict=True)
    }
    pairs = pd.MultiIndex.from_frame(calls[["process_group", "pg_ranks"]].astype(object))
    if not of_pair:
        return np.full(len(calls), -1)
    code = pd.Series(of_pair).reindex(pairs).fillna(-1)
    return code.to_numpy(dtype=np.int64)


class _Neighbours(NamedTuple):
    """Which calls of other ranks may be the same collective as a call without a process group.

    `named` is the code of the group that each call names, -1 for none; `unnamed` are the rows of each clock that name
    none; `clock_of` is the clock of each rank. Of ranks in `complete` all groups are known.
    """

    state: State
    unnamed: dict[int, Ints]
    clock_of: dict[int, int]
    named: Ints
    complete: frozenset[int]

    def away_ns(self, rows: Ints, member: int, code: int) -> Floats:
        """How far away the nearest call of another rank ends that may be the same collective, in ns; shape of `rows`.

        `rows` are calls of one rank, `member` is the other rank, `code` the group. It is inf where there is no such
        call, and NaN where that rank shows nothing at that time, or its clock cannot be compared.
        """
        state = self.state
        clock = self.clock_of.get(member)
        result = np.full(len(rows), np.nan)
        here = state.clock[rows[0]]
        component = state.clocks.frame.component
        if clock is None or component[clock] != component[here]:
            return result
        of_clock = np.flatnonzero(state.clock == clock)
        may_be = (self.named[of_clock] == code) | np.isin(of_clock, self.unnamed.get(clock, rows[:0]))
        others = state.shown(of_clock[may_be])
        window = state.shown(of_clock)
        ours = state.shown(rows)
        order = np.argsort(np.argsort(state.calls.order[rows], kind="stable"), kind="stable")
        inside = (ours.end >= window.last_start.min()) & (ours.end <= window.end.max())
        away = np.full(len(rows), np.inf)
        for name in np.unique(ours.name):
            mine, same = ours.name == name, others.take(others.name == name)
            if len(same):
                ends = np.sort(same.end)
                after = np.searchsorted(ends, ours.end[mine]).clip(0, len(ends) - 1)
                before = np.maximum(after - 1, 0)
                away[mine] = np.abs(ends[[after, before]] - ours.end[mine]).min(axis=0)
        return np.where(inside, away, np.nan)[order]


def _chosen(
    neighbours: _Neighbours, rows: Ints, listed: list[_Group], codes: dict[_Group, int]
) -> tuple[Ints, Ints, Ints, Flags]:
    """Choose the group of each call of one rank, among those `listed` for it.

    Returns the rows, and by row the code and size of the group, and whether no other group would fit.
    """
    state = neighbours.state
    rows = rows[np.argsort(state.calls.order[rows], kind="stable")]
    rank = next(r for r, c in neighbours.clock_of.items() if c == state.clock[rows[0]])
    lacking, away, unseen, new_kernel = np.zeros((4, len(listed), len(rows)))
    for k, group in enumerate(listed):
        others = [r for r in group.ranks if r != rank and r in neighbours.clock_of]
        away_ns = np.array([neighbours.away_ns(rows, other, codes[group]) for other in _sample(others)])
        away_ns = away_ns.reshape(-1, len(rows))
        near, seen = away_ns <= state.clocks.ends_ns, ~np.isnan(away_ns)
        lacking[k] = np.where(seen.any(axis=0), (seen & ~near).sum(axis=0) / np.maximum(seen.sum(axis=0), 1), 0.0)
        unseen[k] = ~seen.any(axis=0)
        away[k] = np.where(near, away_ns, 0.0).max(axis=0, initial=0.0)
        lacking[k] += ~_ran_before(neighbours, rows, codes[group], [codes[g] for g in listed])
        new_kernel[k] = ~np.isin(state.calls.name[rows], state.calls.name[neighbours.named == codes[group]])
    # First by how many members lack the call, as a group without one of its members cannot have run it.
    order = np.lexsort((away, unseen, new_kernel, lacking), axis=0)
    best = order[0]
    clear = np.full(len(rows), rank in neighbours.complete)
    # With groups of the same ranks only, it is no doubt which ranks take part, whoever else is seen.
    if len(listed) > 1:
        clear &= lacking[best, np.arange(len(rows))] == 0
        second = order[1]
        column = np.arange(len(rows))
        farther = away[second, column] > _CLEARLY * np.maximum(away[best, column], 1_000)
        clear &= (lacking[second, column] > 0) | farther
    code = np.array([codes[g] for g in listed])[best]
    size = np.array([len(g.ranks) for g in listed])[best]
    return rows, code, size, clear


def _distinct(neighbours: _Neighbours, listed: list[_Group], codes: dict[_Group, int]) -> list[_Group]:
    """One group for each set of ranks, if possible one that calls name; such groups come first."""
    used = sorted(listed, key=lambda group: not (neighbours.named == codes[group]).any())
    return list({group.pg_ranks: group for group in reversed(used)}.values())[::-1]


def _sample(ranks: list[int]) -> list[int]:
    """At most `_MOST_MEMBERS` of the ranks, spread evenly."""
    every = -(-len(ranks) // _MOST_MEMBERS) or 1
    return ranks[::every]


def _ran_before(neighbours: _Neighbours, rows: Ints, code: int, others: list[int]) -> Flags:
    """Whether the kernel of each call speaks for this group: it ran in it before, or in no group that others name.

    It does as well if nothing that ran in this group is known.
    """
    names = neighbours.state.calls.name
    of_group = names[neighbours.named == code]
    anywhere = np.isin(names[rows], names[np.isin(neighbours.named, others)])
    return np.isin(names[rows], of_group) | ~anywhere | (len(of_group) == 0)
