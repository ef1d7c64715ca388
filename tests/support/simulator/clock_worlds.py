"""Worlds whose clocks misbehave in one way each, drawn at random, to count how often offsets are what they claim."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from .pipelines import three_d
from .programs import ddp, fsdp, tp_dp
from .simulation import Simulated, simulate
from .world import Clocks, Hardware, Injection, Jump, Layout, Losses, Program, Window, World

STEPS = 8


def of_uneven_ends(seed: int, hosts: int, *, named: bool) -> Simulated:
    """Right clocks, or two hosts some ms apart; ends differ by kind and size of collective, and have long tails."""
    rng = random.Random(f"uneven {seed} {hosts}")
    us, elems = rng.choice((100.0, 300.0)), 1 << rng.randint(18, 23)
    gpus = 8 // hosts
    programs: list[Program] = [
        partial(ddp, layers=4, layer_us=us),
        partial(fsdp, layers=3, layer_us=us, elems=elems),
        partial(tp_dp, layers=3, layer_us=us, elems=elems),
    ]
    clocks = Clocks(offset_us=(0.0, rng.uniform(-3e3, 3e3)), ppm=(0.0, rng.uniform(-10.0, 10.0)))
    layout = Layout(gz=False) if named else Layout(gz=False, host_in_header=False, names="rank")
    hardware = Hardware(end_noise_us=rng.choice((1.0, 5.0)), uneven_end_us=rng.choice((20.0, 60.0, 90.0)))
    shown = Window(cycles=((0, STEPS - 1),))
    return simulate(
        World(seed, rng.choice(programs), hosts, gpus, STEPS, hardware, clocks=clocks, layout=layout, window=shown)
    )


def simulated_with(kind: str, seed: int) -> Simulated:
    """A simulated world of one of `KINDS`. Clocks change nothing of what happens: they are drawn once it has."""
    rng = random.Random(f"{kind} {seed}")
    made = simulate(_world(kind, seed, rng))
    return replace(made, world=replace(made.world, clocks=KINDS[kind](rng, made)))


def _world(kind: str, seed: int, rng: random.Random) -> World:
    hosts, gpus = rng.choice(((2, 1), (2, 2), (2, 4), (3, 2), (4, 2)) if kind != "messages" else ((2, 2), (2, 4)))
    ranks = hosts * gpus
    who = tuple(rng.sample(range(ranks), 1))
    late: tuple[tuple[int, float], ...] = ()
    if kind == "late ends":
        host, by = rng.randrange(hosts), rng.choice((5.0, 15.0, 40.0))
        late = tuple((host * gpus + gpu, by) for gpu in range(gpus))
    gaps = kind == "windows"
    return World(
        seed,
        _program(kind, rng, gpus),
        hosts,
        gpus,
        STEPS,
        hardware=Hardware(
            end_noise_us=rng.choice((1.0, 1.0, 3.0, 7.0)),
            transfer_jitter=rng.choice((0.01, 0.03)),
            late_end_us=late,
        ),
        layout=Layout(gz=False),
        window=Window(
            cycles=((0, STEPS - 1),),
            shifts=tuple((rng.randint(0, 3), rng.randint(-3, 0)) for _ in range(ranks)) if gaps else ((0, 0),),
        ),
        losses=Losses(kernel_frac=rng.choice((0.0, 0.05, 0.3)) if gaps else 0.0),
        injections=(Injection("slower", who, (2, 5), rng.choice((300.0, 1500.0))),) if rng.random() < 0.5 else (),
    )


def _program(kind: str, rng: random.Random, gpus: int) -> Program:
    us, elems = rng.choice((100.0, 300.0, 800.0)), 1 << rng.randint(14, 22)
    if kind == "messages":
        schedule = rng.choice(("gpipe", "1f1b"))
        return partial(
            three_d, tp=rng.choice((1, gpus)), pp=2, schedule=schedule, batched=rng.random() < 0.5, microbatches=4,
            layer_us=us, elems=elems, together=False,
        )  # fmt: skip
    programs: list[Program] = [
        partial(ddp, layers=4, layer_us=us, item=rng.random() < 0.5),
        partial(fsdp, layers=3, layer_us=us, elems=elems),
        partial(tp_dp, layers=3, layer_us=us, elems=elems),
    ]
    return rng.choice(programs[: 3 if gpus > 1 else 2])


def _lasts_us(made: Simulated) -> float:
    return max(time for time in made.happened.times if time < float("inf"))


def _steady(rng: random.Random, made: Simulated) -> Clocks:
    """Offsets, drifts and small errors of GPUs, as everywhere."""
    scale, drift = rng.choice((0.0, 50.0, 3e3)), rng.choice((0.0, 5.0, 40.0))
    hosts, ranks = made.world.hosts, made.world.size
    return Clocks(
        offset_us=tuple(round(rng.uniform(-scale, scale), 1) for _ in range(hosts)),
        ppm=tuple(round(rng.uniform(-drift, drift), 2) for _ in range(hosts)),
        gpu_error_us=tuple(round(rng.uniform(0, 1.5), 2) for _ in range(ranks)),
    )


def _jumping(rng: random.Random, made: Simulated) -> Clocks:
    """A host or a rank jumps once, back again, several times, or near the edge."""
    lasts, world = _lasts_us(made), made.world
    one_rank = world.gpus > 1 and rng.random() < 0.25
    where = {"rank": rng.randrange(world.size)} if one_rank else {"host": rng.randrange(world.hosts)}
    by = rng.choice((40.0, 120.0, 500.0, 3000.0)) * rng.choice((-1, 1))
    how = rng.choice(("once", "back", "several", "edge"))
    at = {
        "once": [(rng.uniform(0.2, 0.8), by)],
        "back": [(rng.uniform(0.2, 0.45), by), (rng.uniform(0.55, 0.8), -by)],
        "several": [(0.25, by), (0.5, by / 2), (0.75, -2 * by)],
        "edge": [(rng.choice((0.05, 0.08, 0.92, 0.95)), by)],
    }[how]
    jumps = tuple(Jump(frac * lasts, by_us, **where) for frac, by_us in at)
    return replace(_steady(rng, made), jumps=jumps)


def _warming(rng: random.Random, made: Simulated) -> Clocks:
    """Hosts that warm up, each by its own amount."""
    most = rng.choice((20.0, 80.0, 300.0))
    warm = tuple(round(rng.uniform(-most, most), 1) for _ in range(made.world.hosts))
    return replace(_steady(rng, made), warm_us=warm, warming_us=_lasts_us(made) * rng.choice((0.15, 0.4, 1.0)))


KINDS: dict[str, Callable[[random.Random, Simulated], Clocks]] = {
    "steady": _steady,
    "windows": _steady,
    "late ends": _steady,
    "jumps": _jumping,
    "warming": _warming,
    "messages": _steady,
}
"""What is special about a world -> how its clocks are drawn."""
