"""Predict FSDP that gathers parameters once, or beside the gradients that it scatters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from ...core.arrays import Ints
from ...errors import NothingMeasured
from ..edges import Edges
from ..engine import Playing
from ..links import Linked
from ..producers import with_producers
from ..programs import NONE, RankProgram
from .scenario import Change, Scenario

GATHER, SCATTER = "all_gather", "reduce_scatter"
_OF_CALLS = ("call_start", "call_end", "call_name", "call_thread")


def parameters_kept(links: Mapping[int, Linked]) -> Scenario:
    """Gather parameters once per step (reshard_after_forward=False): the second all_gathers are removed.

    Of a group that scatters gradients so many times in a step, as many all_gathers are those of the forward pass.
    """

    def gathered_once(member: Playing) -> Playing:
        return _without_transfers(member, _second(member, links))

    return Scenario(
        "parameters gathered once, as with reshard_after_forward=False",
        "there is memory for all parameters; the CPU works as long as it did",
        _both_ways(gathered_once),
    )


def gathers_beside(links: Mapping[int, Linked]) -> Scenario:
    """Give a group's all_gathers their own communicator, so that they do not wait for reduce_scatters."""

    def beside(member: Playing) -> Playing:
        return _apart(member, _all(member, links, GATHER))

    return Scenario(
        "all_gathers on a communicator of their own",
        "all_gathers and reduce_scatters at the same time take as long as alone",
        _both_ways(beside),
    )


def _both_ways(changed: Callable[[Playing], Playing]) -> tuple[Change, Change]:
    """Two ways: collectives wait for what their thread launched before, or only for known inputs."""

    def sure(members: Sequence[Playing]) -> list[Playing]:
        return [changed(with_producers(member)) for member in members]

    def shown(members: Sequence[Playing]) -> list[Playing]:
        return [changed(member) for member in members]

    return sure, shown


def check_gathered_twice(links: Mapping[int, Linked]) -> None:
    """Raise NothingMeasured if no process group gathers more often than it scatters."""
    if not any(_count(links, group, GATHER) > _count(links, group, SCATTER) > 0 for group in _sharded(links)):
        raise NothingMeasured("no process group gathers parameters more often than it scatters gradients, as FSDP does")


def check_sharded(links: Mapping[int, Linked]) -> None:
    """Raise NothingMeasured if no process group both gathers and scatters."""
    if not _sharded(links):
        raise NothingMeasured("no process group has both all_gathers and reduce_scatters, as FSDP does")


_Group = tuple[str | None, tuple[int, ...]]


def _sharded(links: Mapping[int, Linked]) -> set[_Group]:
    """Groups that both gather and scatter."""
    gathering, scattering = (
        {_group(linked) for linked in links.values() if linked.collective == kind} for kind in (GATHER, SCATTER)
    )
    return gathering & scattering


def _count(links: Mapping[int, Linked], group: _Group, kind: str) -> int:
    return sum(linked.collective == kind and _group(linked) == group for linked in links.values())


def _group(linked: Linked) -> _Group:
    return linked.group, linked.ranks


def _all(member: Playing, links: Mapping[int, Linked], kind: str) -> Ints:
    """Calls of this kind by groups that gather and scatter, by time."""
    program, groups = member.program, _sharded(links)
    nodes = [
        node
        for node in np.flatnonzero(program.collective != NONE).tolist()
        if (linked := links.get(int(program.collective[node]))) is not None
        and linked.collective == kind
        and _group(linked) in groups
    ]
    return np.array(sorted(nodes, key=lambda node: int(program.start[node])), dtype=np.int64)


def _second(member: Playing, links: Mapping[int, Linked]) -> Ints:
    """All_gathers of each step and group after as many as there are reduce_scatters.

    Where gradients are scattered before that, several batches share a step, and their order does not tell which.
    """
    program = member.program
    gathers, scatters = _all(member, links, GATHER), _all(member, links, SCATTER)
    second: list[int] = []
    keys = {(int(program.step[node]), _group(links[int(program.collective[node])])) for node in gathers.tolist()}
    for step, group in sorted(keys, key=str):
        gathered, scattered = (
            [
                node
                for node in nodes.tolist()
                if program.step[node] == step and _group(links[int(program.collective[node])]) == group
            ]
            for nodes in (gathers, scatters)
        )
        if not scattered or len(gathered) <= len(scattered) or _several(program, gathered, scattered):
            continue
        second += gathered[len(scattered) :]
    return np.array(second, dtype=np.int64)


def _several(program: RankProgram, gathered: Sequence[int], scattered: Sequence[int]) -> bool:
    """Whether gradients are scattered before the forward pass can have gathered everything."""
    return bool(program.start[gathered[len(scattered) - 1]] > program.start[scattered[0]])


def _without_transfers(member: Playing, nodes: Ints) -> Playing:
    """Make these calls take no time and wait for nobody."""
    gone = np.zeros(len(member.program), dtype=bool)
    gone[nodes] = True
    program = replace(
        member.program,
        collective=np.where(gone, NONE, member.program.collective),
        is_unsplit=member.program.is_unsplit & ~gone,
    )
    nothing = np.zeros(len(program), dtype=np.int64)
    return replace(
        member,
        program=program,
        duration=np.where(gone, nothing, member.duration),
        transfer=np.where(gone, nothing, member.transfer),
        delay=np.where(gone, nothing, member.delay),
    )


def _apart(member: Playing, nodes: Ints) -> Playing:
    """Move these calls to new streams, one for each of their present streams."""
    program = member.program
    lane = program.lane.copy()
    lane[nodes] += int(lane.max(initial=0)) + 1
    order = np.lexsort((program.end, program.start, lane))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    columns = {
        each.name: value[order]
        for each in fields(RankProgram)
        if isinstance(value := getattr(program, each.name), np.ndarray) and each.name not in _OF_CALLS
    }
    if program.issued_by is not None:
        columns["issued_by"] = np.where(columns["issued_by"] == NONE, NONE, place[columns["issued_by"]])
    columns["lane"] = lane[order]

    def moved(edges: Mapping[int, list[int]], keys: Ints | None) -> dict[int, list[int]]:
        return {
            key if keys is None else int(keys[key]): sorted(place[sources].tolist()) for key, sources in edges.items()
        }

    return replace(
        member,
        program=replace(program, **columns),
        edges=Edges(moved(member.edges.joins, place), moved(member.edges.blocks, None)),
        delay=member.delay[order],
        duration=member.duration[order],
        transfer=member.transfer[order],
    )
