"""Ranks that train together over gloo; one keeps 64 MiB of each step, and another keeps as much of the first only."""

import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

KEPT = 64 << 20
LEAKS, FILLS_ONCE = 1, 0
STEPS = 4


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
    )
    optimizer = torch.optim.Adam(model.parameters())
    batches = torch.randn(STEPS + 2, 64, 256)
    kept = []
    plan = schedule(wait=1, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, profile_memory=True) as profiler:
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            with record_function("keep_history"):
                if rank == LEAKS or (rank == FILLS_ONCE and step == 2):
                    kept.append(torch.zeros(KEPT, dtype=torch.uint8))
            loss.backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(Path(sys.argv[1]) / f"host_{rank}.0000.pt.trace.json"))
    dist.barrier()
    dist.destroy_process_group()
    del model
    gc.collect()


if __name__ == "__main__":
    main()
