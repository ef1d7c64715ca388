"""Loops that are longer than a step, of the kind that the argument names: a rollout, a sync or an evaluation every 4.

Rank 1 generates three times as much as rank 0.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

KIND, STEPS, PERIOD = sys.argv[1], 40, 4


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)])
    trained = model if KIND == "sync" else nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def generate(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                model(torch.randn(64, 128))

    for step in range(STEPS):
        if KIND == "rollout" and step % PERIOD == 0:
            generate(900 if dist.get_rank() == 1 else 300)
        optimizer.zero_grad()
        trained(torch.randn(32, 128)).square().mean().backward()
        optimizer.step()
        if step % PERIOD != PERIOD - 1:
            continue
        if KIND == "sync":
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
        if KIND == "evaluation":
            model.eval()
            generate(300)
            model.train()
    dist.destroy_process_group()


main()
