"""Trains under DDP, one rank busy for a while in each step: `straggler.py RANK MILLISECONDS [STEPS]`."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
_CYCLES_PER_MS = 1_500_000  # of a GPU at 1.5 GHz, about


def main() -> None:
    late, milliseconds = int(sys.argv[1]), float(sys.argv[2])
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else STEPS
    on_gpu = torch.cuda.is_available()
    rank = int(os.environ["RANK"])
    where = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(where)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    model = DistributedDataParallel(torch.nn.Linear(1024, 1024).to(where))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.ones(64, 1024, device=where)
    for _ in range(steps):
        if rank == late and on_gpu:
            torch.cuda._sleep(round(milliseconds * _CYCLES_PER_MS))
        elif rank == late:
            time.sleep(milliseconds / 1e3)
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        if steps > STEPS and on_gpu:
            torch.cuda.synchronize()  # as a training that prints its loss; else all steps are issued at once
    dist.barrier()
    if on_gpu:
        torch.cuda.synchronize()
    time.sleep(0.2)  # gloo's thread has to let go of the model
    dist.destroy_process_group()


main()
