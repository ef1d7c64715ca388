"""Worlds drawn at random that are hard to match: what repeats, what is lost, and hosts whose names are wrong.

Uneven all_to_alls of which nobody knows the whole size; two process groups of the same ranks; loops of equal calls;
several cycles of which ranks show other steps, or none in common; kernels from before the window of which the last are
missing; calls lost anywhere; with and without sequence numbers and steps, which each rank may count by itself; on one
host and on several.
"""

from __future__ import annotations

import random
from functools import partial

from .programs import ddp, fsdp, inference_graph, moe, tp, twins
from .world import Clocks, Hardware, Injection, Layout, Losses, Program, Window, World

_SHAPES = ((1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1))


def draw_hard(seed: int) -> World:
    """A random world that is hard to match: the same for the same seed."""
    rng = random.Random(f"hard {seed}")
    hosts, gpus = rng.choice(_SHAPES)
    ranks, steps = hosts * gpus, rng.randint(6, 9)
    program, graph = _program(rng, ranks)
    scale = rng.choice((0.0, 30.0, 1e3, 3e3, 4e6)) if hosts > 1 else 0.0
    return World(
        seed, program, hosts, gpus, steps,
        hardware=Hardware(
            compute_jitter=rng.choice((0.005, 0.02, 0.06)),
            end_noise_us=rng.choice((1.0, 1.0, 7.0, 30.0)),
            queue=rng.choice((16, 100, 1000)),
        ),
        clocks=Clocks(
            offset_us=tuple(round(rng.uniform(-scale, scale), 1) for _ in range(hosts)),
            ppm=tuple(round(rng.uniform(-5.0, 5.0), 2) for _ in range(hosts)) if rng.random() < 0.3 else (),
            gpu_error_us=tuple(round(rng.uniform(0, 2.0), 2) for _ in range(ranks)),
        ),
        layout=Layout(
            torch=rng.choice(("2.1", "2.4", "2.5", "2.12", "2.12", "2.13")),
            args_on_kernel=rng.random() < 0.8,
            sync_on_compute=rng.random() < 0.3,
            steps=rng.choices(("numbered", "own", "none"), (7, 1, 2))[0],
            graph=graph,
            one_name=hosts > 1 and rng.random() < 0.2,
        ),
        window=_window(rng, ranks, steps),
        losses=_losses(rng, ranks),
        injections=_late(rng, ranks, steps),
    )  # fmt: skip


def _program(rng: random.Random, ranks: int) -> tuple[Program, bool]:
    """A program, and whether its traces show kernels alone."""
    layers, us, elems = rng.randint(2, 4), rng.choice((80.0, 200.0, 500.0)), 1 << rng.randint(14, 23)
    item = rng.random() < 0.4
    programs: list[Program] = [
        partial(moe, layers=layers, us=us, hot=rng.randrange(ranks), item=item),
        partial(moe, layers=layers, us=us, hot=rng.randrange(ranks), rows=40, item=item),
        partial(twins, layers=layers, us=us, elems=elems, ahead=rng.random() < 0.5, item=item),
        partial(tp, layers=layers, layer_us=us, elems=elems, gradient=rng.random() < 0.5, item=item),
        partial(ddp, layers=layers, layer_us=us, buckets=(elems, elems, elems // 2)[:layers], item=item),
        partial(fsdp, layers=layers, layer_us=us, elems=elems, item=item),
        partial(inference_graph, layers=layers, layer_us=us / 4, elems=1 << rng.randint(12, 18)),
    ]
    number = rng.randrange(len(programs))
    graph = number == len(programs) - 1 or (number <= 2 and rng.random() < 0.15)
    return programs[number], graph


def _window(rng: random.Random, ranks: int, steps: int) -> Window:
    """Cycles of which the steps differ from rank to rank, or not at all, or that have none in common."""
    hole = rng.choice((0.0, 0.0, 0.3, 0.8, 1.0))
    kind = rng.choice(("same", "shifted", "cycles", "cycles", "disjoint"))
    if kind == "same":
        return Window(cycles=((1, steps - 2),), hole_frac=hole)
    if kind == "shifted":
        shifts = tuple((rng.randint(-1, 2), rng.randint(-2, 1)) for _ in range(ranks))
        return Window(cycles=((1, steps - 2),), shifts=shifts, hole_frac=hole)
    if kind == "cycles":
        half = steps // 2
        moved = [rng.choice((0, 0, 1)) for _ in range(ranks)]
        return Window(((0, half - 2), (half, steps - 2)), tuple((by, by) for by in moved), hole_frac=hole)
    half = steps // 2
    apart = [rng.choice((0, 0, half)) for _ in range(ranks)]
    return Window(((0, half - 1),), tuple((by, by) for by in apart), hole_frac=hole)


def _losses(rng: random.Random, ranks: int) -> Losses:
    begin = rng.uniform(0.2, 0.6)
    return Losses(
        kernel_frac=rng.choice((0.0, 0.0, 0.005, 0.03, 0.1)),
        ranges=((rng.randrange(ranks), begin, begin + rng.uniform(0.02, 0.2)),) if rng.random() < 0.2 else (),
    )


def _late(rng: random.Random, ranks: int, steps: int) -> tuple[Injection, ...]:
    if rng.random() < 0.5:
        return ()
    us = rng.choice((300.0, 1500.0))
    return (Injection("slower", (rng.randrange(ranks),), tuple(range(1, steps)), us, round(rng.random(), 2)),)
