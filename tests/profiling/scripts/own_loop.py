"""A training loop of a user's own under torchrun: `own_loop.py RUN_DIR {finish,raise,kill}`."""

import gc
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commtrace import capture

TROUBLE_STEP = 3


def main(run_dir: str, ending: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    with capture(run_dir, wait=1, warmup=1, active=3, model=model, batch_size=4, config={"ending": ending}) as session:
        for step in range(6):
            if step == TROUBLE_STEP and rank == 1 and ending == "raise":
                raise ValueError("bad luck\nin two lines")
            if step == TROUBLE_STEP and rank == 1 and ending == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.ones(4, 8)).sum().backward()
            session.step()
        del model
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
