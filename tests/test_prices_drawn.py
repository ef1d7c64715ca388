"""Prices of causes in worlds drawn at random: simulated with a cause and without, so that the gain is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from simulator import Injection, Window, World, simulate
from simulator.pipelines import cp_ring, three_d
from simulator.programs import cross, ddp, fsdp, tp, tp_dp, twins
from simulator.world import Program

from commtrace import analyse
from commtrace.analysis.results.analysis import Analysis

PROGRAMS: dict[str, Program] = {
    "tp": partial(tp, layers=3),
    "ddp": ddp,
    "fsdp": fsdp,
    "tp and dp": tp_dp,
    "twins": twins,
    "1f1b": partial(three_d, tp=1),
    "3d": three_d,
    "ring": cp_ring,
    "cross": cross,
}
OF_ONE_RANK = ("slower", "kernel", "copies", "python", "op", "block", "data", "gc", "alloc", "pageable")
OF_ALL = {
    "copies": "no_copies",
    "block": "no_syncs",
    "alloc": "no_allocations",
    "data": "no_data_wait",
    "gc": "no_gc",
    "op": "no_pauses",
    "python": "no_pauses",
}
SHAPES = ((1, 4), (2, 2), (2, 4), (1, 8))
STEPS = tuple(range(6))
QUICK, SLOW = range(4), range(4, 14)
NOT_WORTH_NAMING = 0.02
"""Of a step: a cause that costs less need not be found."""


class Drawn(NamedTuple):
    """A world without and with a cause, which is of one rank, or of all for None."""

    calm: World
    caused: World
    kind: str
    rank: int | None


def drawn(seed: int) -> Drawn:
    rng = random.Random(seed)
    hosts, gpus = rng.choice(SHAPES)
    program = PROGRAMS[rng.choice(list(PROGRAMS))]
    calm = World(rng.randrange(10**6), program, hosts, gpus, steps=len(STEPS), window=Window(((1, 4),)))
    rank = rng.randrange(calm.size) if rng.random() < 0.7 else None
    kind = rng.choice(list(OF_ALL) if rank is None else OF_ONE_RANK)
    ranks = tuple(range(calm.size)) if rank is None else (rank,)
    # Not at the very end: a stage that receives first stays late by what the step before the first left behind.
    cause = Injection(kind, ranks, STEPS, rng.choice((800.0, 1500.0, 3000.0)), rng.choice((0.2, 0.4, 0.6)))
    return Drawn(calm, replace(calm, injections=(cause,)), kind, rank)


def read(world: World, folder: Path) -> Analysis:
    simulate(world).write(folder)
    return analyse(folder, details=True)


def step_ns(analysis: Analysis) -> float:
    return analysis.typical_step.parts["window_ns"]


def check(seeds: Sequence[int], folder: Path) -> None:
    """Who is named, and what is gained: right in all of these worlds."""
    for seed in seeds:
        made = drawn(seed)
        caused = read(made.caused, folder / f"{seed} caused")
        true = step_ns(caused) - step_ns(read(made.calm, folder / f"{seed} calm"))
        prices = caused.prices
        assert prices is not None, seed
        late = set() if prices.late is None else set(prices.late.ranks)
        assert late <= ({made.rank} if made.rank is not None else set()), seed
        assert prices.slow is None, seed
        if true < NOT_WORTH_NAMING * step_ns(caused):
            continue
        if made.rank is not None:
            assert prices.late is not None, seed
            gain, remedy = prices.gains["no_straggler"], "no_straggler"
        else:
            remedy = OF_ALL[made.kind]
            gain = prices.gains[remedy]
        is_near = abs(gain.ns - true) <= 0.03 * step_ns(caused)
        assert is_near or gain.low_ns <= true <= gain.high_ns <= gain.low_ns + 0.2 * step_ns(caused), seed
        others = caused.remedies["gain_ns"][caused.remedies["remedy"] != remedy].fillna(0)
        if true > 1.1 * others.max():
            assert caused.remedies["remedy"].iloc[0] == remedy, seed


def test_a_few_worlds(tmp_path: Path) -> None:
    check(QUICK, tmp_path)


@pytest.mark.slow
def test_more_worlds(tmp_path: Path) -> None:
    check(SLOW, tmp_path)
