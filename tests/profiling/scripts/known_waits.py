"""Gloo trainings whose ranks wait for each other for known reasons: `known_waits.py OUT JOB`, with a name of JOBS.

Each rank writes `OUT/truth-RANK.json`: for each traced step, by clocks of its own, how long it took, and how long its
thread was on a CPU, was ready for one, and slept because it was planted.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from commtrace import capture

ACTIVE, WIDTH, PLANTED_S = 5, 256, 0.06
Step = Callable[[], object]
slept_ns = 0


def sleep() -> None:
    global slept_ns
    since = time.perf_counter_ns()
    time.sleep(PLANTED_S)
    slept_ns += time.perf_counter_ns() - since


def collect() -> None:
    """Make cycles and collect them."""
    until = time.thread_time() + PLANTED_S
    while time.thread_time() < until:
        for _ in range(20_000):
            own: list[object] = []
            own.append(own)
        gc.collect()


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def training(model: Callable[[torch.Tensor], torch.Tensor], parameters: Iterator[nn.Parameter], rows: int) -> Step:
    optimizer = torch.optim.SGD(parameters, 1e-3)

    def step() -> None:
        model(torch.randn(rows, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def late(step: Step, plant: Step = sleep) -> Step:
    """The step, before which rank 1 does something else."""

    def planted() -> None:
        if dist.get_rank() == 1:
            plant()
        step()

    return planted


def mesh() -> Step:
    """Tensor parallel within pairs of ranks, sharded over the pairs; of two ranks, a block of each."""
    world = dist.get_world_size()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    blocks = [block(), block()]
    if world == 2:
        whole = init_device_mesh("cpu", (2,))
        parallelize_module(blocks[0], whole, plan)
        fully_shard(blocks[1], mesh=whole)
    else:
        both = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
        for one in blocks:
            parallelize_module(one, both["tensor"], plan)
            fully_shard(one, mesh=both["data"])
    model = nn.Sequential(*blocks)
    return late(training(model, model.parameters(), 512))


class Exchange(torch.autograd.Function):
    """Rows from and to experts: as one waits for it, and as one has something to do meanwhile."""

    @staticmethod
    def forward(ctx, rows, given, got):  # type: ignore[no-untyped-def]
        ctx.sizes = given, got
        out = rows.new_empty(sum(got), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), got, given)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        given, got = ctx.sizes
        out = grad.new_empty(sum(given), grad.shape[1])
        work = dist.all_to_all_single(out, grad.contiguous(), given, got, async_op=True)
        torch.ones(2) + 1
        work.wait()
        return out, None, None


def experts() -> Step:
    """Most rows are for the expert of rank 1."""
    gate, expert = nn.Linear(WIDTH, WIDTH), block()
    given = [128, 896]
    got = [given[dist.get_rank()]] * 2

    def model(batch: torch.Tensor) -> torch.Tensor:
        rows = all_to_all_single_autograd(gate(batch), got, given, dist.group.WORLD)
        result: torch.Tensor = Exchange.apply(expert(rows), got, given)
        return result

    return training(model, iter([*gate.parameters(), *expert.parameters()]), 1024)


def pipeline() -> Step:
    """1F1B whose last stage has six times as much to do."""
    rank, world, micro = dist.get_rank(), dist.get_world_size(), 6
    model = nn.Sequential(*[block() for _ in range(6 if rank == world - 1 else 1)])
    stage = PipelineStage(model, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, micro, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    batch = torch.randn(96 * micro, WIDTH)

    def step() -> None:
        schedule.step(*[batch][rank:], target=batch if rank == world - 1 else None)
        optimizer.step()
        optimizer.zero_grad()

    return step


def broadcast() -> Step:
    """Rank 0 sends parameters before anybody is there to take them."""
    model, weights = block(), torch.zeros(1_000_000)
    step = training(model, model.parameters(), 1024)

    def then_broadcast() -> None:
        step()
        if dist.get_rank() == 1:
            sleep()
        dist.broadcast(weights, 0)

    return then_broadcast


def replicas() -> nn.Module:
    return nn.parallel.DistributedDataParallel(nn.Sequential(*[block() for _ in range(4)]))


def delayed(plant: Step) -> Step:
    model = replicas()
    return late(training(model, model.parameters(), 384), plant)


class Slow(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            if dist.get_rank() == 1:
                sleep()
            yield torch.ones(384, WIDTH)


def loader() -> Step:
    model = replicas()
    batches = iter(torch.utils.data.DataLoader(Slow(), batch_size=None))
    return training(lambda _: model(next(batches)), model.parameters(), 1)


JOBS: dict[str, Callable[[], Step]] = {
    "mesh": mesh,
    "experts": experts,
    "pipeline": pipeline,
    "broadcast": broadcast,
    "garbage": lambda: delayed(collect),
    "sleep": lambda: delayed(sleep),
    "loader": loader,
}


def clocks() -> dict[str, int]:
    ready_ns = int(Path("/proc/thread-self/schedstat").read_text(encoding="utf-8").split()[1])
    return {
        "took_ns": time.perf_counter_ns(),
        "cpu_ns": time.thread_time_ns(),
        "ready_ns": ready_ns,
        "slept_ns": slept_ns,
    }


def main(out: Path, job: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    gc.disable()
    gc.freeze()
    step = JOBS[job]()
    marks = []
    with capture(out / "run", wait=2, warmup=1, active=ACTIVE) as session:
        for _ in range(3 + ACTIVE):
            marks.append(clocks())
            step()
            session.step()
    steps = [{key: end[key] - begin[key] for key in end} for begin, end in pairwise(marks[3:])]
    (out / f"truth-{dist.get_rank()}.json").write_text(json.dumps(steps), encoding="utf-8")
    dist.barrier()
    time.sleep(0.1)  # gloo may crash where a process ends right after a collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
