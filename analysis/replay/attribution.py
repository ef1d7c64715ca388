"""Which part of a run its slowdown comes from: each part alone as it is, and each part alone without jitter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..metrics.clocks.frame import Flags, Ints
from .alike import peers
from .engine import Playing


class RunPart(NamedTuple):
    """Some activities of a run: what they are, which of these, and how they are found."""

    of: str
    name: str
    chosen: Callable[[Playing], Flags]


def parts_of(
    members: Sequence[Playing],
    hosts: Mapping[int, str | None],
    collectives: Mapping[int, str],
    one_by_one: Collection[int],
) -> Iterator[RunPart]:
    """Compute, each kind of collective, some ranks, hosts, and ranks with the same program, where there are several.

    `collectives` are the kinds of all collectives by number, `one_by_one` the ranks that are parts by themselves.
    """
    yield RunPart("compute", "", lambda member: ~member.program.is_comm)
    for kind in sorted(set(collectives.values())):
        numbers = np.array([number for number, its in collectives.items() if its == kind])
        yield RunPart("collective", kind, _of_collectives(numbers))
    ranks = sorted({member.program.rank for member in members})
    alone = {str(rank): [rank] for rank in ranks if rank in one_by_one}
    groups = [("rank", alone if len(ranks) > 1 else {})]
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        by_host[hosts.get(rank) or ""].append(rank)
    by_program: dict[int, list[int]] = defaultdict(list)
    for member, number in zip(members, peers([m.program for m in members]), strict=True):
        by_program[number].append(member.program.rank)
    groups.append(("host", by_host if "" not in by_host else {}))
    groups.append(("program", {" ".join(map(str, sorted(own))): own for own in by_program.values()}))
    for of, named in groups:
        for name, own in named.items() if len(named) > 1 or of == "rank" else ():
            yield RunPart(of, name, _of_ranks(own))


def others(part: RunPart) -> Callable[[Playing], Flags]:
    """All activities but those of a part."""

    def chosen(member: Playing) -> Flags:
        rest: Flags = ~part.chosen(member)
        return rest

    return chosen


def _of_ranks(ranks: Collection[int]) -> Callable[[Playing], Flags]:
    return lambda member: np.full(len(member.program), member.program.rank in ranks)


def _of_collectives(numbers: Ints) -> Callable[[Playing], Flags]:
    return lambda member: np.isin(member.program.collective, numbers)
