"""The modes that gloo runs, on the same batches as one process: each rank prints by how much it differs, relatively.

Arguments: ddp, fsdp, and schedules of pipelines.
"""

import copy
import gc
import sys
import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from commtrace.profiling.base.schedule import Schedule
from commtrace.profiling.modes import MODES
from commtrace.profiling.modes.stages import Pipeline
from commtrace.profiling.train.config import TrainConfig
from commtrace.profiling.train.learning.scoring import ScoredLoss
from commtrace.profiling.train.learning.trainee import Trainee, train_step
from commtrace.profiling.workloads.models import MODELS

CPU = torch.device("cpu")
STEPS, BATCH, MICROBATCHES = 2, 6, 2
# Small: with a large one two steps of training magnify the order of sums beyond recognition.
LR = 1e-3


def batches():
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield torch.randn(BATCH, 3, 32, 32, generator=generator), torch.randint(10, (BATCH,), generator=generator)


def seeded():
    torch.manual_seed(0)
    return MODELS["resnet18"]()


def trained(model, config):
    """What `train` does, all ranks on the same batches; the losses of this rank."""
    wrapped = MODES[config.parallel].build(model, CPU, config)
    optimizer = torch.optim.SGD(wrapped.parameters(), LR, 0.9)
    trainee = Trainee(config.mode, wrapped, ScoredLoss(), optimizer, CPU)
    losses = [train_step(trainee, batch) for batch in batches()]
    return wrapped, losses


def accumulated():
    """One process that adds up the gradients of microbatches, as a pipeline does."""
    model = seeded()
    optimizer = torch.optim.SGD(model.parameters(), LR, 0.9)
    for images, labels in batches():
        optimizer.zero_grad()
        for part, wanted in zip(images.chunk(MICROBATCHES), labels.chunk(MICROBATCHES), strict=True):
            (torch.nn.functional.cross_entropy(model(part), wanted) / MICROBATCHES).backward()
        optimizer.step()
    return model


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def apart(ours, theirs):
    pairs = [(whole(a).detach(), b.detach()) for a, b in zip(ours, theirs, strict=True)]
    assert pairs
    return max(float((a - b).abs().max() / b.abs().max().clamp(1e-3)) for a, b in pairs)


def report(name, value):
    # One write: the ranks share a standard output.
    sys.stdout.write(f"{name} {dist.get_rank()} {value:.3g}\n")
    sys.stdout.flush()


def main():
    dist.init_process_group("gloo")
    torch.use_deterministic_algorithms(True)
    config = TrainConfig(Schedule(2, 0, 1), 3, batch_size=BATCH)
    single, losses = trained(seeded(), replace(config, parallel="single"))
    for mode in (name for name in sys.argv[1:] if name in MODES):
        model, own_losses = trained(seeded(), replace(config, parallel=mode))
        report(mode, apart(model.parameters(), single.parameters()))
        report(f"{mode}-loss", apart(own_losses, losses))
        del model
    reference = accumulated()
    for schedule in (name for name in sys.argv[1:] if name not in MODES):
        pipelined = replace(config, parallel="pipeline", pipeline_schedule=schedule, microbatches=MICROBATCHES)
        model, own_losses = trained(seeded(), pipelined)
        twin = MODES["pipeline"].build(copy.deepcopy(reference), CPU, pipelined)
        assert isinstance(model, Pipeline)
        report(schedule, apart(model.parameters(), twin.parameters()))
        statistics = [[b for b in m.buffers() if b.is_floating_point()] for m in (model, twin)]
        report(f"{schedule}-statistics", apart(*statistics))
        report(f"{schedule}-losses", sum(loss is not None for loss in own_losses))
        del model, twin
    gc.collect()
    dist.destroy_process_group()
    time.sleep(0.2)


if __name__ == "__main__":
    main()
