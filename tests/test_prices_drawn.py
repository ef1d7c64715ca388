"""Prices of causes in worlds drawn at random: simulated with a cause and without, so that the gain is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from simulator import Hardware, Injection, Window, World, simulate
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
QUICK, SLOW = range(4), range(4, 10)
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


@pytest.mark.slow
def test_a_few_worlds(tmp_path: Path) -> None:
    check(QUICK, tmp_path)


@pytest.mark.slow
def test_more_worlds(tmp_path: Path) -> None:
    check(SLOW, tmp_path)


def without(kind: str, made: World, ranks: tuple[int, ...], at: float = 0.4) -> World:
    """The same world with a cause on these ranks, in all steps."""
    return replace(made, injections=(Injection(kind, ranks, STEPS, 900.0, at),))


@pytest.mark.slow
@pytest.mark.parametrize(("job", "kind"), [("ddp", "kernel"), ("tp", "copies"), ("tp and dp", "kernel")])
def test_work_that_two_of_three_ranks_have(job: str, kind: str, tmp_path: Path) -> None:
    """What the third one lacks is left out, although most ranks have it."""
    calm = World(7, PROGRAMS[job], 1, 3, steps=len(STEPS), window=Window(((1, 4),)))
    caused, alone = read(without(kind, calm, (0, 2)), tmp_path / "caused"), read(calm, tmp_path / "calm")
    true = step_ns(caused) - step_ns(alone)
    [row] = caused.remedies[caused.remedies["remedy"] == "no_straggler"].to_dict("records")
    assert row["what"] == "ranks 0, 2 as fast as the others"
    assert abs(row["gain_ns"] - true) <= 0.03 * step_ns(caused)
    assert "anks 0, 2 cost" in caused.verdict or "rank 0" in caused.verdict


@pytest.mark.slow
@pytest.mark.parametrize("job", ["ddp", "tp"])
def test_a_step_that_was_launched_before_the_trace(job: str, tmp_path: Path) -> None:
    """A CPU is more than a step ahead, so what the devices do first has no launch, which is no reason for no prices."""
    calm = World(5, PROGRAMS[job], 1, 4, steps=len(STEPS), window=Window(((3, 3),)))
    caused, alone = read(without("slower", calm, (2,)), tmp_path / "caused"), read(calm, tmp_path / "calm")
    true = step_ns(caused) - step_ns(alone)
    assert caused.prices is not None
    assert caused.prices.late is not None
    assert caused.prices.late.ranks == (2,)
    assert caused.prices.gains["no_straggler"].ns == pytest.approx(true, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [(3, 3), (3, 4)])
def test_some_rank_is_the_last_by_chance(steps: tuple[int, int], tmp_path: Path) -> None:
    """In one step as in many: equal ranks are neither named nor to be looked at."""
    hardware = Hardware(compute_jitter=0.05)
    for seed, job in enumerate(("ddp", "tp", "fsdp"), 1):
        made = World(seed, PROGRAMS[job], 1, 4, steps=len(STEPS), window=Window((steps,)), hardware=hardware)
        found = read(made, tmp_path / job)
        assert found.prices is not None
        assert found.prices.late is None
        assert "no_straggler" not in set(found.remedies["remedy"]), found.remedies
        assert "no_jitter" in found.prices.gains


@pytest.mark.slow
@pytest.mark.parametrize("steps", [(3, 3), (3, 4)])
def test_beside_a_late_rank_nobody_is_named_by_chance(steps: tuple[int, int], tmp_path: Path) -> None:
    """It takes longer by what was planted: what single kernels take longer by chance, others take shorter."""
    hardware = Hardware(compute_jitter=0.05)
    made = World(9, PROGRAMS["ddp"], 1, 4, steps=len(STEPS), window=Window((steps,)), hardware=hardware)
    found = read(without("kernel", made, (1,)), tmp_path)
    assert found.prices is not None
    assert found.prices.late is not None
    assert found.prices.late.ranks == (1,)
    computing = found.breakdown_steps.groupby("rank")["compute_ns"].mean()
    longer_ns = computing[1] - computing.drop(1).median()
    assert found.prices.late.excess[1].compute_ns == pytest.approx(longer_ns, rel=0.1)


@pytest.mark.slow
def test_those_named_together_have_their_waits_together(tmp_path: Path) -> None:
    """`66 % of it for rank 1 and rank 0 (nearly as late)` is what both are waited for, and nobody counts twice."""
    calm = World(7, PROGRAMS["ddp"], 1, 3, steps=len(STEPS), window=Window(((1, 4),)))
    found = read(without("kernel", calm, (0, 1)), tmp_path)
    by_rank = found.ranks.set_index("rank")["caused_exposed_frac"]
    assert f"{by_rank[[0, 1]].sum():.0%} of it for rank 0 and rank 1 (nearly as late)" in found.verdict
    assert "1 more rank" not in found.summary()
