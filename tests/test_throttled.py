"""A rank that becomes slower at everything from some step on: named, with that step, unless it is so once or never."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from simulator import Injection, Window, World, simulate
from simulator.ops import Kernel
from simulator.programs import ddp, fsdp, tp
from simulator.world import Place

from commtrace import analyse
from commtrace.analysis.results.analysis import Analysis

STEPS, LAST = 8, 10
WORTH_NAMING = 0.015
"""Of a step."""


class Drawn(NamedTuple):
    calm: World
    rank: int
    since: int
    us: float


def drawn(seed: int) -> Drawn:
    """A world, and how a rank may become slower in it: by 5 to 40 % from a step in the middle on."""
    rng = random.Random(seed)
    program, (hosts, gpus) = rng.choice((ddp, fsdp, tp)), rng.choice(((1, 4), (2, 2), (1, 2), (1, 8)))
    calm = World(rng.randrange(10**6), program, hosts, gpus, steps=LAST, window=Window(((1, STEPS),)))
    computing_us = sum(op.us for op in program(Place(0, hosts, gpus, 0, 1)) if isinstance(op, Kernel))
    return Drawn(calm, rng.randrange(calm.size), rng.randrange(3, 7), rng.uniform(0.05, 0.4) * computing_us)


def read(world: World, folder: Path) -> Analysis:
    simulate(world).write(folder)
    return analyse(folder, details=True)


def check_named(seeds: Sequence[int], folder: Path) -> None:
    for seed in seeds:
        calm, rank, since, us = drawn(seed)
        throttled = Injection("throttled", (rank,), tuple(range(since, LAST)), us)
        found = read(replace(calm, injections=(throttled,)), folder / f"{seed} throttled")
        counted = found.steps[found.steps["left_out"].isna()]
        without = read(calm, folder / f"{seed} calm").steps
        usual_ns = without["window_ns"][without["step"].isin(counted["step"])].mean()
        true_ns = counted["window_ns"].mean() - usual_ns
        said = found.verdicts["because"].iloc[0]
        if true_ns < WORTH_NAMING * counted["window_ns"].mean():
            continue
        assert found.prices is not None
        assert found.prices.late is not None, seed
        assert found.prices.late.ranks == (rank,), seed
        gain = found.prices.gains["no_straggler"]
        assert gain.low_ns <= true_ns <= gain.high_ns, seed
        assert f"Rank {rank} costs" in said, seed
        if (counted["step"] >= since).sum() > 1 and (counted["step"] < since).any():
            assert f"longer than the others from step {since} on" in said, seed


@pytest.mark.slow
def test_a_rank_that_is_throttled(tmp_path: Path) -> None:
    check_named(range(1), tmp_path)


@pytest.mark.slow
def test_more_ranks_that_are_throttled(tmp_path: Path) -> None:
    check_named(range(1, 9), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_always_is_since_no_step(seed: int, tmp_path: Path) -> None:
    calm, rank, _, us = drawn(seed)
    found = read(replace(calm, injections=(Injection("throttled", (rank,), tuple(range(LAST)), us),)), tmp_path)
    assert found.prices is not None
    assert found.prices.late is not None
    assert found.prices.late.ranks == (rank,)
    assert " from step " not in found.verdicts["because"].iloc[0]


@pytest.mark.slow
def test_once_is_an_event_of_that_step(tmp_path: Path) -> None:
    calm, rank, step, _ = drawn(0)
    found = read(replace(calm, injections=(Injection("throttled", (rank,), (step,), 4000.0),)), tmp_path)
    verdict = found.verdicts.iloc[0]
    assert verdict["verdict"] == "event-bound"
    assert verdict["headline"].startswith(f"Step {step} takes")
    assert found.prices is not None
    assert found.prices.late is None


@pytest.mark.slow
def test_nobody_is_throttled(tmp_path: Path) -> None:
    for seed in range(20, 28):
        found = read(drawn(seed).calm, tmp_path / str(seed))
        assert found.prices is not None
        assert found.prices.late is None, seed
        assert " costs " not in found.verdicts["because"].iloc[0], seed


def test_the_last_of_the_slow_steps_is_no_drain(tmp_path: Path) -> None:
    """CPUs run ahead, so that slow steps of devices lie beside short ones of CPUs, the last like those before it."""
    calm = World(5, ddp, 1, 4, steps=LAST, window=Window(((1, STEPS),)))
    slow = Injection("throttled", (2,), tuple(range(6, LAST)), 1500.0)
    steps = read(replace(calm, injections=(slow,)), tmp_path).steps
    assert (steps["window_ns"] / steps["cpu_ns"]).tail(3).min() > 1.15
    assert not steps["left_out"].eq("drain").any()
