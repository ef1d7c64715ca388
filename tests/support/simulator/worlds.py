"""Worlds drawn at random over everything that can differ, and some with names."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from .pipelines import cp_ring, three_d
from .programs import cross, ddp, fsdp, inference_graph, rooted, tp, tp_dp
from .world import (
    INJECTED,
    VERSIONS,
    Clocks,
    Hang,
    Hardware,
    Injection,
    Layout,
    Losses,
    Program,
    Window,
    World,
)

T = TypeVar("T")

_SHAPES = {
    (1, 2): 10, (1, 4): 16, (1, 8): 10, (2, 1): 8, (2, 2): 12, (2, 4): 16, (4, 2): 8, (2, 8): 6, (4, 4): 5, (4, 8): 2,
    (8, 8): 1,
}  # fmt: skip
"""Hosts and GPUs of each: weight."""
_MOST_LAYERS_RANKS = 16


def draw(seed: int) -> World:
    """A random world: the same for the same seed."""
    rng = random.Random(seed)
    hosts, gpus = _weighted(rng, _SHAPES)
    program = _program(rng, hosts, gpus)
    graph = _is_graph(program)
    layout = _layout(rng, graph)
    steps = rng.randint(8, 14) if graph else rng.randint(4, 6)
    window = _window(rng, hosts * gpus, steps)
    hang = Hang(rng.randrange(hosts * gpus), steps - 2, rng.random()) if not graph and rng.random() < 0.05 else None
    return World(
        seed, program, hosts, gpus, steps,
        hardware=_hardware(rng, hosts * gpus),
        clocks=_clocks(rng, hosts, hosts * gpus),
        layout=layout,
        window=window,
        losses=_losses(rng, hosts * gpus),
        injections=_injections(rng, hosts, gpus, steps),
        hang=hang,
    )  # fmt: skip


def _weighted(rng: random.Random, weights: dict[T, int]) -> T:
    return rng.choices(list(weights), list(weights.values()))[0]


def _some(rng: random.Random, chance: float, values: Sequence[T], otherwise: T) -> T:
    """One of the values by chance."""
    return rng.choice(values) if rng.random() < chance else otherwise


def _is_graph(program: Program) -> bool:
    return isinstance(program, partial) and program.func is inference_graph


def _program(rng: random.Random, hosts: int, gpus: int) -> Program:
    world = hosts * gpus
    most = 5 if world <= _MOST_LAYERS_RANKS else 3
    layers, us = rng.randint(2, most), rng.choice((80.0, 200.0, 400.0, 900.0))
    elems, item = 1 << rng.randint(14, 24), rng.random() < 0.5
    makers: dict[Callable[[], Program], int] = {
        lambda: partial(ddp, layers=layers, layer_us=us, buckets=_buckets(rng, layers), item=item): 4,
        lambda: partial(tp, layers=layers, layer_us=us, elems=elems, gradient=rng.random() < 0.6, item=item): 4,
        lambda: partial(fsdp, layers=layers, layer_us=us, elems=elems, extras=rng.random() < 0.6, item=item): 4,
        lambda: partial(tp_dp, layers=layers, layer_us=us, elems=elems, item=item): 3,
        lambda: partial(rooted, us=us, elems=elems, reduce_between=rng.random() < 0.8): 2,
        lambda: partial(inference_graph, layers=layers, layer_us=us / 4, elems=1 << rng.randint(12, 18)): 2,
        lambda: partial(cp_ring, layers=min(layers, 2), chunk_us=us / 2, elems=elems, item=item): 2,
    }
    if world % 4 == 0:
        makers[lambda: partial(cross, rounds=layers, us=us, elems=elems, item=item)] = 2
        makers[lambda: _three_d(rng, world, us, elems)] = 5
    return _weighted(rng, makers)()


def _buckets(rng: random.Random, layers: int) -> tuple[int, ...]:
    return tuple(rng.randint(1 << 16, 1 << 24) for _ in range(rng.randint(1, layers)))


def _three_d(rng: random.Random, world: int, us: float, elems: int) -> Program:
    tp_size = rng.choice([size for size in (1, 2, 4, 8) if world % (2 * size) == 0])
    pp_size = rng.choice([size for size in (2, 4) if world % (tp_size * size) == 0])
    return partial(
        three_d,
        tp=tp_size,
        pp=pp_size,
        schedule=rng.choice(("gpipe", "1f1b")),
        batched=rng.random() < 0.6,
        experts=rng.choice(("none", "even", "uneven")),
        microbatches=rng.randint(2, 4),
        layer_us=us,
        elems=elems,
        item=rng.random() < 0.5,
    )


def _layout(rng: random.Random, graph: bool) -> Layout:
    torch = rng.choices(VERSIONS, (2, 2, 4, 4, 6, 4))[0]
    header = rng.choices(("groups", "plain", "none"), (8, 2, 1))[0] if torch not in ("2.1", "2.2") else "plain"
    by_rank = header == "none" or rng.random() < 0.25
    return Layout(
        torch=torch,
        sync_on_compute=torch in ("2.12", "2.13") and rng.random() < 0.6,
        args_on_kernel=rng.random() < 0.8,
        shapes=rng.random() < 0.4,
        header=header,
        shared_names=torch in ("2.1", "2.2", "2.4", "2.5") and rng.random() < 0.7,
        host_in_header=torch in ("2.12", "2.13") and rng.random() < 0.8,
        names="rank" if by_rank else "torch",
        steps=rng.choices(("numbered", "own", "none"), (8, 1, 2))[0],
        graph=graph and rng.random() < 0.7,
        gz=rng.random() < 0.7,
    )


def _hardware(rng: random.Random, ranks: int) -> Hardware:
    late = ((rng.randrange(ranks), rng.choice((20.0, 200.0, 2000.0))),) if rng.random() < 0.06 else ()
    return Hardware(
        intra_gb_per_s=rng.choice((80.0, 200.0, 400.0)),
        inter_gb_per_s=rng.choice((10.0, 40.0, 90.0)),
        eager_bytes=rng.choice((0, 64 << 10, 1 << 20)),
        compute_jitter=rng.choice((0.005, 0.02, 0.06)),
        end_noise_us=rng.choices((1.0, 7.0, 30.0, 90.0), (12, 4, 2, 1))[0],
        late_end_us=late,
        # Steps are much shorter than real ones, of which no CPU gets far ahead.
        queue=rng.choices((16, 40, 100, 1000), (4, 5, 5, 6))[0],
    )


def _clocks(rng: random.Random, hosts: int, ranks: int) -> Clocks:
    scale, drift = rng.choice((0.0, 0.0, 30.0, 3e3, 4e6)), rng.choice((0.0, 0.0, 2.0, 20.0, 100.0))
    error = _some(rng, 0.07, (15.0, 70.0), 2.0)
    return Clocks(
        offset_us=tuple(round(rng.uniform(-scale, scale), 1) for _ in range(hosts)),
        ppm=tuple(round(rng.uniform(-drift, drift), 2) for _ in range(hosts)),
        gpu_error_us=tuple(round(rng.uniform(0, error), 2) for _ in range(ranks)),
    )


def _window(rng: random.Random, ranks: int, steps: int) -> Window:
    hole = _some(rng, 0.15, (0.3, 0.8, 1.0), 0.0)
    kind = rng.choices(("steps", "shifted", "cycles", "spans", "spans apart"), (8, 3, 2, 3, 2))[0]
    first = rng.randint(1, 2)
    if kind.startswith("spans"):
        begin, end, apart = rng.uniform(0.1, 0.35), rng.uniform(0.65, 0.95), 0.15 if kind == "spans apart" else 0.03
        spans = tuple(
            (begin + rng.uniform(0, apart), end - rng.uniform(0, apart)) for _ in range(ranks if apart else 1)
        )
        return Window(spans=spans, hole_frac=hole)
    if kind == "cycles":
        half = steps // 2
        shifts = tuple((0, rng.randint(-1, 0)) if rng.random() < 0.3 else (0, 0) for _ in range(ranks))
        return Window(cycles=((0, half - 1), (half, steps - 1)), shifts=shifts, hole_frac=hole)
    shifts = tuple((rng.randint(-1, 1), rng.randint(-1, 1)) for _ in range(ranks)) if kind == "shifted" else ((0, 0),)
    return Window(cycles=((first, max(first, steps - 2)),), shifts=shifts, hole_frac=hole)


def _losses(rng: random.Random, ranks: int) -> Losses:
    missing = tuple(rng.sample(range(ranks), max(1, ranks // 8))) if ranks > 2 and rng.random() < 0.1 else ()
    begin = rng.uniform(0.3, 0.6)
    return Losses(
        kernel_frac=_some(rng, 0.12, (0.005, 0.03, 0.1), 0.0),
        ranges=((rng.randrange(ranks), begin, begin + rng.uniform(0.02, 0.2)),) if rng.random() < 0.08 else (),
        ranks=missing,
    )


def _injections(rng: random.Random, hosts: int, gpus: int, steps: int) -> tuple[Injection, ...]:
    """None, one, or two in different steps."""
    ranks, count = hosts * gpus, rng.choices((0, 1, 2), (5, 4, 2))[0]
    free = list(range(1, steps))
    made = []
    for _ in range(count):
        who = rng.choices(("one", "host", "in turn"), (6, 1, 2))[0]
        if who == "one":
            hit: tuple[int, ...] = (rng.randrange(ranks),)
        elif who == "host":
            host = rng.randrange(hosts)
            hit = tuple(range(host * gpus, (host + 1) * gpus))
        else:
            hit = tuple(rng.sample(range(ranks), min(ranks, 3)))
        when = sorted(rng.sample(free, min(len(free), rng.randint(1, 3))))
        free = [step for step in free if step not in when]
        if when:
            kind = rng.choice(INJECTED)
            us, at = rng.choice((200.0, 1000.0, 4000.0)), round(rng.random(), 2)
            made.append(Injection(kind, hit, tuple(when), us, at, in_turn=who == "in turn"))
    return tuple(made)


def _hosts(offsets: tuple[float, ...], ppm: tuple[float, ...] = ()) -> Clocks:
    return Clocks(offset_us=offsets, ppm=ppm, gpu_error_us=(0.3, 1.1, 0.0, 1.7))


PRESETS: dict[str, World] = {
    "plain": World(1, partial(ddp, layers=4)),
    "two hosts": World(2, partial(tp_dp, layers=3), 2, 4, clocks=_hosts((0.0, 3_000_000.0), (0.0, 15.0))),
    "periodic": World(
        3, partial(tp, gradient=False), 2, 2, layout=Layout(torch="2.5"), clocks=_hosts((0.0, 4_200.0)),
        window=Window(shifts=((0, 0), (0, 0), (1, 1), (1, 1))),
    ),
    "sharded": World(4, partial(fsdp, layers=4), 1, 8, layout=Layout(torch="2.4")),
    "pipeline": World(5, partial(three_d, tp=2, pp=2, experts="uneven"), 2, 4),
    "ring": World(6, partial(cp_ring), 1, 4, layout=Layout(torch="2.13", sync_on_compute=True)),
    "rooted": World(7, partial(rooted), 1, 4),
    "graph": World(8, partial(inference_graph), 2, 4, 12, layout=Layout(graph=True), window=Window(((2, 8),))),
    "cross": World(9, partial(cross), 2, 2, layout=Layout(torch="2.4", shared_names=True)),
    "straggler": World(10, partial(tp, layers=4), 1, 4, injections=(Injection("slower", (2,), (2, 3), 1500.0),)),
    "slow loader": World(
        11, partial(ddp, item=True), 1, 8, injections=(Injection("data", (0, 3, 5), (1, 2, 3), 8000.0, 0.0, True),)
    ),
    "always late": World(12, partial(fsdp), 1, 4, hardware=Hardware(late_end_us=((1, 2000.0),))),
    "hang": World(13, partial(tp_dp), 2, 2, hang=Hang(rank=1, step=2)),
    "large": World(14, partial(tp, layers=7, gradient=True), 8, 8, 3, window=Window(((1, 2),))),
}  # fmt: skip
"""Worlds with names."""
