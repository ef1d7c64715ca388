"""A training that leaks in every second step, beside a ring and a cache that become full; its steps marked or not."""

import sys
from collections import deque
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

STEPS, LEAKED, FULL, CACHED = 12, 1 << 22, 3, 4


def main(folder: Path, *, marked: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
    optimizer = torch.optim.Adam(model.parameters())
    leaked, ring, cached = [], deque(maxlen=FULL), []
    plan = schedule(wait=0, warmup=1, active=STEPS - 1, repeat=1) if marked else None
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, profile_memory=True) as profiler:
        for step in range(STEPS):
            optimizer.zero_grad()
            batch = torch.randn(64, 256)
            with record_function("leaks"):
                if step % 2:
                    leaked.append(torch.zeros(LEAKED, dtype=torch.uint8))
            with record_function("ring"):
                ring.append(torch.zeros(LEAKED, dtype=torch.uint8))
            with record_function("cache"):
                if step <= CACHED:
                    cached.append(torch.zeros(LEAKED, dtype=torch.uint8))
            model(batch).square().mean().backward()
            optimizer.step()
            if marked:
                profiler.step()
    profiler.export_chrome_trace(str(folder / "host_0.0000.pt.trace.json"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), marked=sys.argv[2] == "marked")
