"""A gloo training of two ranks, of which rank 1 does something else in each step: `causes.py OUT CAUSE MS`."""

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commtrace import capture

ACTIVE = 4


def sleep(ms: float) -> None:
    time.sleep(ms / 1e3)


def compute(ms: float) -> None:
    until = time.thread_time_ns() + ms * 1e6
    while time.thread_time_ns() < until:
        pass


def sync(ms: float) -> None:
    """Write a file and wait for the disk, until the time is over."""
    until = time.perf_counter_ns() + ms * 1e6
    with Path(sys.argv[1], "data").open("wb", buffering=0) as file:
        while time.perf_counter_ns() < until:
            file.write(bytes(1 << 12))
            os.fsync(file.fileno())


def collect(ms: float) -> None:
    """Make cycles, and collect them, until the collector has run that long."""
    spent_ns = 0
    while spent_ns < ms * 1e6:
        for _ in range(20_000):
            own: list[object] = []
            own.append(own)
        since = time.thread_time_ns()
        gc.collect()
        spent_ns += time.thread_time_ns() - since


def collate(batch: list[int]) -> torch.Tensor:
    return torch.ones(len(batch), 512)


CAUSES: dict[str, Callable[[float], None]] = {"sleep": sleep, "compute": compute, "sync": sync, "collect": collect}


PLANTED_NS: list[int] = []


def plant(cause: str, ms: float) -> None:
    since = time.perf_counter_ns()
    CAUSES[cause](ms)
    PLANTED_NS.append(time.perf_counter_ns() - since)


class Slow(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, ms: float) -> None:
        self.ms = ms

    def __len__(self) -> int:
        return 64

    def __getitems__(self, batch: list[int]) -> list[int]:
        if self.ms:
            plant("sleep", self.ms)
        return batch


def main(out: str, cause: str, ms: float) -> None:
    torch.set_num_threads(1)
    gc.disable()
    gc.freeze()  # what torch imports would take the collector longer than what it is to find
    dist.init_process_group("gloo")
    late = dist.get_rank() == 1
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    data = Slow(ms if late and cause == "loader" else 0.0)
    loader = torch.utils.data.DataLoader(data, batch_size=8, collate_fn=collate)
    with capture(Path(out, "run"), wait=2, warmup=1, active=ACTIVE) as session:
        for batch, _ in zip(loader, range(3 + ACTIVE), strict=False):
            if late and cause in CAUSES:
                plant(cause, ms)
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    if late:
        print(f"planted {sum(PLANTED_NS[3 : 3 + ACTIVE]) / ACTIVE / 1e6:.2f} ms")
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
