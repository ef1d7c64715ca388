"""Trains in processes that torch.multiprocessing starts, until one of them fails: `spawning.py PORT`."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

# What this import of the script found: in a child, it is another one.
SEEN = sorted(name for name in sys.modules if name.partition(".")[0] == "profiling")


class Net(torch.nn.Sequential):
    pass


def train(rank: int, port: str) -> None:
    print(f"rank {rank} begins{SEEN or ''}\n", end="", flush=True)  # in one piece
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = DistributedDataParallel(Net(torch.nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        if rank == 1 and step == 8:
            raise ValueError("bad luck in a child")
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    mp.spawn(train, args=(sys.argv[1],), nprocs=2)
