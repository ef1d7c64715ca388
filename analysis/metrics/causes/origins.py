"""Where lateness began: a rank that was late because another one made it wait elsewhere is not to blame.

The rank that comes last is often a victim. If communication held it up, the search goes on at the collective in which
it had waited longest, and at the rank it had waited for there, until some rank was late because of its own program. If
nothing says for whom it had waited, the origin is unknown, and nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from ....common.nccl_tests import SYNCHRONISING
from ...core.arrays import Flags, Ints
from .accounts import Account, Sequence, account_of

_FARTHEST = 32  # from collective to collective, before the search is given up
_NEXT_CALLS = 32  # calls of a rank, which include those of all its groups
_LEAST_OF_WAIT = 0.5


class Origin(NamedTuple):
    """Where a lateness began: the rank, the collective at which it was first late, and the reason (None if not known).

    The origin is not known (`is_known`) if other communication held the rank up, and nothing says for whom that waited.
    """

    rank: int
    collective: int
    because: str | None
    is_known: bool = True


class Reasons:
    """Why ranks were late. Accounts are computed when first needed, and kept.

    `members` are calls with `readiness`.
    """

    def __init__(self, sequences: list[Sequence], members: pd.DataFrame) -> None:
        together = members["collective"].isin(SYNCHRONISING)
        groups = members.groupby(["process_group", "pg_ranks"], dropna=False).ngroup()
        members = members.assign(group=groups.where(together, -1))
        self._of_collective = {
            int(number): (sequence, at) for sequence in sequences for at, number in enumerate(sequence.collectives)
        }
        self._accounts: dict[tuple[int, int], Account] = {}
        self._origins: dict[tuple[int, int], Origin] = {}
        self._open: set[tuple[int, int]] = set()
        self._calls = {int(str(rank)): _Calls.of(of_rank) for rank, of_rank in members.groupby("rank")}

    def account(self, collective: int, rank: int) -> tuple[Account, Sequence, int] | None:
        """The account of a rank in the group of a collective, that group, and the position of the collective in it.

        None if the ranks of the collective cannot be compared.
        """
        sequence, at = self._of_collective.get(collective, (None, -1))
        if sequence is None or rank not in sequence.ranks or len(sequence.ranks) < 2:
            return None
        key = (id(sequence), rank)
        if key not in self._accounts:
            self._accounts[key] = account_of(sequence, int(np.searchsorted(sequence.ranks, rank)))
        return self._accounts[key], sequence, at

    def origin(self, collective: int, rank: int) -> Origin:
        """Where the lateness of a rank at a collective began: at the rank itself, or at one that had held it up."""
        trail: list[tuple[int, int]] = []
        here, held_ns = (collective, rank), 0.0
        origin = Origin(rank, collective, None, is_known=False)
        while here not in self._origins and here not in self._open and len(trail) < _FARTHEST:
            trail.append(here)
            self._open.add(here)
            known = self.account(*here)
            if known is None:  # a send or receive: was it late, or is that its normal place in the program?
                pair = self.of_pair(*here, int(held_ns))
                origin = pair if pair is not None else Origin(here[1], here[0], None, is_known=False)
                break
            account, _, at = known
            because = account.part(at)
            before = self._held_up(*here) if because == "comm" else None
            origin = Origin(here[1], here[0], because, is_known=because != "comm" or not account.is_elsewhere(at))
            if before is None:
                break
            here, held_ns = before, account.elsewhere(at)
        # Where ranks held each other up in turn, the search comes back to where it was, and stays with the last one.
        origin = self._origins.get(here, origin)
        self._open.difference_update(trail)
        self._origins |= dict.fromkeys(trail, origin)
        return origin

    def of_pair(self, collective: int, rank: int, wait_ns: int) -> Origin | None:
        """Where the lateness of a rank at a send or receive began, for which another one waited `wait_ns`.

        The two sides run different programs, so only the rank's next collectives show whether it was late. If they do
        not, and it had itself waited as long just before, the rank that it waited for is to blame. None if the rank did
        only what its program always does.
        """
        for _ in range(_FARTHEST):
            calls = self._calls.get(rank)
            if calls is None:
                return None
            owed = {n: self._owed(n, rank) for n in calls.after(collective, _NEXT_CALLS)}
            most = max(owed, key=lambda number: owed[number], default=-1)
            if owed and owed[most] >= _LEAST_OF_WAIT * wait_ns:
                return self.origin(most, rank)
            before = calls.before(collective, _LEAST_OF_WAIT * wait_ns)
            if before is None:
                return None
            collective, rank = before
        return None

    def _owed(self, collective: int, rank: int) -> float:
        """How much of a rank's lateness at a collective is explained, in ns."""
        known = self.account(collective, rank)
        return float(known[0].owed[known[2]].sum()) if known is not None else 0.0

    def _held_up(self, collective: int, rank: int) -> tuple[int, int] | None:
        """The collective in which a rank waited longest while its lateness arose, and the rank that it waited for."""
        known, calls = self.account(collective, rank), self._calls.get(rank)
        if known is None or calls is None:
            return None
        account, sequence, at = known
        main = int(account.main[at])
        if main < 0:
            return None
        before = int(account.since[main])
        since = int(sequence.collectives[before]) if before >= 0 else None
        return calls.longest(since, int(sequence.collectives[main]), account.elsewhere(at))


