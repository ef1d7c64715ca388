"""Predict fused collectives, where none is needed before the input of the next is ready."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ....common.nccl_tests import POINT_TO_POINT
from ...core.intervals import spans, total
from ..edges import Edges
from ..engine import Playing
from ..links import Linked
from ..programs import NONE
from .scenario import Change, Scenario

_NEVER = np.iinfo(np.int64).max
_Run = tuple[int, ...]
"""Collectives that become one, in order."""


def fused(links: Mapping[int, Linked]) -> Scenario:
    """Fuse collectives of one kind and group, if the later one's input was ready before the earlier one was needed.

    It begins with the last of them and takes their transfers together, less all their latencies but one: two ways, with
    the least latency that may be, and with the most.
    """
    least = {number: linked.bounds.low_ns for number, linked in links.items()}
    most = {number: linked.bounds.high_ns for number, linked in links.items()}
    ways = (_fusing(links, least), _fusing(links, most))
    return Scenario(
        "collectives fused", "one latency instead of several; no work needs a part of the result earlier", ways
    )


def _fusing(links: Mapping[int, Linked], latency_ns: Mapping[int, float]) -> Change:
    def change(members: Sequence[Playing]) -> list[Playing]:
        runs = list(_runs(members, links))
        return [_fused(member, runs, latency_ns) for member in members]

    return change


def _fused(member: Playing, runs: Sequence[_Run], latency_ns: Mapping[int, float]) -> Playing:
    node_of = _nodes(member)
    transfer = member.transfer.copy()
    instead: dict[int, int] = {}
    for run in runs:
        nodes = [node_of[number] for number in run if number in node_of]
        if len(nodes) < 2:
            continue
        took = [int(member.transfer[node]) for node in nodes]
        least = min(latency_ns[run[0]], *took)
        *earlier, last = nodes
        transfer[earlier] = 0
        transfer[last] = round(_together(member, nodes) - least * len(earlier))
        instead |= dict.fromkeys(earlier, last)
    joins = {node: _replaced(sources, instead, node) for node, sources in member.edges.joins.items()}
    blocks = {call: _replaced(sources, instead) for call, sources in member.edges.blocks.items()}
    return replace(member, transfer=transfer, edges=Edges(joins, blocks))


def _together(member: Playing, nodes: Sequence[int]) -> int:
    """Time in which at least one of these moved data, in ns; gloo's threads move several at once."""
    ended = member.program.end[nodes].astype(np.int64)
    return total(spans(ended - member.transfer[nodes].astype(np.int64), ended))


def _replaced(sources: Sequence[int], instead: Mapping[int, int], node: int = NONE) -> list[int]:
    return sorted({instead.get(source, source) for source in sources} - {node})


def _nodes(member: Playing) -> dict[int, int]:
    comm = np.flatnonzero(member.program.collective != NONE)
    return dict(zip(member.program.collective[comm].tolist(), comm.tolist(), strict=True))


def _runs(members: Sequence[Playing], links: Mapping[int, Linked]) -> Iterator[_Run]:
    """Yield runs of collectives of one kind and group that can be fused."""
    there: dict[int, list[int]] = {}
    needed: dict[int, list[int]] = {}
    steps: dict[int, int] = {}
    for member in members:
        first = _first_needed(member)
        for number, node in _nodes(member).items():
            there.setdefault(number, []).append(_ready(member, node))
            needed.setdefault(number, []).append(first.get(node, _NEVER))
            steps[number] = int(member.program.step[node])
    like: dict[tuple[object, ...], list[int]] = {}
    for number in sorted(there, key=lambda each: min(there[each])):
        linked = links.get(number)
        if linked is not None and linked.collective not in POINT_TO_POINT:
            like.setdefault((linked.collective, linked.group, linked.ranks, steps[number]), []).append(number)
    for numbers in like.values():
        run: list[int] = []
        soonest: list[int] = []
        for number in numbers:
            if run and not all(at <= until for at, until in zip(there[number], soonest, strict=False)):
                yield tuple(run)
                run = []
            soonest = [min(pair) for pair in zip(soonest, needed[number], strict=False)] if run else needed[number]
            run.append(number)
        yield tuple(run)


def _ready(member: Playing, node: int) -> int:
    """When a collective's input was ready, in ns, if known; else when the collective began."""
    sources = member.edges.joins.get(node)
    return max(int(member.program.end[source]) for source in sources) if sources else int(member.program.start[node])


def _first_needed(member: Playing) -> dict[int, int]:
    """When the first activity or CPU call that had waited for each activity went on, in ns."""
    program = member.program
    needed: dict[int, int] = {}
    gone_on = [(sources, int(program.start[node])) for node, sources in member.edges.joins.items()]
    gone_on += [(sources, int(program.call_end[call])) for call, sources in member.edges.blocks.items()]
    for sources, at in gone_on:
        for source in sources:
            needed[source] = min(at, needed.get(source, _NEVER))
    return needed
