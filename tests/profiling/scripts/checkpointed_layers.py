"""Layers with regions on a CPU, traced with their allocations; with `checkpointed`, they compute activations again.

Usage: checkpointed_layers.py FOLDER plain|checkpointed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.checkpoint import checkpoint

WIDTH, LAYERS, ROWS, STEPS = 128, 6, 512, 3


class Layer(nn.Module):
    """As the feed-forward part of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def main(folder: Path, how: str) -> None:
    torch.set_num_threads(1)
    layers, head = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, 8)
    optimizer = torch.optim.SGD([*layers.parameters(), *head.parameters()], lr=0.01)
    plan = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        record_shapes=True,
        profile_memory=True,
        on_trace_ready=lambda done: done.export_chrome_trace(str(folder / "rank0.json")),
    ) as profiler:
        for _ in range(1 + STEPS):
            x = torch.randn(ROWS, WIDTH)
            for number, layer in enumerate(layers):
                with record_function(f"layers.{number}"):
                    x = checkpoint(layer, x, use_reentrant=False) if how == "checkpointed" else layer(x)
            head(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
