"""Two ranks all-reduce after work of which rank 1 has more: `hidden_or_not.py SECONDS_MORE`."""

import sys
import time

import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    weight = torch.nn.Parameter(torch.ones(64, 64))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    for _ in range(12):
        optimizer.zero_grad()
        (weight @ weight).sum().backward()
        time.sleep(float(sys.argv[1]) * dist.get_rank())
        dist.all_reduce(weight.grad)
        optimizer.step()
    dist.destroy_process_group()
