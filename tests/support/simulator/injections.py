"""Programs of a whole world, and the same with what goes wrong put in."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from .ops import Block, Comm, Communication, Cpu, Group, Kernel, Op, Planned, caused
from .programs import LOADER
from .world import Hang, Injection, Place, World

Programs = list[list[list[Planned]]]
"""What each rank issues in each step."""

_COPIES = 4
_RANK_BITS = 12
NEVER_US = float("inf")


def cause_of(injection: int, rank: int) -> int:
    """One number for an injection and the rank where it acts."""
    return injection << _RANK_BITS | rank


def cause_parts(cause: int) -> tuple[int, int]:
    """Number of the injection, and the rank where it acted."""
    return cause >> _RANK_BITS, cause & ((1 << _RANK_BITS) - 1)


def programs(world: World) -> Programs:
    """All programs without injections, but with the hang."""
    made = []
    for rank in range(world.size):
        steps = []
        for step in range(world.steps):
            ops = world.program(Place(world.seed, world.hosts, world.gpus, rank, step))
            steps.append([Planned(op, key) for key, op in enumerate(ops)])
        made.append(steps)
    if world.hang is not None:
        steps = made[world.hang.rank]
        steps[world.hang.step] = _hung(steps[world.hang.step], world.hang)
    return made


def _hung(plan: list[Planned], hang: Hang) -> list[Planned]:
    """The step, in which nothing happens from the first collective behind a place on."""
    behind = range(_position(plan, hang.at), len(plan))
    at = next((i for i in behind if isinstance(plan[i].op, Communication)), len(plan))
    return [*plan[:at], Planned(Cpu(NEVER_US)), *plan[at:]]


def with_injections(world: World, plain: Programs) -> Programs:
    """The programs with every injection of the world."""
    result = [list(steps) for steps in plain]
    for number, injection in enumerate(world.injections):
        for step in injection.steps:
            if step >= world.steps:
                continue
            for rank in _ranks_hit(world, injection, step):
                result[rank][step] = _injected(world, result[rank][step], injection, (number, rank, step))
    return result


def _ranks_hit(world: World, injection: Injection, step: int) -> list[int]:
    """Ranks whose program changes: for a slow collective all of its group."""
    hit = [rank for rank in range(world.size) if injection.hits(rank, step)]
    return list(_side_group(world, hit).ranks) if injection.kind == "comm" and hit else hit


def _side_group(world: World, hit: list[int]) -> Group:
    """A group of these ranks, or of a single one and the next."""
    return Group("side", tuple(hit) if len(hit) > 1 else tuple(sorted((hit[0], (hit[0] + 1) % world.size))))


def _position(plan: list[Planned], at: float) -> int:
    return min(round(at * len(plan)), len(plan))


def _injected(world: World, plan: list[Planned], injection: Injection, where: tuple[int, int, int]) -> list[Planned]:
    """A step with the injection in it; `where` is its number, rank and step."""
    number, rank, step = where
    hit = [r for r in range(world.size) if injection.hits(r, step)]
    at = _position(plan, injection.at)
    if injection.kind == "slower":
        return _slowed(plan, at, injection.us, cause_of(number, rank))
    if injection.kind == "throttled":
        return _throttled(plan, injection.us, cause_of(number, rank))
    extra = Planned(Cpu(0.0))
    ops = _side_comm(world, hit, injection.us) if injection.kind == "comm" else _extra(injection)
    origin = hit[0] if injection.kind == "comm" else rank
    added = [replace(extra, op=caused(op, cause_of(number, origin))) for op in ops]
    return [*plan[:at], *added, *plan[at:]]


def _slowed(plan: list[Planned], at: int, us: float, cause: int) -> list[Planned]:
    """The step with the next kernel that computes taking longer."""
    kernels = [i for i, planned in enumerate(plan) if _computes(planned.op)]
    if not kernels:
        return plan
    chosen = min(kernels, key=lambda i: (i < at, abs(i - at)))
    result = list(plan)
    kernel = result[chosen].op
    assert isinstance(kernel, Kernel)
    result[chosen] = replace(result[chosen], op=replace(kernel, extra_us=kernel.extra_us + us, cause=cause))
    return result


def _throttled(plan: list[Planned], us: float, cause: int) -> list[Planned]:
    """The step with every kernel that computes taking longer, by the same factor."""
    whole_us = sum(each.op.us for each in plan if _computes(each.op))
    return [
        replace(each, op=replace(each.op, extra_us=each.op.extra_us + us * each.op.us / whole_us, cause=cause))
        if _computes(each.op)
        else each
        for each in plan
    ]


def _computes(op: Op) -> TypeGuard[Kernel]:
    return isinstance(op, Kernel) and not op.is_copy


def _side_comm(world: World, hit: list[int], us: float) -> list[Op]:
    return [Comm("all_reduce", _side_group(world, hit), 1 << 16, "Float", extra_us=us)]


def _extra(injection: Injection) -> list[Op]:
    """Operations that make a rank late."""
    us = injection.us
    if injection.kind == "kernel":
        return [Kernel("injected_slow_kernel", us, "aten::slow")]
    if injection.kind == "copies":
        copy = "Memcpy HtoD (Pageable -> Device)"
        return [Kernel(copy, us / _COPIES, "aten::copy_")] * _COPIES
    if injection.kind == "block":
        return [Block("cudaDeviceSynchronize", extra_us=us)]
    if injection.kind == "data":
        return [Cpu(us, LOADER, "user_annotation")]
    if injection.kind == "op":
        return [Cpu(us, "aten::nonzero_numpy")]
    if injection.kind == "alloc":
        return [Cpu(us, "cudaMalloc", "cuda_runtime")]
    if injection.kind == "gc":
        return [Cpu(us, "Python GC", "python_function")]
    if injection.kind == "item":
        return [Block(copy_us=us)]
    if injection.kind == "pinned":
        return [Kernel("Memcpy HtoD (Pinned -> Device)", us, "aten::copy_")]
    if injection.kind == "pageable":
        return [Block(copy_us=us, copy="Memcpy HtoD (Pageable -> Device)", cpu_op="aten::copy_")]
    return [Cpu(us)]
