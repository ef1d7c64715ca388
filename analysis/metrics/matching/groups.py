"""Process groups of calls whose trace does not name them, mostly kernels from before the window: by who else is there.

A header lists the groups that a rank is in. Each of its calls must belong to one of them, and all members of that group
show a kernel of the same name that ends at nearly the same time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ..clocks.frame import Flags, Floats, Ints
from .state import AMBIGUOUS, Findings, Grouping, State, rows_by_key

_MEMBERS_ASKED = 8
_CLEARLY = 4.0


class _Group(NamedTuple):
    """A process group as headers list it."""

    name: str
    pg_ranks: str

    @property
    def ranks(self) -> list[int]:
        return [int(rank) for rank in self.pg_ranks.split()]


def by_membership(state: State, calls: pd.DataFrame, groups: pd.DataFrame) -> Findings:
    """Give calls without a process group the one that fits best; if several fit, the call is never certain."""
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
    of_clock = rows_by_key(state.clock, np.flatnonzero(unknown))
    looking = _Looking(state, of_clock, clock_of, _told(calls, codes), complete)
    chosen = []
    for clock, own in rows_by_key(state.clock, rows).items():
        known = calls["pg_ranks"].iloc[own[0]]
        listed = [g for g in of_rank[int(ranks[clock])] if pd.isna(known) or known == g.pg_ranks]
        if listed:
            chosen.append(_chosen(looking, own, _distinct(looking, listed, codes), codes))
    named = {code: (group.name, tuple(group.ranks)) for group, code in codes.items()}
    yield Grouping(rows[:0], rows[:0], rows[:0], named)
    for own, of_call, size, clear in chosen:
        yield Grouping(own, of_call, size, {})
        yield state.decided(own[~clear])._replace(group_assumed=True, note=AMBIGUOUS)


def _listed(groups: pd.DataFrame, calls: pd.DataFrame) -> dict[int, list[_Group]]:
    """The groups of more than one rank that each rank is in, as listed in headers and shown by calls of any rank."""
    columns = ["process_group", "pg_ranks"]
    both = pd.concat([groups[columns], calls.loc[~calls["collective"].isin(["send", "recv"]), columns]])
    known = both.dropna().drop_duplicates()
    found: dict[int, list[_Group]] = {}
    for name, pg_ranks in zip(known["process_group"], known["pg_ranks"], strict=True):
        group = _Group(str(name), str(pg_ranks))
        for rank in group.ranks if len(group.ranks) > 1 else ():
            found.setdefault(rank, []).append(group)
    return found


def _codes(state: State, calls: pd.DataFrame, of_rank: dict[int, list[_Group]]) -> dict[_Group, int]:
    """The codes of all listed groups; new ones for groups without a known call."""
    collective = ~calls["collective"].isin(["send", "recv"])
    known = calls[collective & calls["process_group"].notna() & calls["pg_ranks"].notna()]
    first = known.drop_duplicates(["process_group", "pg_ranks"])
    rows = calls.index.get_indexer(first.index)
    found = {
        _Group(str(name), str(ranks)): int(state.group[row])
        for name, ranks, row in zip(first["process_group"], first["pg_ranks"], rows, strict=True)
    }
    new = dict.fromkeys(g for listed in of_rank.values() for g in listed if g not in found)
    return found | {group: state.groups + 1 + place for place, group in enumerate(new)}


def _told(calls: pd.DataFrame, codes: dict[_Group, int]) -> Ints:
    """The code of the group that each call names, also for sends and receives; -1 where it names none."""
    told = calls[["process_group", "pg_ranks"]].drop_duplicates().dropna()
    of_pair = {
        (name, ranks): codes.get(_Group(str(name), str(ranks)), -1)
        for name, ranks in zip(told["process_group"], told["pg_ranks"], strict=True)
    }
    pairs = pd.MultiIndex.from_frame(calls[["process_group", "pg_ranks"]].astype(object))
    if not of_pair:
        return np.full(len(calls), -1)
    found = pd.Series(of_pair).reindex(pairs).fillna(-1)
    return found.to_numpy(dtype=np.int64)


class _Looking(NamedTuple):
    """Where to look for other members of a call.

    `told` is the group that each call names; for the ranks in `complete` all groups are known.
    """

    state: State
    unknown: dict[int, Ints]
    clock_of: dict[int, int]
    told: Ints
    complete: frozenset[int]

    def away_ns(self, own: Ints, member: int, code: int) -> Floats:
        """How far away, in ns, the nearest call on another rank ends that could be the same; inf where there is none.

        NaN where that rank shows nothing at that time, or its clock cannot be compared.
        """
        state = self.state
        clock = self.clock_of.get(member)
        result = np.full(len(own), np.nan)
        here = state.clock[own[0]]
        component = state.clocks.frame.component
        if clock is None or component[clock] != component[here]:
            return result
        of_clock = np.flatnonzero(state.clock == clock)
        may_be = (self.told[of_clock] == code) | np.isin(of_clock, self.unknown.get(clock, own[:0]))
        others = state.shown(of_clock[may_be])
        window = state.shown(of_clock)
        ours = state.shown(own)
        order = np.argsort(np.argsort(state.calls.order[own], kind="stable"), kind="stable")
        inside = (ours.end >= window.last_start.min()) & (ours.end <= window.end.max())
        away = np.full(len(own), np.inf)
        for name in np.unique(ours.name):
            mine, same = ours.name == name, others.take(others.name == name)
            if len(same):
                ends = np.sort(same.end)
                after = np.searchsorted(ends, ours.end[mine]).clip(0, len(ends) - 1)
                before = np.maximum(after - 1, 0)
                away[mine] = np.abs(ends[[after, before]] - ours.end[mine]).min(axis=0)
        return np.where(inside, away, np.nan)[order]


def _chosen(
    looking: _Looking, own: Ints, listed: list[_Group], codes: dict[_Group, int]
) -> tuple[Ints, Ints, Ints, Flags]:
    """The calls of one rank, the code and size of the group of each, and whether no other one would fit."""
    state = looking.state
    own = own[np.argsort(state.calls.order[own], kind="stable")]
    rank = next(r for r, c in looking.clock_of.items() if c == state.clock[own[0]])
    lacking, away, unasked, untold = np.zeros((4, len(listed), len(own)))
    for k, group in enumerate(listed):
        others = [r for r in group.ranks if r != rank and r in looking.clock_of]
        found = np.array([looking.away_ns(own, member, codes[group]) for member in _some(others)]).reshape(-1, len(own))
        near = found <= state.clocks.ends_ns
        asked = ~np.isnan(found)
        lacking[k] = np.where(asked.any(axis=0), (asked & ~near).sum(axis=0) / np.maximum(asked.sum(axis=0), 1), 0.0)
        unasked[k] = ~asked.any(axis=0)
        away[k] = np.where(near, found, 0.0).max(axis=0, initial=0.0)
        lacking[k] += ~_ran_before(looking, own, codes[group], [codes[g] for g in listed])
        untold[k] = ~np.isin(state.calls.name[own], state.calls.name[looking.told == codes[group]])
    order = np.lexsort((away, unasked, untold, lacking), axis=0)
    best = order[0]
    clear = np.full(len(own), rank in looking.complete)
    # With groups of the same ranks only, it is no doubt which ranks take part, whoever else is seen.
    if len(listed) > 1:
        clear &= lacking[best, np.arange(len(own))] == 0
        second = order[1]
        column = np.arange(len(own))
        farther = away[second, column] > _CLEARLY * np.maximum(away[best, column], 1_000)
        clear &= (lacking[second, column] > 0) | farther
    code = np.array([codes[g] for g in listed])[best]
    size = np.array([len(g.ranks) for g in listed])[best]
    return own, code, size, clear


def _distinct(looking: _Looking, listed: list[_Group], codes: dict[_Group, int]) -> list[_Group]:
    """Among groups of the same ranks, the one with known calls, which come first."""
    used = sorted(listed, key=lambda group: not (looking.told == codes[group]).any())
    return list({group.pg_ranks: group for group in reversed(used)}.values())[::-1]


def _some(ranks: list[int]) -> list[int]:
    """At most `_MEMBERS_ASKED` of the ranks, spread evenly."""
    every = -(-len(ranks) // _MEMBERS_ASKED) or 1
    return ranks[::every]


def _ran_before(looking: _Looking, own: Ints, code: int, others: list[int]) -> Flags:
    """Whether each call's kernel is known in this group, or in no group at all, or nothing is known of this group."""
    names = looking.state.calls.name
    of_group = names[looking.told == code]
    anywhere = np.isin(names[own], names[np.isin(looking.told, others)])
    return np.isin(names[own], of_group) | ~anywhere | (len(of_group) == 0)
