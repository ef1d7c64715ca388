"""Follow who waits for whom to the ranks to name: those that wait for nobody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .waits import Wait


class Why(str, Enum):
    """The reason why ranks are named."""

    no_dump = "no dump"
    missing = "missing"
    left_behind = "left behind"
    mismatch = "mismatch"
    not_begun = "not begun"
    circle = "circle"
    all_there = "all there"


@dataclass(frozen=True)
class HangOrigin:
    """Ranks at which chains of waiting end, the reason, and the clearest wait.

    `held_up` is where others wait for them, if that is elsewhere.
    """

    ranks: tuple[int, ...]
    why: Why
    wait: Wait
    held_up: Wait | None = None


def origins_of(waits: Sequence[Wait]) -> list[HangOrigin]:
    """The ranks to name, those that most ranks wait for first."""
    stopped = _stopped(waits)
    strong = _edges(waits, stopped, weak=False)
    named: dict[frozenset[int], None] = {}
    for part in _last_parts(_edges(waits, stopped, weak=True)):
        named.update(dict.fromkeys(_named(part, strong, waits)))
    whys = [(ranks, _why(ranks, waits)) for ranks in named]
    return _merged(whys, waits)


def _stopped(waits: Sequence[Wait]) -> dict[int, int]:
    """Ranks that called something else or were left behind, and the record from which they do not wait.

    What a rank that was left behind shows as not done before may be done as well, so that it counts nowhere.
    """
    stopped: dict[int, int] = {}
    for wait in waits:
        for rank in wait.waiting.keys() & {*wait.odd}:
            record = wait.waiting[rank].record
            stopped[rank] = min(stopped.get(rank, record), record)
    return stopped | {rank: -1 for wait in waits for rank in wait.left_behind}


def _edges(waits: Sequence[Wait], stopped: Mapping[int, int], *, weak: bool) -> dict[int, set[int]]:
    """Edges from a rank to the ranks it waits for, through waits (below 0), which keeps edges few.

    The weak ones lead from each rank to all others that are in the same collective, where all are there.
    """
    edges: dict[int, set[int]] = defaultdict(set)
    for number, wait in enumerate(waits):
        if wait.left_behind:
            for rank in wait.waiting:
                edges[rank]
            continue
        blamed = wait.blamed or (tuple(wait.waiting) if weak else ())
        for rank, call in wait.waiting.items():
            edges[rank]
            is_culprit = rank in wait.not_begun or rank in wait.odd
            if blamed and not is_culprit and call.record < stopped.get(rank, call.record + 1):
                edges[rank].add(-1 - number)
        edges[-1 - number].update(blamed)
    return edges


def _named(part: frozenset[int], strong: Mapping[int, set[int]], waits: Sequence[Wait]) -> list[frozenset[int]]:
    """The ranks of a part without exit to name: where strong edges end, or else all."""
    inside = {rank: strong.get(rank, set()) for rank in part}
    for number in {node for nodes in inside.values() for node in nodes if node < 0}:
        inside[number] = {rank for rank in strong.get(number, ()) if rank in part}
    blamed = {rank for wait in waits for rank in wait.blamed if rank in part}
    ends = [end for end in _last_parts(inside) if end & blamed]
    return ends or [part]


def _why(ranks: frozenset[int], waits: Sequence[Wait]) -> tuple[Why, Wait] | None:
    """The reason for these ranks, and the wait that shows it best."""
    for why, listed in (
        (Why.mismatch, "odd"),
        (Why.left_behind, "left_behind"),
        (Why.no_dump, "without_dump"),
        (Why.not_begun, "not_begun"),
        (Why.circle, "missing"),
        (Why.missing, "missing"),
        (Why.missing, "behind"),
    ):
        if (why is Why.circle) and len(ranks) == 1:
            continue
        shown = [wait for wait in waits if ranks & set(getattr(wait, listed))]
        if why is Why.circle:
            shown = [wait for wait in shown if ranks & wait.waiting.keys()]
        if shown:
            return why, min(shown, key=lambda wait: _order(ranks, listed, wait))
    joined = [wait for wait in waits if ranks & wait.waiting.keys() and not wait.blamed]
    return (Why.all_there, min(joined, key=lambda wait: _order(ranks, "waiting", wait))) if joined else None


def _order(ranks: frozenset[int], listed: str, wait: Wait) -> tuple[bool, int, int, bool, int]:
    """Sort key of waits, the clearest first: one that blames no other rank, which might itself only wait."""
    covered = len(ranks & set(getattr(wait, listed)))
    blames_others = bool(set(wait.blamed) - ranks)
    return blames_others, -covered, -len(wait.waiting), wait.peers is not None, wait.since_ns or 0


def _merged(whys: Iterable[tuple[frozenset[int], tuple[Why, Wait] | None]], waits: Sequence[Wait]) -> list[HangOrigin]:
    """Merge ranks with one reason if one wait shows it for all of them."""
    left: dict[Why, set[int]] = defaultdict(set)
    merged: list[HangOrigin] = []
    for ranks, reason in whys:
        if reason is None:
            continue
        if len(ranks) > 1 or reason[0] is Why.all_there:
            merged.append(HangOrigin(tuple(sorted(ranks)), *reason))
        else:
            left[reason[0]] |= ranks
    for why, of_why in left.items():
        while of_why:
            best = _best(frozenset(of_why), why, waits)
            covered = of_why & {*best.blamed, *best.left_behind}
            held_up = _held_up(frozenset(covered), waits) if why is Why.left_behind else None
            merged.append(HangOrigin(tuple(sorted(covered)), why, best, held_up))
            of_why -= covered
    return sorted(merged, key=lambda one: (-len(one.wait.waiting), one.ranks))


def _best(ranks: frozenset[int], why: Why, waits: Sequence[Wait]) -> Wait:
    listed = "left_behind" if why is Why.left_behind else "blamed"
    shown = [wait for wait in waits if ranks & set(getattr(wait, listed))]
    if why is Why.mismatch:
        shown = [wait for wait in shown if ranks & set(wait.odd)]
    return min(shown, key=lambda wait: _order(ranks, listed, wait))


def _held_up(ranks: frozenset[int], waits: Sequence[Wait]) -> Wait | None:
    """A wait of others for all of these ranks."""
    shown = [wait for wait in waits if ranks <= set(wait.blamed)]
    return min(shown, key=lambda wait: _order(ranks, "blamed", wait), default=None)


def _last_parts(edges: Mapping[int, set[int]]) -> list[frozenset[int]]:
    """Ranks of each strongly connected part that no edge leaves. Tarjan's algorithm without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    part_of: dict[int, int] = {}
    stack: list[int] = []
    parts: list[list[int]] = []
    for root in list(edges):
        if root in index:
            continue
        work = [(root, iter(sorted(edges.get(root, ()))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(sorted(edges.get(other, ())))))
                    break
                if other not in part_of:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    parts.append([])
                    while True:
                        last = stack.pop()
                        part_of[last] = len(parts) - 1
                        parts[-1].append(last)
                        if last == node:
                            break
    leaving = {part_of[a] for a, ends in edges.items() for b in ends if part_of[a] != part_of[b]}
    without_exit = [frozenset(n for n in part if n >= 0) for number, part in enumerate(parts) if number not in leaving]
    return [part for part in without_exit if part]
