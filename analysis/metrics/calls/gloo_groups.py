"""The process groups of gloo's threads, which no trace names: by who shows the same calls at the same time.

Gloo gives each process group two threads of its own in every rank. The header of a trace lists the groups of its rank,
and who is in them. All members of a group run the same calls in the same order, and none leaves one before all have
come. So threads of which one began a call after the other's had ended are of different groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from ....common.nccl_tests import SYNCHRONISING
from ...core import markers
from ...core.arrays import Flags, Ints
from ...core.intervals import Times
from ...core.schema import Row, grouped

_THREADS = 2
"""Threads that torch gives each process group of gloo."""
_CUT, _CUT_FRAC = 3, 0.1
"""So many calls of a cycle, and this part of them, may be in the trace of one rank and not of another, as it is cut."""
_LEAST = 4
"""Fewer calls may meet by chance."""
_SLACK_NS = 1_000
_MESSAGES = ("send", "recv", "recvAnySource")
"""What runs on the thread that issued it."""


class _Calls(NamedTuple):
    """What some threads of a rank ran in one cycle, by start: when, and a code of the kind and shape.

    `meets` says which are of a kind that nobody leaves before all have come.
    """

    start_ns: Times
    end_ns: Times
    what: Ints
    meets: Flags

    def at(self, rows: Ints | slice) -> _Calls:
        return _Calls(self.start_ns[rows], self.end_ns[rows], self.what[rows], self.meets[rows])


_OfThreads = dict[int, _Calls]
"""What some threads of a rank ran, by cycle."""


def groups_of_threads(
    annotations: pd.DataFrame, process_groups: pd.DataFrame, hosts: Mapping[int, str | None]
) -> dict[int, dict[int, Row]]:
    """Name, ranks and size of the process group of each thread of gloo, by rank and thread; only what is certain.

    The arguments are the tables of these names, and the host of each rank, None where it is not known. Of the groups
    that fit, a thread is of the largest, since those of its parts fit as well. The name is None where a rank is in
    several groups of the same ranks.
    """
    listed = process_groups[["rank", "process_group", "pg_ranks"]].dropna().drop_duplicates()
    names: dict[tuple[int, ...], set[str]] = {}
    for name, ranks in zip(listed["process_group"], listed["pg_ranks"], strict=True):
        names.setdefault(tuple(int(rank) for rank in ranks.split()), set()).add(name)
    if len(names) < 2:
        return {}
    ran = _by_thread(annotations)
    found: dict[int, dict[int, Row]] = {rank: {} for rank in ran}
    for ranks in sorted(names, key=lambda ranks: (-len(ranks), ranks)):
        for _ in names[ranks]:
            free = {r: {t: c for t, c in ran[r].items() if t not in found[r]} for r in ranks if r in ran}
            chosen = _same_calls(free, hosts) if len(ranks) > 1 and len(free) > 1 else {}
            name = next(iter(names[ranks])) if len(names[ranks]) == 1 else None
            columns = {"process_group": name, "pg_ranks": " ".join(map(str, ranks)), "group_size": len(ranks)}
            for rank, threads in chosen.items():
                found[rank] |= dict.fromkeys(threads, columns)
    return found


def _by_thread(annotations: pd.DataFrame) -> dict[int, dict[int, _OfThreads]]:
    """The collectives that each thread of gloo ran: by rank and thread."""
    own = annotations[annotations["name"].str.startswith(markers.GLOO_MARK).fillna(False).astype(bool)]
    kinds = own["name"].str.removeprefix(markers.GLOO_MARK)
    own = own.assign(
        end_ns=own["start_ns"] + own["dur_ns"],
        what=pd.factorize(kinds + " " + own["in_dims"].astype(str))[0],
        meets=kinds.isin(SYNCHRONISING),
    )
    own = own[~kinds.isin(_MESSAGES)].sort_values("start_ns", kind="stable")
    result: dict[int, dict[int, _OfThreads]] = {}
    for (rank, thread, cycle), of in grouped(own, ["rank", "thread", "cycle"]):
        calls = _Calls(*(of[name].to_numpy() for name in _Calls._fields))
        result.setdefault(rank, {}).setdefault(thread, {})[cycle] = calls
    return result


def _same_calls(
    free: Mapping[int, Mapping[int, _OfThreads]], hosts: Mapping[int, str | None]
) -> dict[int, tuple[int, ...]]:
    """Threads of each rank that run the same calls, those with most; empty if there are none.

    `free` is what each thread of each rank ran.
    """
    first, *others = free
    sets = {rank: _sets(of_thread) for rank, of_thread in free.items()}
    for threads, calls in sets[first]:
        chosen = {first: threads}
        for rank in others:
            on_one_clock = hosts.get(rank) is not None and hosts.get(rank) == hosts.get(first)
            fitting = (own for own, theirs in sets[rank] if _are_same(calls, theirs, on_one_clock))
            if (own := next(fitting, None)) is None:
                break
            chosen[rank] = own
        else:
            return chosen
    return {}


def _sets(of_thread: Mapping[int, _OfThreads]) -> list[tuple[tuple[int, ...], _OfThreads]]:
    """The threads that may be those of one group, with what they ran, those with most calls first."""
    sets = [threads for count in range(1, _THREADS + 1) for threads in combinations(of_thread, count)]
    calls = [(threads, _merged([of_thread[thread] for thread in threads])) for threads in sets]
    return sorted(calls, key=lambda one: -sum(len(ran.what) for ran in one[1].values()))


def _merged(of_threads: Sequence[_OfThreads]) -> _OfThreads:
    result = {}
    for cycle in sorted({cycle for one in of_threads for cycle in one}):
        parts = [one[cycle] for one in of_threads if cycle in one]
        calls = _Calls(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        result[cycle] = calls.at(np.argsort(calls.start_ns, kind="stable"))
    return result


def _are_same(ours: _OfThreads, theirs: _OfThreads, on_one_clock: bool) -> bool:
    """Whether two ranks show the same calls: alike one by one, and each begins before the other's ends.

    Without a common clock, one is taken on which the ends agree.
    """
    return ours.keys() == theirs.keys() and all(_are_in_step(ours[c], theirs[c], on_one_clock) for c in ours)


def _are_in_step(ours: _Calls, theirs: _Calls, on_one_clock: bool) -> bool:
    most = max(len(ours.what), len(theirs.what))
    for ahead in sorted(range(-_CUT, _CUT + 1), key=abs):
        begin, end = max(ahead, 0), min(len(ours.what), len(theirs.what) + ahead)
        if end - begin < _LEAST or most - (end - begin) > min(_CUT, _CUT_FRAC * most):
            continue
        a, b = ours.at(slice(begin, end)), theirs.at(slice(begin - ahead, end - ahead))
        if (a.what == b.what).all() and a.meets.sum() >= _LEAST:
            apart = 0 if on_one_clock else int(np.median(b.end_ns - a.end_ns))
            missed_by = np.maximum(a.start_ns - b.end_ns + apart, b.start_ns - apart - a.end_ns)
            if (missed_by[a.meets] <= _SLACK_NS).all():
                return True
    return False
