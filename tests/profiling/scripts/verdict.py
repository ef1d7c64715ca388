"""A gloo training whose capture is analysed where it ends: `verdict.py OUT KEEP [DIES_AT_STEP RANK [SIGNAL]]`."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from commtrace import capture

STEPS = 9


def main(out: str, keep: str, dies_at: int = -1, dying: int = -1, signum: int = 9) -> None:
    dist.init_process_group("gloo")
    rank, weights = dist.get_rank(), torch.ones(50_000)
    with capture(Path(out, "run"), wait=1, active=3, keep=keep, analyse=True, analyse_max_seconds=20) as session:
        for step in range(STEPS):
            if rank == dying and step == dies_at:
                os.kill(os.getpid(), signum)
            for part in range(3):
                dist.all_reduce(weights[: 1000 * (3 * step + part + 1)])
            torch.ones(200, 200) @ torch.ones(200, 200)
            session.step()
        dist.destroy_process_group()  # and with it, where rank 0 has that, all of the store but what is held
    print(f"rank {rank} ends")


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
