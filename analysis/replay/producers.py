"""What made the input of each collective: NCCL's stream waits for the stream from which a collective is called."""

from __future__ import annotations

import numpy as np

from .programs import NONE, RankProgram


def producers(program: RankProgram) -> dict[int, int]:
    """Collective -> what its thread launched before it, of all collectives of a stream and name that began after it."""
    launched = np.flatnonzero(program.launch != NONE)
    launched = launched[np.argsort(program.launch[launched], kind="stable")]
    found: dict[tuple[int, int], dict[int, int]] = {}
    last: dict[int, int] = {}
    for node in launched.tolist():
        thread = int(program.call_thread[program.launch[node]])
        if not program.is_comm[node]:
            last[thread] = node
        elif thread in last and program.lane[last[thread]] != program.lane[node]:
            found.setdefault((int(program.lane[node]), int(program.name[node])), {})[node] = last[thread]
    return {
        node: source
        for alike in found.values()
        if all(program.end[source] <= program.start[node] for node, source in alike.items())
        for node, source in alike.items()
    }
