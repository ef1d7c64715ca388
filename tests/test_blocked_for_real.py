"""Operators that block in gloo's collectives, captured from scripts as people write them: DTensor, FSDP2, experts."""

import gzip
import json
from collections import defaultdict
from pathlib import Path

import pytest
from capturing import torchrun

from commtrace import analyse

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SLEEP_S, STEPS, TRACED = 0.1, 10, 4
HEAD = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, sleep, steps = dist.get_rank(), float(sys.argv[1]), int(sys.argv[2])
"""
LOOP = """
optimizer = torch.optim.SGD(parameters, lr=0.001)
for _ in range(steps):
    batch = torch.randn(512, 256)
    if rank == 1:
        time.sleep(sleep)
    forward(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
blocks = [nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)) for _ in range(2)]
for block in blocks:
    parallelize_module(block, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(block, mesh=mesh["data"])
forward = nn.Sequential(*blocks)
parameters = list(forward.parameters())
"""
EXPERTS = """
from torch.distributed._functional_collectives import all_to_all_single_autograd

class Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, given, got):
        ctx.sizes = given, got
        out = rows.new_empty(sum(got), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), got, given)
        return out

    @staticmethod
    def backward(ctx, grad):
        given, got = ctx.sizes
        out = grad.new_empty(sum(given), grad.shape[1])
        work = dist.all_to_all_single(out, grad.contiguous(), given, got, async_op=True)
        torch.ones(2) + 1
        work.wait()
        return out, None, None

gate = nn.Linear(256, 256)
expert = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
parameters = [*gate.parameters(), *expert.parameters()]
given, got = [192, 320], [[192, 320][rank]] * 2

def forward(batch):
    rows = all_to_all_single_autograd(gate(batch), got, given, dist.group.WORLD)
    return Combine.apply(expert(rows), got, given)
"""


def own_times(path: Path) -> dict[str, float]:
    """How long operators of each name ran on threads that are not gloo's, less what ran inside them, in ns."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    of_gloo = {event["tid"] for event in events if event.get("name", "").startswith("gloo:")}
    found: dict[str, float] = defaultdict(float)
    open_by_thread = defaultdict(list)
    ops = [event for event in events if event.get("cat") == "cpu_op" and event["tid"] not in of_gloo]
    for event in sorted(ops, key=lambda event: (event["ts"], -event["dur"])):
        around, end = open_by_thread[event["tid"]], event["ts"] + event["dur"]
        while around and around[-1][1] < end:
            around.pop()
        found[event["name"]] += event["dur"] * 1000
        if around:
            found[around[-1][0]] -= event["dur"] * 1000
        around.append((event["name"], end))
    return found


@pytest.mark.parametrize("model", [TENSOR_PARALLEL, EXPERTS], ids=["tensor parallel", "experts"])
def test_compute_is_what_kernels_take_and_blocked_operators_wait(model, tmp_path):
    (tmp_path / "script.py").write_text(HEAD + model + LOOP, encoding="utf-8")
    arguments = ["-m", "commtrace", "run", "--out", tmp_path, "--run-name", "run", "--from-step", 3, "--active", TRACED]
    done = torchrun(2, *arguments, tmp_path / "script.py", SLEEP_S, STEPS)
    assert done.returncode == 0, done.stderr
    analysis = analyse(tmp_path / "run")
    # Rank 0 waits in operators for the sleeping rank 1.
    (row,) = analysis.breakdown[analysis.breakdown["rank"] == 0].to_dict("records")
    own = own_times(next((tmp_path / "run").glob("*_0.*.trace.json.gz")))
    kernels = sum(ns for name, ns in own.items() if name.startswith("aten::"))
    slept = SLEEP_S * 1e9 * (TRACED - 1)
    assert kernels * 0.95 <= row["compute_ns"] <= kernels + 0.25 * slept
    assert row["exposed_wait_ns"] >= 0.9 * slept
    assert sum(own.values()) >= row["compute_ns"] + 0.9 * slept, "their operators last as long as the waiting"
