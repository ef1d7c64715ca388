"""Two ranks train a small network under DDP; rank 1 is slow in every step. For `commtrace run`."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()]
    model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(8 * 14 * 14, 256)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(6):
        time.sleep(0.02 * dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(8, 3, 16, 16)).square().mean().backward()
        optimizer.step()
    dist.barrier()
    time.sleep(0.2)  # gloo's thread has to let go of the group
    dist.destroy_process_group()


main()