class _Calls(NamedTuple):
    """The calls of a rank in the order of their start, on its own clock; all of shape (calls,).

    `until_ns` is when the wait of the call ended, `waited_for` the rank waited for, -1 for none; `group` is -1 for
    calls that do not synchronise. `place` is the position of each collective.
    """

    collective: Ints
    start_ns: Ints
    ready_ns: Ints
    until_ns: Ints
    waited_for: Ints
    group: Ints
    place: Mapping[int, int]

    @classmethod
    def of(cls, calls: pd.DataFrame) -> _Calls:
        ordered = calls.sort_values("start_ns", kind="stable")
        collective = ordered["collective_id"].to_numpy(dtype=np.int64)
        start = ordered["start_ns"].to_numpy(dtype=np.int64)
        return cls(
            collective,
            start,
            ordered["ready_own_ns"].to_numpy(dtype=np.int64),
            start + ordered["wait_ns"].fillna(0).to_numpy(dtype=np.int64),
            ordered["waited_for"].fillna(-1).to_numpy(dtype=np.int64),
            ordered["group"].to_numpy(dtype=np.int64),
            {number: place for place, number in enumerate(collective.tolist())},
        )

    def longest(self, since: int | None, until: int, least_ns: float) -> tuple[int, int] | None:
        """The collective and rank of the longest wait that ended between the calls in `since` and `until`.

        It must be at least half as long as `least_ns`, which it is to explain. Waits in the group itself do not count,
        as all its members leave them at once.
        """
        end = self.ready_ns[self.place[until]]
        others = (self.group != self.group[self.place[until]]) | (self.group < 0)
        begin = self.ready_ns[self.place[since]] if since is not None and since in self.place else -1
        return self._worst(others & (self.until_ns > begin) & (self.until_ns <= end), begin, least_ns / 2)

    def after(self, collective: int, count: int) -> list[int]:
        """The collectives of the next `count` calls after the one in this collective."""
        at = self.place.get(collective)
        return self.collective[at + 1 : at + 1 + count].tolist() if at is not None else []

    def before(self, collective: int, least_ns: float) -> tuple[int, int] | None:
        """The collective and rank of the last wait before the call in this collective, if it took `least_ns`."""
        at = self.place.get(collective)
        if at is None:
            return None
        over = np.flatnonzero((self.until_ns <= self.start_ns[at]) & (self.waited_for >= 0))
        if not len(over):
            return None
        last = int(over[self.until_ns[over].argmax()])
        if self.until_ns[last] - self.start_ns[last] < least_ns:
            return None
        return int(self.collective[last]), int(self.waited_for[last])

    def _worst(self, rows: Flags, begin: int, least_ns: float) -> tuple[int, int] | None:
        """Among the waits in `rows`, the collective of the longest one for the rank that was waited for most in all.

        Also that rank. Only waiting after `begin` counts; None if it is less than `least_ns` in all.
        """
        waits = np.flatnonzero(rows & (self.waited_for >= 0))
        waited = np.maximum(self.until_ns[waits] - np.maximum(self.ready_ns[waits], begin), 0)
        ranks, number = np.unique(self.waited_for[waits], return_inverse=True)
        total = np.bincount(number, waited, len(ranks))
        if not len(ranks) or total.max() < least_ns:
            return None
        for_worst = number == total.argmax()
        worst = int(waits[for_worst][waited[for_worst].argmax()])
        return int(self.collective[worst]), int(ranks[total.argmax()])
