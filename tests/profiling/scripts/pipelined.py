"""A pipeline over gloo, by torch's own schedules, one stage of which has 1.7 times the layers of the others.

Usage: torchrun pipelined.py FOLDER SCHEDULE. Each rank writes a trace. A layer only sleeps, so that it takes as long as
it says on a machine that is shared; stages therefore take what they have of layers.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.profiler import ProfilerActivity, profile, schedule

MICROBATCHES, STEPS, WIDTH = 8, 5, 64
LAYERS, MORE, LAYER_S = 10, 17, 0.001
CHUNKS = {"Schedule1F1B": 1, "ScheduleGPipe": 1, "ScheduleInterleaved1F1B": 2}


class Sleep(torch.autograd.Function):
    """A layer that takes so long forward, and twice that backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(LAYER_S)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        time.sleep(2 * LAYER_S)
        return gradient.clone()


class Stage(nn.Module):
    """Layers, and a weight, so that there is something to learn."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.weight
        for _ in range(self.layers):
            x = Sleep.apply(x)
        return x


def heavy_stage(stages: int) -> int:
    """The one in the middle."""
    return stages // 2


def main(folder: Path, name: str) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    count = world * CHUNKS[name]
    device = torch.device("cpu")
    shape = torch.empty(4, WIDTH)
    stages = [
        pipelining.PipelineStage(
            Stage(MORE if number == heavy_stage(count) else LAYERS), number, count, device,
            input_args=shape.clone().requires_grad_(number > 0), output_args=shape.clone().requires_grad_(),
        )
        for number in range(rank, count, world)
    ]  # fmt: skip
    of_rank: Any = stages if CHUNKS[name] > 1 else stages[0]
    pipeline = getattr(pipelining, name)(of_rank, MICROBATCHES, loss_fn=lambda out, of: (out - of).square().mean())
    plan = schedule(wait=0, warmup=1, active=STEPS - 1, repeat=1)
    x = torch.randn(4 * MICROBATCHES, WIDTH)

    def written(profiler: profile) -> None:
        profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))

    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True, on_trace_ready=written) as prof:
        for _ in range(STEPS):
            given = (x,) if rank == 0 else ()
            told = {"target": x, "losses": []} if rank == world - 1 else {}
            pipeline.step(*given, **told)
            prof.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
