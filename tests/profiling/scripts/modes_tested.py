"""What the modes that gloo runs say of a model on test images, and LARS on shards: each rank prints what it has."""

import sys
from dataclasses import replace
from pathlib import Path

import tiny_model
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from commtrace.profiling.base.schedule import Schedule
from commtrace.profiling.modes import MODES
from commtrace.profiling.ranks.process_group import joined
from commtrace.profiling.train.config import OptimizerConfig, TrainConfig
from commtrace.profiling.train.learning.optimizers import optimizer_of
from commtrace.profiling.train.learning.scoring import ScoredLoss, largest, tested, total
from commtrace.profiling.train.learning.trainee import Trainee, train_step
from commtrace.profiling.workloads.data import DataSpec
from commtrace.profiling.workloads.held_out import synthetic_test
from commtrace.profiling.workloads.models import MODELS

CPU = torch.device("cpu")
SAMPLES = 203  # on two ranks 102 and 101, and on each two batches


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 3, 32, 32, generator=generator), torch.randint(10, (8,), generator=generator)


def trained(config):
    torch.manual_seed(0)
    model = MODES[config.parallel].build(MODELS["resnet18"](), CPU, config)
    optimizer = optimizer_of(model.parameters(), config.optimizer)
    criterion = ScoredLoss()
    with criterion.counted(CPU) as counts:
        for _ in range(2):
            train_step(Trainee(config.mode, model, criterion, optimizer, CPU), batch())
    return model, total(counts)


def whole(parameters):
    return [p.full_tensor().detach() if isinstance(p, DTensor) else p.detach() for p in parameters]


def held_out(config):
    alone = config.parallel in ("single", "pipeline")
    rank, ranks = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
    return synthetic_test(DataSpec(8, 32, Path(), rank=rank, world_size=ranks, dataset_samples=5 * SAMPLES))


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")  # one write: the ranks share a standard output
    sys.stdout.flush()


def main():
    tiny_model.replace_resnet18()
    torch.use_deterministic_algorithms(True)
    config = TrainConfig(
        Schedule(2, 0, 1),
        3,
        batch_size=8,
        optimizer=OptimizerConfig(lr=20.0, name="lars"),
        pipeline_schedule="gpipe",
    )
    for mode in ("single", "ddp", "fsdp", "pipeline"):
        # Of one microbatch batch normalisation sees what it sees in one process.
        microbatches = 1 if mode == "pipeline" else None
        model, train = trained(replace(config, parallel=mode, microbatches=microbatches))
        if mode == "single":
            reference = whole(model.parameters())
            # Not `total`: each rank is alone.
            loss, correct, samples = tested(MODES[mode], model, held_out(replace(config, parallel=mode)), CPU).tolist()
            say(mode, dist.get_rank(), loss / samples, correct / samples, int(samples))
            continue
        if dist.get_rank() and mode != "pipeline":
            for buffer in model.buffers():
                buffer.add_(1)  # as if this rank had seen other images
        test = total(tested(MODES[mode], model, held_out(replace(config, parallel=mode)), CPU))
        say(mode, dist.get_rank(), test.loss, test.accuracy, test.samples)
        say(f"{mode}-trained", dist.get_rank(), train.loss, train.accuracy, train.samples)
        if mode != "pipeline":
            apart = max(float((a - b).abs().max()) for a, b in zip(whole(model.parameters()), reference, strict=True))
            say(f"{mode}-lars", dist.get_rank(), apart)
        assert model.training
    say("largest", dist.get_rank(), *largest([dist.get_rank(), 7, -dist.get_rank()], CPU))


if __name__ == "__main__":
    with joined("gloo", CPU):
        main()
