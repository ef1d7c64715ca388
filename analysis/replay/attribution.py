"""Attribute jitter to parts of a run: replay it with the jitter of one part only, and without that part's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...common.nccl_tests import POINT_TO_POINT
from ..core.arrays import Flags
from ..core.intervals import Spans
from .alike import peers
from .engine import Playing
from .jitter import Chosen, host_places, host_work_within
from .links import Linked

_FEW, _MOST = 32, 16
"""Of more ranks or hosts, only late ones are parts; and so many operations and groups are, at most."""


class RunPart(NamedTuple):
    """Some activities of a run: what they are, which ones, and how to select them."""

    of: str
    name: str
    chosen: Callable[[Playing], Chosen]


class PartNames(NamedTuple):
    """Names of the parts of a run: hosts of ranks, collectives by number, and activities by code.

    `late` are the ranks and hosts that are parts by themselves, if there are many; `loading` is when the CPU of a rank
    waited for its next batch, on the common clock.
    """

    hosts: Mapping[int, str | None]
    links: Mapping[int, Linked]
    names: Sequence[str]
    late: frozenset[int]
    loading: Mapping[int, Spans]


def parts_of(members: Sequence[Playing], names: PartNames) -> Iterator[RunPart]:
    """Yield the parts: compute and its operations, CPUs, collectives, groups, and ranks in several groupings."""
    yield RunPart("compute", "", _only(lambda member: ~member.program.is_comm))
    yield from _operations(members, names.names)
    yield from _of_cpus(members, names)
    kinds: dict[str, list[int]] = defaultdict(list)
    groups: dict[str, list[int]] = defaultdict(list)
    for number, linked in names.links.items():
        kinds[linked.collective].append(number)
        groups[f"{linked.group or ''} ({' '.join(map(str, linked.ranks))})".strip()].append(number)
    for kind, numbers in sorted(kinds.items()):
        yield RunPart("collective", kind, _of_collectives(numbers))
    often = sorted(groups, key=lambda name: -len(groups[name]))[:_MOST]
    for name in sorted(often) if len(groups) > 1 else ():
        yield RunPart("group", name, _of_collectives(groups[name]))
    for of, named in _by_ranks(members, names):
        for name, ranks in _few(named, names).items():
            yield RunPart(of, name, _of_ranks(ranks))


def _few(named: dict[str, list[int]], names: PartNames) -> dict[str, list[int]]:
    """The named parts: none if there is only one; of many, those with late ranks."""
    if len(named) < 2:
        return {}
    return {name: ranks for name, ranks in named.items() if len(named) <= _FEW or not names.late.isdisjoint(ranks)}


def _of_cpus(members: Sequence[Playing], names: PartNames) -> Iterator[RunPart]:
    """Yield the work of all CPUs and of each rank's, and the time spent getting batches."""
    ranks = [member.program.rank for member in members]
    for of, kinds in (("cpu", _all_host), ("data", _loading(names.loading))):
        if of == "data" and not names.loading:
            continue
        yield RunPart(of, "", _host(ranks, kinds))
        for name, alone in _few({str(rank): [rank] for rank in sorted(set(ranks))}, names).items():
            yield RunPart(of, name, _host(alone, kinds))


def _operations(members: Sequence[Playing], names: Sequence[str]) -> Iterator[RunPart]:
    """Yield the names that take most time, without communication."""
    took = np.zeros(len(names), dtype=np.int64)
    for member in members:
        work = ~member.program.is_comm
        np.add.at(took, member.program.name[work], member.duration[work])
    longest = np.argsort(-took, kind="stable")[:_MOST]
    for code in longest[took[longest] > 0].tolist():
        yield RunPart("operation", names[code], _named(code))


def _by_ranks(members: Sequence[Playing], names: PartNames) -> Iterator[tuple[str, dict[str, list[int]]]]:
    """Yield ranks one by one, by host, by program, and by place in groups that are alike."""
    ranks = sorted({member.program.rank for member in members})
    yield "rank", {str(rank): [rank] for rank in ranks}
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        by_host[names.hosts.get(rank) or ""].append(rank)
    yield "host", by_host if "" not in by_host else {}
    by_program: dict[int, list[int]] = defaultdict(list)
    for member, number in zip(members, peers([m.program for m in members]), strict=True):
        by_program[number].append(member.program.rank)
    yield "program", {" ".join(map(str, sorted(alike))): alike for alike in by_program.values()}
    shapes: dict[tuple[int, ...], set[tuple[int, ...]]] = defaultdict(set)
    for linked in names.links.values():
        if 1 < len(linked.ranks) < len(ranks) and linked.collective not in POINT_TO_POINT:
            shapes[tuple(rank - linked.ranks[0] for rank in linked.ranks)].add(linked.ranks)
    for shape, alike in shapes.items():
        members_of = sorted(rank for group in alike for rank in group)
        if len(set(members_of)) == len(members_of) and len(alike) > 1:
            like = " ".join(map(str, min(alike)))
            yield (
                "coordinate",
                {
                    f"{place} of {len(shape)} in groups like {like}": [group[place] for group in alike]
                    for place in range(len(shape))
                },
            )


def _only(activities: Callable[[Playing], Flags]) -> Callable[[Playing], Chosen]:
    """Choose activities without the CPU's work between them."""
    return lambda member: Chosen(activities(member), np.zeros(host_places(member), dtype=bool))


def _named(code: int) -> Callable[[Playing], Chosen]:
    return _only(lambda member: (member.program.name == code) & ~member.program.is_comm)


def _of_collectives(numbers: Sequence[int]) -> Callable[[Playing], Chosen]:
    return _only(lambda member: np.isin(member.program.collective, numbers))


def _of_ranks(ranks: Collection[int]) -> Callable[[Playing], Chosen]:
    def chosen(member: Playing) -> Chosen:
        is_one = member.program.rank in ranks
        return Chosen(np.full(len(member.program), is_one), np.full(host_places(member), is_one))

    return chosen


def _host(ranks: Collection[int], work: Callable[[Playing], Flags]) -> Callable[[Playing], Chosen]:
    """Choose work of the CPUs of these ranks without activities."""

    def chosen(member: Playing) -> Chosen:
        host = work(member) if member.program.rank in ranks else np.zeros(host_places(member), dtype=bool)
        return Chosen(np.zeros(len(member.program), dtype=bool), host)

    return chosen


def _all_host(member: Playing) -> Flags:
    return np.ones(host_places(member), dtype=bool)


def _loading(loading: Mapping[int, Spans]) -> Callable[[Playing], Flags]:
    def work(member: Playing) -> Flags:
        spans = loading.get(member.program.rank)
        if spans is None:
            return np.zeros(host_places(member), dtype=bool)
        return host_work_within(member, spans.starts, spans.ends)

    return work
