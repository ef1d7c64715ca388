"""Two ranks, of which the script starts the second one itself, as a plain process: `own_launcher.py PORT`."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    rank = int(os.environ.get("OWN_RANK", "0"))
    other = None
    if rank == 0:
        other = subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], env=os.environ | {"OWN_RANK": "1"})
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(14):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
    if other is not None:
        print(f"the other one ended with {other.wait()}")


main()
