"""Trains under DDP, as torchrun starts it: `ddp.py {finish,raise,killed}`; rank 1 is the one that fails."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(14):
        if step == 5 and rank == 1 and sys.argv[1] == "raise":
            raise ValueError("bad luck")
        if step == 12 and rank == 1 and sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    dist.barrier()
    time.sleep(0.2)  # gloo's thread has to let go of it: a group that goes while it does may hang, also without us
    dist.destroy_process_group()
    print(f"rank {rank} ends\n", end="")  # in one piece


main()
