"""A mixture of experts over gloo ranks, as people write it: tokens are routed with drawn weights, rank 1 gets most.

Usage: torchrun routed_experts.py FOLDER. Each rank writes a trace, and what it knows: rows and seconds of its experts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

LAYERS, STEPS, TOKENS, WIDTH = 2, 4, 384, 128
HOT, FACTOR = 1, 4.0

took: dict[str, float] = {}
left_at = 0.0
now = (0, 0)


class Exchange(torch.autograd.Function):
    """Rows to each rank and from each; gradients go back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: list[int], got: list[int], layer: int, is_first: bool) -> Any:
        ctx.of = sent, got, layer, is_first
        return exchanged(rows, sent, got, layer, is_first)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        sent, got, layer, is_first = ctx.of
        return exchanged(gradient, got, sent, layer, not is_first), None, None, None, None


def exchanged(rows: torch.Tensor, sent: list[int], got: list[int], layer: int, is_first: bool) -> torch.Tensor:
    """The rows that this rank gets; the time between the first and the second exchange of a pass is noted."""
    global left_at
    if not is_first:
        key = f"{now[0]} {layer}"
        took[key] = took.get(key, 0.0) + time.perf_counter() - left_at
    out = rows.new_empty((sum(got), rows.shape[1]))
    dist.all_to_all_single(out, rows.contiguous(), got, sent)
    left_at = time.perf_counter()
    return out


class Layer(nn.Module):
    """A mixer, and one expert on each rank."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.mixer = nn.Linear(WIDTH, WIDTH)
        self.expert = nn.Sequential(nn.Linear(WIDTH, 16 * WIDTH), nn.ReLU(), nn.Linear(16 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, weights: torch.Tensor, known: list[Any]) -> torch.Tensor:
        x = x + torch.relu(self.mixer(x))
        sent = torch.multinomial(weights, len(x), replacement=True).bincount(minlength=len(weights))
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        known.append([now[0], self.number, sent.tolist(), got.tolist()])
        there = Exchange.apply(x, sent.tolist(), got.tolist(), self.number, True)
        return x + Exchange.apply(self.expert(there), got.tolist(), sent.tolist(), self.number, False)


def main(folder: Path) -> None:
    global now
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    layers = nn.ModuleList(Layer(number) for number in range(LAYERS))
    weights = torch.ones(world)
    weights[HOT] = FACTOR
    known: list[Any] = []
    plan = schedule(wait=0, warmup=1, active=STEPS - 1, repeat=1)

    def written(profiler: profile) -> None:
        profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))

    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True, on_trace_ready=written
    ) as profiler:
        for step in range(STEPS):
            now = (step, 0)
            x = torch.randn(TOKENS, WIDTH)
            for layer in layers:
                x = layer(x, weights, known)
            x.square().mean().backward()
            profiler.step()
    (folder / f"known_{rank}.txt").write_text(json.dumps({"rows": known, "took_s": took}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
