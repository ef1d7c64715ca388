"""Every kind of communication that gloo has, between two ranks, captured by the program: `collectives.py OUT`."""

import sys
import time

import torch
import torch.distributed as dist

from commtrace import capture


def step(rank: int) -> None:
    """Each kind once, with another size."""
    peer = 1 - rank
    parts = [torch.zeros(700) for _ in range(2)]
    dist.all_reduce(torch.ones(1000))
    dist.broadcast(torch.ones(1100), src=1)
    dist.reduce(torch.ones(1200), dst=0)
    dist.all_gather([torch.zeros(1300) for _ in range(2)], torch.ones(1300))
    dist.gather(torch.ones(700), parts if rank == 0 else None, dst=0)
    dist.scatter(torch.zeros(700), parts if rank == 0 else None, src=0)
    dist.all_to_all_single(torch.zeros(1400), torch.ones(1400))
    if rank == 0:
        dist.send(torch.ones(1500), peer)
        dist.recv(torch.zeros(1600), peer)
    else:
        dist.recv(torch.zeros(1500), peer)
        dist.send(torch.ones(1600), peer)
    dist.barrier()


def main() -> None:
    """Capture three steps after a first one."""
    dist.init_process_group("gloo")
    with capture(sys.argv[1], wait=0, warmup=1, active=3) as session:
        for _ in range(4):
            step(dist.get_rank())
            session.step()
    time.sleep(0.2)  # gloo's thread has to let go of the group
    dist.destroy_process_group()


main()
