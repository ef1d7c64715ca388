"""A job of three ranks that hangs for real, with gloo: `gloo_hang.py FAULT FOLDER`; its dumps go to the folder.

Rank 1 sleeps, exits, or calls another collective or another shape; the others wait for it until they have been dumped.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch._inductor.codecache  # torch imports it for the first stack: that takes seconds, here before the ranks fork
import torch.distributed as dist

from commtrace.profiling.base.flight_recorder import record_calls
from commtrace.profiling.sessions.flight_recorder import FlightRecorder

RANKS = 3
STILL_S = 1.0
LONGEST_S = 6.0


def main(fault: str, folder: Path, rank: int) -> None:
    """One rank."""
    record_calls()
    dist.init_process_group("gloo", init_method=f"file://{folder.parent / 'store'}", rank=rank, world_size=RANKS,
                            timeout=timedelta(seconds=60))  # fmt: skip
    recorder = FlightRecorder(folder, rank, STILL_S)
    recorder.start()
    threading.Timer(LONGEST_S, os._exit, (0,)).start()
    for _ in range(3):
        train_step(torch.ones(8))
    if rank == 1 and fault != "none":
        misbehave(fault, recorder)
        os._exit(0)
    if fault == "shape":
        time.sleep(3 * STILL_S)  # gloo ends a rank that gets more than it wants: first it has to be dumped
    try:
        train_step(torch.ones(8))
        if fault != "none":
            time.sleep(LONGEST_S)  # where its peers are wrong, gloo may let it go on
        recorder.stop(failed=False)
    except RuntimeError:
        recorder.stop(failed=True)
    os._exit(0)


def train_step(gradient: torch.Tensor) -> None:
    """What all ranks do."""
    dist.all_reduce(gradient)


def misbehave(fault: str, recorder: FlightRecorder) -> None:
    """What rank 1 does instead."""
    if fault == "exit":
        recorder.stop(failed=False)
        time.sleep(3 * STILL_S)  # until the others have been dumped, as they would be by a job that goes on for long
        os._exit(0)
    elif fault == "sleep":
        time.sleep(LONGEST_S)
    elif fault == "collective":
        dist.broadcast(torch.ones(8), 0)
    elif fault == "shape":
        dist.all_reduce(torch.ones(5))
    time.sleep(LONGEST_S)


if __name__ == "__main__":
    for one in range(1, RANKS):
        if os.fork() == 0:
            main(sys.argv[1], Path(sys.argv[2]), one)
    main(sys.argv[1], Path(sys.argv[2]), 0)
