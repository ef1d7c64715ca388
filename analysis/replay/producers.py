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
    thread = program.call_thread[program.launch[launched]]
    by_thread = np.argsort(thread, kind="stable")  # of each thread, in the order of its launches
    launched, thread = launched[by_thread], thread[by_thread]
    is_comm = program.is_comm[launched]
    last = np.maximum.accumulate(np.where(is_comm, NONE, np.arange(len(launched))))
    known = is_comm & (last >= np.searchsorted(thread, thread))
    node, source = launched[known], launched[last[known]]
    apart = program.lane[source] != program.lane[node]
    node, source = node[apart], source[apart]
    _, alike = np.unique(np.stack((program.lane[node], program.name[node])), axis=1, return_inverse=True)
    alike = alike.ravel()  # NumPy 2.0 gives it another shape
    contradicted = np.bincount(alike, weights=program.end[source] > program.start[node]) > 0
    holds = ~contradicted[alike]
    return dict(zip(node[holds].tolist(), source[holds].tolist(), strict=True))


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
