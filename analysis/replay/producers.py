"""What made the input of each collective: NCCL's stream waits for the stream from which a collective is called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .edges import Edges, ready
from .engine import Playing
from .programs import NONE, RankProgram


def producers(program: RankProgram) -> dict[int, int]:
    """Collective -> what its thread launched before it, of all collectives of a stream and name that began after it."""
    launched = np.flatnonzero(program.launch != NONE)
    launched = launched[np.argsort(program.launch[launched], kind="stable")]
    by_name: dict[tuple[int, int], dict[int, int]] = {}
    last: dict[int, int] = {}
    for node in launched.tolist():
        thread = int(program.call_thread[program.launch[node]])
        if not program.is_comm[node]:
            last[thread] = node
        elif thread in last and program.lane[last[thread]] != program.lane[node]:
            by_name.setdefault((int(program.lane[node]), int(program.name[node])), {})[node] = last[thread]
    return {
        node: source
        for alike in by_name.values()
        if all(program.end[source] <= program.start[node] for node, source in alike.items())
        for node, source in alike.items()
    }


def with_producers(member: Playing) -> Playing:
    """The same, where collectives wait for what was launched before them by the same thread, if none contradicts it.

    If the CPU waits for the device before that, a trace does not show it, but it holds as well if the CPU goes on.
    """
    program = member.program
    source_of = producers(program)
    if not source_of:
        return member
    before, launched = ready(program)
    joins = {node: list(sources) for node, sources in member.edges.joins.items()}
    delay = member.delay.copy()
    for node, source in source_of.items():
        known = max(int(before[node]), int(launched[node]), *(int(program.end[each]) for each in joins.get(node, [])))
        ended = int(program.end[source])
        if ended > known:
            delay[node] = min(int(delay[node]), max(int(program.start[node]) - ended, 0))
        joins[node] = sorted({*joins.get(node, ()), source})
    return replace(member, edges=Edges(joins, member.edges.blocks), delay=delay)
