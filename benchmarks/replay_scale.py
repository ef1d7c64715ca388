"""How long it takes to prepare and play a large run: `python benchmarks/replay_scale.py [RANKS STEPS KERNELS]`.

Each rank runs so many kernels in each step, with 20 all_reduces on a stream of their own, as arrays: without reading.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commtrace.analysis.replay.critical import _chain
from commtrace.analysis.replay.engine import play, prepared
from commtrace.analysis.replay.programs import NONE, RankProgram

COLLECTIVES = 20
KERNEL_NS, AHEAD_NS = 1200, 1_000_000


def program(rank: int, steps: int, kernels: int, rng: np.random.Generator) -> RankProgram:
    """The program of one rank: kernels that follow each other, every so often an all_reduce beside them."""
    count, each = steps * kernels, kernels // COLLECTIVES
    start = np.arange(count) * KERNEL_NS
    called = start[each - 1 :: each] + KERNEL_NS
    starts = np.concatenate([start, called])
    ends = np.concatenate([start + rng.integers(900, 1100, count), called + 1000])
    lane = np.repeat([0, 1], [count, len(called)])
    launched = np.sort(starts) - AHEAD_NS
    return RankProgram(
        rank=rank,
        row=np.arange(len(starts)),
        lane=lane,
        device=np.full(len(starts), "0", dtype=object),
        name=lane,
        start=starts,
        end=ends,
        step=np.concatenate([np.arange(count) // kernels, np.arange(len(called)) // COLLECTIVES]),
        is_comm=lane == 1,
        collective=np.concatenate([np.full(count, NONE), np.arange(len(called))]),
        needs=np.full(len(starts), NONE),
        is_unsplit=np.zeros(len(starts), dtype=bool),
        overlaps=np.zeros(len(starts), dtype=bool),
        launch=np.argsort(np.argsort(starts, kind="stable")),
        call_start=launched,
        call_end=launched + 100,
        call_name=np.full(len(starts), "cudaLaunchKernel", dtype=object),
        call_thread=np.ones(len(starts), dtype=np.int64),
    )


def main(ranks: int = 64, steps: int = 10, kernels: int = 20_000) -> None:
    """Print seconds of CPU."""
    rng = np.random.default_rng(0)
    members = [program(rank, steps, kernels, rng) for rank in range(ranks)]
    begun = time.process_time()
    measured, _ = prepared(members)
    ready = time.process_time()
    play(measured)
    played = time.process_time()
    followed = list(_chain(measured))
    traced = time.process_time()
    print(
        f"{sum(map(len, members)):,} activities of {ranks} ranks: {ready - begun:.1f} s to prepare, "
        f"{played - ready:.1f} s to play, {traced - played:.1f} s for a critical path of {len(followed):,} links"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
