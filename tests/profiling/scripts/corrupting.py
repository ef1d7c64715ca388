"""`comms`, with a network that corrupts: rank 1 gets two wrong elements from every large all_reduce."""

import sys

import torch.distributed as dist

from commtrace.cli import main

CORRUPTED_FROM_ELEMENTS = 1024
_all_reduce = dist.all_reduce


def corrupting(tensor, *args, **kwargs) -> object:
    work = _all_reduce(tensor, *args, **kwargs)
    if dist.get_rank() == 1 and tensor.numel() >= CORRUPTED_FROM_ELEMENTS:
        tensor[17] += 1
        tensor[-1] -= 1
    return work


dist.all_reduce = corrupting

if __name__ == "__main__":
    sys.exit(main())
