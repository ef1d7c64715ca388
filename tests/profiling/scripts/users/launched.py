"""Trains under DDP as a rank of whatever has started it: of Slurm, MPI, DeepSpeed or torchrun."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

NAMES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def main() -> None:
    rank, size = next((int(os.environ[rank]), int(os.environ[size])) for rank, size in NAMES if rank in os.environ)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(14):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    dist.barrier()
    time.sleep(0.2)  # gloo's thread has to let go of it
    dist.destroy_process_group()
    print(f"rank {rank} of {size} ends with {sys.argv[1:]}\n", end="")  # in one piece


main()
