"""Find what made the input of each collective: NCCL's stream waits for the stream of the calling code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .edges import Edges, ready
from .engine import Playing
from .programs import NONE, RankProgram


def producers(program: RankProgram) -> dict[int, int]:
    """For each collective, the last activity that its thread launched before it on another stream.

    Kept for streams and names whose collectives all began after that activity had ended.
    """
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
    """Let collectives wait for what their thread launched before them, unless the trace contradicts it.

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
