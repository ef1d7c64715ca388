"""What exactly took longer: the kernel, or the CPU's operator while its GPU had nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...core.intervals import Spans, clip, covered
from ...core.kinds import COMPUTE
from ...core.schema import Row, grouped
from ..clocks.frame import Floats, Ints
from .origins import Origin, Reasons
from .program import Program

_COMPARED_WITH = 8  # other members whose kernels are added up by name
_MOST_LOOKED_UP = 4  # ranks whose operators are read
_LEAST_OF_GAP = 0.2

Operators = Callable[[int], pd.DataFrame]
"""Rank -> its CPU operators; empty where they cannot be read."""


class _Interval(NamedTuple):
    """A part of a rank's program, between two of its calls, on its own clock; and the ranks it is compared with."""

    before: int | None
    until: int
    others: list[int]


class _Computing(NamedTuple):
    """Kernels and operators of a rank by when they started, with numbers for their names; all of shape (n,)."""

    start_ns: Ints
    end_ns: Ints
    name: Ints

    @classmethod
    def of(cls, own: pd.DataFrame) -> _Computing:
        start_ns = own["start_ns"].to_numpy()
        return cls(start_ns, start_ns + own["dur_ns"].to_numpy(), own["code"].to_numpy())


class Details:
    """Kernels and operators of culprits, each looked up once."""

    def __init__(
        self,
        reasons: Reasons,
        activities: pd.DataFrame,
        members: pd.DataFrame,
        programs: Mapping[tuple[Any, ...], Program],
        operators: Operators,
    ) -> None:
        computing = activities[activities["kind"] == COMPUTE].sort_values("start_ns", kind="stable")
        codes, self._names = pd.factorize(computing["name"].astype(str), sort=True)
        columns = computing.assign(code=codes)[["rank", "start_ns", "dur_ns", "code"]]
        self._computing = {rank: _Computing.of(own) for (rank,), own in grouped(columns, ["rank"])}
        ready = members.drop_duplicates(["collective_id", "rank"])
        keys = zip(ready["collective_id"].tolist(), ready["rank"].tolist(), strict=True)
        self._ready = dict(zip(keys, ready["ready_own_ns"].tolist(), strict=True))
        self._reasons, self._programs, self._operators = reasons, programs, operators
        self._of_rank: dict[int, pd.DataFrame] = {}
        self._found: dict[tuple[int, int, str], Row] = {}

    def of(self, origin: Origin) -> Row:
        """The columns `kernel`, `kernel_extra_ns` and `operator` of a rank that was late, as far as they are known."""
        interval = self._interval(origin)
        if interval is None or origin.because not in ("compute", "cpu"):
            return {}
        key = (interval.until, origin.rank, origin.because)
        if key not in self._found:
            look = self._kernel if origin.because == "compute" else self._operator
            self._found[key] = look(interval, origin.rank)
        return self._found[key]

    def _interval(self, origin: Origin) -> _Interval | None:
        known = self._reasons.account(origin.collective, origin.rank)
        if known is None or known[0].main[known[2]] < 0:
            return None
        found, sequence, at = known
        main = int(found.main[at])
        since = int(found.since[main])
        others = sequence.ranks[sequence.others(int(np.searchsorted(sequence.ranks, origin.rank)))]
        before = int(sequence.collectives[since]) if since >= 0 else None
        return _Interval(before, int(sequence.collectives[main]), others[:_COMPARED_WITH].tolist())

    def _kernel(self, interval: _Interval, rank: int) -> Row:
        """The kernel or operator that ran longest beyond the median of the other ranks, and how much in ns."""
        mine = self._by_name(interval, rank)
        theirs = np.array([self._by_name(interval, other) for other in interval.others])
        more = np.where(mine > 0, mine - (np.median(theirs, axis=0) if len(theirs) else 0.0), 0.0)
        if not more.any() or more.max() <= 0:
            return {}
        return {"kernel": str(self._names[int(more.argmax())]), "kernel_extra_ns": int(more.max())}

    def _times(self, interval: _Interval, rank: int) -> tuple[int, int] | None:
        end = self._ready.get((interval.until, rank))
        begin = self._ready.get((interval.before, rank)) if interval.before is not None else None
        return None if end is None else (begin or 0, end)

    def _by_name(self, interval: _Interval, rank: int) -> Floats:
        """Compute time between two calls of a rank, in ns; shape (names,)."""
        own, times = self._computing.get(rank), self._times(interval, rank)
        if own is None or times is None:
            return np.zeros(len(self._names))
        # On one stream, what starts later ends later; on several, a kernel that began long before is not worth
        # searching for.
        first, last = np.searchsorted(own.start_ns, times)
        part = slice(max(int(first) - 1, 0), int(last))
        took = np.minimum(own.end_ns[part], times[1]) - np.maximum(own.start_ns[part], times[0])
        return np.bincount(own.name[part], np.maximum(took, 0), len(self._names)).astype(np.float64)

    def _operator(self, interval: _Interval, rank: int) -> Row:
        """The outermost operator that covers most of the time in which the device was given no work."""
        times = self._times(interval, rank)
        if rank not in self._of_rank and len(self._of_rank) < _MOST_LOOKED_UP:
            self._of_rank[rank] = self._operators(rank)
        own = self._of_rank.get(rank)
        gaps = [p.parts["cpu"] for (r, _, _), p in self._programs.items() if r == rank]
        if own is None or not len(own) or times is None or not gaps:
            return {}
        idle = clip(gaps[0], *times)
        near = own[(own["start_ns"] < times[1]) & (own["start_ns"] + own["dur_ns"] > times[0])]
        return {"operator": name} if (name := _longest(near, idle)) is not None else {}


def _longest(operators: pd.DataFrame, idle: Spans) -> str | None:
    """The operator that covers most of the idle time, if it covers enough of it; the outermost of nested ones."""
    starts = operators["start_ns"].to_numpy(dtype=np.int64)
    inside = covered(idle, starts, starts + operators["dur_ns"].to_numpy(dtype=np.int64))
    whole = int((idle.ends - idle.starts).sum())
    if not len(inside) or inside.max() < _LEAST_OF_GAP * whole:
        return None
    by_name = pd.Series(inside, operators.index).groupby(operators["name"].astype(str)).sum()
    most = by_name[by_name >= by_name.max()]
    longest = operators["dur_ns"].groupby(operators["name"].astype(str)).max()
    return str(longest.reindex(most.index).idxmax())
