"""Replay programs: each activity begins when all it depends on is done, plus its delay."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..core.arrays import Flags, Ints
from .cpu_programs import cpu_edges
from .edges import Edges, gpu_edges, ready
from .graph import Graph, NewTimes
from .laid_out import graph_of
from .playing import Playing
from .programs import LONG_AGO, NONE, RankProgram, arrivals, last_arrival

__all__ = ["Delays", "Playing", "play", "play_all", "prepared"]

_BEFORE = 0
_MOST_HELD, _MOST_KEPT = 1_500_000, 6_000_000
"""Activities of all variants that are played at once, and of the graphs that are kept for the next."""


@dataclass(frozen=True)
class Delays:
    """Delay of each activity after all it depends on: as measured, and as usual after what came last."""

    measured: Ints
    usual: Ints


def prepared(members: Sequence[RankProgram]) -> tuple[list[Playing], list[Playing]]:
    """Ranks ready for replay: with delays as measured, and with usual delays."""
    arrived = arrivals(members)
    measured, usual = [], []
    without_gpu = [program for program in members if program.issued_by is not None]
    on_cpus = iter(cpu_edges(without_gpu, arrived))
    on_gpus = iter(gpu_edges([program for program in members if program.issued_by is None]))
    for program in members:
        edges = next(on_gpus if program.issued_by is None else on_cpus)
        delays = _delays(program, edges)
        transfer = program.end - program.start
        for node in np.flatnonzero(program.collective != NONE).tolist():
            _, needed = last_arrival(program, node, arrived)
            transfer[node] = max(int(program.end[node]) - max(needed, int(program.start[node])), 0)
        measured.append(
            Playing(
                program,
                edges,
                delays.measured,
                program.end - program.start,
                transfer,
                _returns(program, edges),
                np.zeros(len(program.call_start), dtype=np.int64),
            )
        )
        usual.append(replace(measured[-1], delay=np.minimum(delays.measured, delays.usual)))
    return measured, usual


def _delays(program: RankProgram, edges: Edges) -> Delays:
    before, launched = ready(program)
    joined = np.full(len(program), LONG_AGO)
    for node, sources in edges.joins.items():
        joined[node] = max(int(program.end[source]) for source in sources)
    known = np.maximum(np.maximum(before, launched), joined)
    measured = np.where(known == LONG_AGO, program.rested, program.start - known)
    last = np.argmax([before, launched, joined], axis=0)
    usual = np.zeros(len(program), dtype=np.int64)
    sorts = [np.ones(len(program), dtype=bool)] if program.issued_by is None else [program.is_comm, ~program.is_comm]
    for kind, sort in product(range(3), sorts):  # what came last: the one before, the launch, or what it joins
        chosen = (last == kind) & sort & (known != LONG_AGO)
        if chosen.any():
            usual[chosen] = max(int(np.median(measured[chosen])), 0)
    worked = program.paced & (last == _BEFORE)
    usual[worked] = measured[worked]
    return Delays(measured, usual)


def _returns(program: RankProgram, edges: Edges) -> dict[int, int]:
    """Delay of each blocked call after what it waited for, in ns; -1 if it did not wait."""
    returns = {}
    for call, sources in edges.blocks.items():
        end = max(int(program.end[source]) for source in sources)
        returns[call] = int(program.call_end[call]) - end if end >= program.call_start[call] else -1
    return returns


def play(members: Sequence[Playing]) -> list[NewTimes]:
    """New start and end of every activity in ns, by member."""
    return next(play_all([members]))


def play_all(variants: Iterable[Sequence[Playing]], *, whole: bool = True) -> Iterator[list[NewTimes]]:
    """Yield the new times of each variant of a cycle; variants with the same graph are evaluated together.

    Variants are taken as they are needed, so that they may be made one by one. If not `whole`, times are known only of
    activities that `StepWindows` look at.
    """
    batch: list[Sequence[Playing]] = []
    held = 0
    for members in variants:
        batch.append(members)
        held += sum(len(member.program) for member in members)
        if held > _MOST_HELD:
            yield from _played(batch, whole=whole)
            batch, held = [], 0
    yield from _played(batch, whole=whole)


def _played(batch: Sequence[Sequence[Playing]], *, whole: bool) -> list[list[NewTimes]]:
    """New times of each variant in the batch."""
    alike: dict[tuple[int, bytes], tuple[Graph, Flags, list[int]]] = {}
    for number, members in enumerate(batch):
        graph, edges = _fitting(members)
        alike.setdefault((id(graph), edges.tobytes()), (graph, edges, []))[2].append(number)
    played: dict[int, list[NewTimes]] = {}
    for graph, edges, numbers in alike.values():
        played |= zip(numbers, graph.play([batch[number] for number in numbers], edges, whole=whole), strict=True)
    return [played[number] for number in range(len(batch))]


def _fitting(members: Sequence[Playing]) -> tuple[Graph, Flags]:
    """A graph that holds these members, one of the last if it does, and which of its edges are theirs.

    Most changes of a run leave its work, and take some edges away: then it needs not be laid out again.
    """
    graphs: deque[Graph] = members[0].program.recent.graphs
    for graph in graphs:
        edges = graph.edges_of(members)
        if edges is not None:
            return graph, edges
    graph = graph_of(members)
    graphs.appendleft(graph)
    while len(graphs) > 1 and sum(len(each.start) for each in graphs) > _MOST_KEPT:
        graphs.pop()
    return graph, np.ones(len(graph.edges), dtype=bool)
