"""What exactly took longer: the kernel, or the CPU's operator while its GPU had nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...core.intervals import Spans, clip, covered
from ...core.kinds import COMPUTE
from ...core.schema import Row, grouped
from .cpu_work import Detailed
from .origins import Origin, Reasons
from .sequences import without_work

_COMPARED_WITH = 8  # other members whose kernels are added up by name
_MOST_LOOKED_UP = 4  # ranks whose operators are read
_LEAST_OF_GAP = 0.2

Between = tuple[int, int]
"""From one time of a rank's own clock to another, in ns."""

KernelTimes = Callable[[Mapping[int, list[Between]]], Mapping[int, Mapping[Between, Mapping[str, int]]]]
"""`computed_between` of whatever ranks these are."""


def computed_between(
    activities: pd.DataFrame, wanted: Mapping[int, list[Between]]
) -> dict[int, dict[Between, dict[str, int]]]:
    """How long each kernel ran between two times of a rank, in ns: by rank, times and name of the kernel.

    `wanted` has the times of each rank. Kernels that did not run are left out. On one stream, what starts later ends
    later; on several, a kernel that began long before is not worth searching for.
    """
    computing = activities[(activities["kind"] == COMPUTE) & activities["rank"].isin(list(wanted))]
    of_rank: dict[int, dict[Between, dict[str, int]]] = {}
    for (rank,), ran in grouped(computing.sort_values(["rank", "start_ns"], kind="stable"), ["rank"]):
        codes, names = pd.factorize(ran["name"].astype(str))
        start_ns = ran["start_ns"].to_numpy()
        end_ns = start_ns + ran["dur_ns"].to_numpy()
        for begin, end in wanted[rank]:
            first, last = np.searchsorted(start_ns, (begin, end))
            part = slice(max(int(first) - 1, 0), int(last))
            took = np.maximum(np.minimum(end_ns[part], end) - np.maximum(start_ns[part], begin), 0)
            by_name = np.bincount(codes[part], took, len(names)).astype(np.int64)
            some = np.flatnonzero(by_name)
            of_rank.setdefault(rank, {})[begin, end] = {str(names[i]): int(by_name[i]) for i in some}
    return of_rank


class Interval(NamedTuple):
    """A part of a rank's program: from its call in collective `before`, if any, to its call in `until`.

    `others` are the ranks that it is compared with.
    """

    before: int | None
    until: int
    others: tuple[int, ...]


class Details:
    """What late ranks did longer, kernel by kernel or operator by operator; everything is looked up once."""

    def __init__(
        self,
        reasons: Reasons,
        kernel_times: KernelTimes,
        members: pd.DataFrame,
        detailed: Callable[[int], Detailed],
        origins: Iterable[Origin],
    ) -> None:
        """Look up the kernels of all `origins`, which must hold any that is asked for later.

        `members` are calls with `readiness`; `detailed` reads one rank with details of its CPU.
        """
        ready = members.drop_duplicates(["collective_id", "rank"])
        keys = zip(ready["collective_id"].tolist(), ready["rank"].tolist(), strict=True)
        self._ready = dict(zip(keys, ready["ready_own_ns"].tolist(), strict=True))
        self._reasons, self._members, self._detailed = reasons, members, detailed
        self._of_rank: dict[int, tuple[pd.DataFrame, Spans | None]] = {}
        self._rows: dict[tuple[int, int, str], Row] = {}
        wanted: dict[int, set[Between]] = {}
        for rank, times in self._times_wanted(origins):
            wanted.setdefault(rank, set()).add(times)
        self._computed = kernel_times({rank: sorted(wanted[rank]) for rank in sorted(wanted)})

    def _times_wanted(self, origins: Iterable[Origin]) -> Iterator[tuple[int, Between]]:
        """Ranks whose kernels have to be added up by name, and between which times."""
        for origin in origins:
            interval = self.interval(origin) if origin.because == "compute" else None
            if interval is None:
                continue
            for rank in (origin.rank, *interval.others):
                times = self._times(interval, rank)
                if times is not None:
                    yield rank, times

    def of(self, origin: Origin) -> Row:
        """The columns `kernel` and `kernel_extra_ns`, or `operator`, of a rank that was late; empty if not known."""
        interval = self.interval(origin)
        if interval is None or origin.because not in ("compute", "cpu"):
            return {}
        key = (interval.until, origin.rank, origin.because)
        if key not in self._rows:
            look = self._kernel if origin.because == "compute" else self._operator
            self._rows[key] = look(interval, origin.rank)
        return self._rows[key]

    def interval(self, origin: Origin) -> Interval | None:
        """The part of the program in which most of the rank's lateness arose; None if it is not known."""
        known = self._reasons.account(origin.collective, origin.rank)
        if known is None or known[0].main[known[2]] < 0:
            return None
        account, sequence, at = known
        main = int(account.main[at])
        since = int(account.since[main])
        others = sequence.ranks[sequence.others(int(np.searchsorted(sequence.ranks, origin.rank)))]
        before = int(sequence.collectives[since]) if since >= 0 else None
        return Interval(before, int(sequence.collectives[main]), tuple(others[:_COMPARED_WITH].tolist()))

    def _kernel(self, interval: Interval, rank: int) -> Row:
        """The kernel that ran longest beyond the median of the other ranks, and by how much; empty if none did."""
        mine = self._by_name(interval, rank)
        names = sorted(name for name, took_ns in mine.items() if took_ns > 0)
        theirs = [self._by_name(interval, other) for other in interval.others]
        usual = [float(np.median([other.get(name, 0) for other in theirs])) if theirs else 0.0 for name in names]
        more = np.array([mine[name] - usually for name, usually in zip(names, usual, strict=True)])
        if not len(more) or more.max() <= 0:
            return {}
        return {"kernel": names[int(more.argmax())], "kernel_extra_ns": int(more.max())}

    def _times(self, interval: Interval, rank: int) -> Between | None:
        """When a rank was in this part of its program, by its own clock; None if it did not make the last call."""
        end = self._ready.get((interval.until, rank))
        begin = self._ready.get((interval.before, rank)) if interval.before is not None else None
        return None if end is None else (begin or 0, end)

    def _by_name(self, interval: Interval, rank: int) -> Mapping[str, int]:
        """How long each kernel of a rank ran in a part of its program, in ns."""
        times = self._times(interval, rank)
        return {} if times is None else self._computed.get(rank, {}).get(times, {})

    def _operator(self, interval: Interval, rank: int) -> Row:
        """The operator of a rank's CPU that covers most of the time in which its device was given no work."""
        times = self._times(interval, rank)
        if rank not in self._of_rank and len(self._of_rank) < _MOST_LOOKED_UP:
            tables = self._detailed(rank)
            self._of_rank[rank] = tables.cpu_operators, without_work(tables, self._members, rank)
        operators, gaps = self._of_rank.get(rank, (None, None))
        if operators is None or not len(operators) or times is None or gaps is None:
            return {}
        idle = clip(gaps, *times)
        near = operators[(operators["start_ns"] < times[1]) & (operators["start_ns"] + operators["dur_ns"] > times[0])]
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
