"""Train one device's share of a stack for a few steps, in its own process.

The parent's process id and a `Stage` as JSON are its arguments. On stdout it says, as JSON, whether the share fits.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from ...common.processes import calling
from ..machine import memory
from ..machine.tether import tie_to_parent

# Ranks wait for each other during set-up; initialising a stack of gigabytes takes a while.
_TIMEOUT = timedelta(minutes=30)
_LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Stage:
    """The work of one process. `receives` and `sends`: whether other devices hold layers before and after it.

    `pooled`: its input has passed the pool. `backend` is torch.distributed's. `rendezvous` is a file through which
    processes find each other; None for a single one, which allocates memory for messages all the same.
    """

    conv: int
    linear: int
    receives: bool
    sends: bool
    pooled: bool
    batch_size: int
    channels: int
    image_size: int
    device: str
    index: int
    backend: str
    memory_limit_bytes: int | None
    warmup: int
    iters: int
    rank: int = 0
    ranks: int = 1
    rendezvous: str | None = None


def run_stage(arguments: Sequence[str]) -> int:
    """Run the stage; return the exit code, 0 if it reports its result."""
    tie_to_parent(int(arguments[0]))
    print(json.dumps(_outcome(Stage(**json.loads(arguments[1])))), flush=True)
    # No teardown: peers may be gone, and everything is released with the process.
    os._exit(0)


def stage_command(parent_pid: int, stage: Stage) -> list[str]:
    """The command line of a process for `stage`."""
    arguments = [str(parent_pid), json.dumps(asdict(stage))]
    return [sys.executable, *calling("profiling.capacity.stage", "run_stage", arguments)]


def _outcome(stage: Stage) -> dict[str, Any]:
    try:
        return _measured(stage)
    except (RuntimeError, MemoryError, OSError) as err:
        if not memory.exhausted(err):
            raise
        return {"status": "out_of_memory", "reason": memory.first_line(err)}


def _measured(stage: Stage) -> dict[str, Any]:
    """Train `warmup` untimed and `iters` timed steps. Raises what torch raises when memory runs out."""
    import torch

    where = torch.device(stage.device, stage.index) if stage.device == "cuda" else torch.device(stage.device)
    torch.manual_seed(0)
    memory.wake(where, with_gradients=stage.sends)
    link = _Link(stage, where)
    baseline_bytes = None if where.type == "cuda" else memory.status_bytes("VmData")
    if stage.memory_limit_bytes is not None:
        memory.limit(stage.memory_limit_bytes, where.index)
    step = _step(stage, where, link)
    times_ns = []
    for number in range(stage.warmup + stage.iters):
        link.together()
        begun_ns = time.perf_counter_ns()
        step()
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        if number >= stage.warmup:
            times_ns.append(time.perf_counter_ns() - begun_ns)
    peak_bytes = torch.cuda.max_memory_allocated(where) if where.type == "cuda" else memory.status_bytes("VmHWM")
    return {"status": "fits", "times_ns": times_ns, "peak_bytes": peak_bytes, "baseline_bytes": baseline_bytes}


def _step(stage: Stage, where: Any, link: "_Link") -> Callable[[], None]:
    """A function that makes one training step of this share: forward, backward, and SGD without state."""
    import torch
    from torch.autograd.graph import get_gradient_edge

    from ..workloads.stacks import StackShape, stack

    shape = StackShape(stage.batch_size, stage.channels, stage.image_size)
    input_shape = shape.input_shape(pooled=stage.pooled)
    with where:
        model = stack(shape, stage.conv, stage.linear, pooled=stage.pooled)
        data = None if stage.receives else torch.randn(input_shape)

    def step() -> None:
        x = torch.empty(input_shape, device=where) if data is None else data
        if stage.receives:
            link.receive(x, stage.rank - 1)
            x.requires_grad_()
        y = model(x)
        if stage.sends:
            link.send(y, stage.rank + 1)
            gradient = torch.empty(y.shape, device=where)
            edge = get_gradient_edge(y) if y.requires_grad else None
            del y  # sent; backward needs only its node in the graph
            link.receive(gradient, stage.rank + 1)
            if edge is not None:
                torch.autograd.backward([edge], [gradient])
        else:
            y.mean().backward()
        if stage.receives:
            assert x.grad is not None
            link.send(x.grad, stage.rank - 1)
        _update(model)

    return step


def _update(model: Any) -> None:
    """Update by plain SGD; importing torch.optim would take longer than most tries."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.grad, alpha=-_LEARNING_RATE)
            parameter.grad = None


class _Link:
    """Links to the stages before and after this one: running processes, or none.

    Without such processes there is still a process group, since its threads need memory; inputs are then all ones.
    """

    def __init__(self, stage: Stage, where: Any) -> None:
        import torch
        import torch.distributed as dist

        self._peers = stage.rendezvous is not None
        self._dist = dist if stage.receives or stage.sends else None
        if self._dist is None:
            return
        if where.type == "cuda":
            torch.cuda.set_device(where)
        dist.init_process_group(
            stage.backend,
            store=(
                dist.FileStore(stage.rendezvous, stage.ranks)  # type: ignore[attr-defined]
                if stage.rendezvous
                else dist.HashStore()  # type: ignore[attr-defined]
            ),
            rank=stage.rank,
            world_size=stage.ranks,
            timeout=_TIMEOUT,
        )
        dist.barrier()
        self._set_up(stage, torch.zeros(1, device=where))

    def _set_up(self, stage: Stage, message: Any) -> None:
        """Exchange a message between neighbours: NCCL allocates memory for a pair at its first message."""
        if stage.receives:
            self.receive(message, stage.rank - 1)
        if stage.sends:
            self.send(message, stage.rank + 1)
            self.receive(message, stage.rank + 1)
        if stage.receives:
            self.send(message, stage.rank - 1)

    def receive(self, into: Any, peer: int) -> None:
        assert self._dist is not None
        if self._peers:
            self._dist.recv(into, peer)
        else:
            into.fill_(1.0)

    def send(self, what: Any, peer: int) -> None:
        assert self._dist is not None
        if self._peers:
            self._dist.send(what.detach().contiguous(), peer)

    def together(self) -> None:
        """Wait until all stages are here."""
        if self._dist is not None:
            self._dist.barrier()
