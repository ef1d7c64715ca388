"""Trainings of many kinds, one after another on the ranks of torchrun, each of them watched: `kinds.py FOLDER`.

They are small, and written as in the tutorials of torch, or as in the script whose name they have. `run` starts a
process for a script; here one pair of processes is watched anew for each.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo import config as dynamo
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from commtrace.profiling.base.schedule import Schedule
from commtrace.profiling.script.config import RunConfig, Target
from commtrace.profiling.script.watch.observer import Observer

STEPS = 6
INPUTS, TARGETS = torch.ones(8, 16), torch.zeros(8, 4)


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def loss_of(model: nn.Module) -> torch.Tensor:
    return nn.functional.mse_loss(model(INPUTS), TARGETS)


def nanogpt() -> None:
    """Four micro-batches, of which the last one synchronises gradients; a scaler, clipping, and an evaluation."""
    model = DistributedDataParallel(perceptron())
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for step in range(STEPS):
        if step == 1:
            model.eval()
            with torch.no_grad():
                loss_of(model)
            model.train()
        for micro in range(4):
            model.require_backward_grad_sync = micro == 3
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model) / 4
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


def fsdp2() -> None:
    model = perceptron()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def tensor_parallel() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(perceptron(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        schedule.step()


def pipelining() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = perceptron()[:2] if rank == 0 else perceptron()[2:]
    stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.Adam(part.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        schedule.step(INPUTS) if rank == 0 else schedule.step(target=TARGETS)
        optimizer.step()


def compiled() -> None:
    """Loss and optimizer, but no generated code, which takes a minute. Two times the optimizer is compiled anew."""
    model = DistributedDataParallel(perceptron())
    optimizer = torch.optim.Adam(model.parameters())
    compiled_loss = torch.compile(lambda: loss_of(model), backend="aot_eager")
    compiled_step = torch.compile(lambda: optimizer.step(), backend="aot_eager")
    with dynamo.patch(recompile_limit=3, fail_on_recompile_limit_hit=True):
        for _ in range(STEPS):
            compiled_loss().backward()
            compiled_step()
            optimizer.zero_grad()


def zero() -> None:
    model = DistributedDataParallel(perceptron())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    for _ in range(STEPS):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def gan() -> None:
    """Two steps of the discriminator for each of the generator."""
    generator, discriminator = DistributedDataParallel(nn.Linear(16, 16)), DistributedDataParallel(nn.Linear(16, 1))
    of_generator, of_discriminator = (torch.optim.Adam(each.parameters()) for each in (generator, discriminator))
    for _ in range(STEPS):
        for _ in range(2):
            of_discriminator.zero_grad()
            (discriminator(INPUTS).mean() - discriminator(generator(INPUTS).detach()).mean()).backward()
            of_discriminator.step()
        of_generator.zero_grad()
        discriminator(generator(INPUTS)).mean().backward()
        of_generator.step()


def lbfgs() -> None:
    model = DistributedDataParallel(perceptron())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


KINDS: tuple[Callable[[], None], ...] = (
    nanogpt, fsdp2, tensor_parallel, pipelining, compiled, zero, gan, lbfgs,
)  # fmt: skip


def main() -> None:
    dist.init_process_group("gloo")
    for kind in KINDS:
        config = RunConfig(Target(kind.__name__), Path(sys.argv[1]), Schedule(1, 1, 2), run_name=kind.__name__)
        observer = Observer(config, sys.argv)
        observer.attach()
        kind()
        dist.barrier()
        observer.finish(None)
    dist.destroy_process_group()


main()
