"""Runs predicted without a cause, beside the same runs simulated without it: jobs of all kinds, causes of all kinds."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from samples import a_sample, with_slow
from simulated_once import true_step_ns
from simulator import Injection, Window, World, simulate
from simulator.ops import Comm, Communication, Kernel, Op
from simulator.pipelines import cp_ring, three_d
from simulator.programs import ddp, fsdp, moe, of_host, tp, tp_dp
from simulator.world import Clocks, Layout, Place, Program

from commtrace import analyse
from commtrace.analysis.replay.engine import play
from commtrace.analysis.replay.scenarios.usual import without_stragglers
from commtrace.analysis.tables.replay import replayed

LATE, LATE_US = 2, 3000.0
STEPS = range(1, 6)
ON_ONE_HOST, ON_TWO_HOSTS = (1, 4), (2, 4)
JOBS: dict[str, tuple[Program, tuple[int, int]]] = {
    "tp": (partial(tp, layers=3, item=True), ON_ONE_HOST),
    "ddp": (partial(ddp, item=True), ON_ONE_HOST),
    "fsdp": (partial(fsdp, item=True), ON_ONE_HOST),
    "moe": (partial(moe, item=True), ON_ONE_HOST),
    "ring": (cp_ring, ON_ONE_HOST),
    "tp and dp": (partial(tp_dp, item=True), ON_TWO_HOSTS),
    "1f1b": (partial(three_d, tp=1, pp=4, item=True), ON_TWO_HOSTS),
    "gpipe, single messages": (partial(three_d, tp=1, pp=4, schedule="gpipe", batched=False), ON_ONE_HOST),
    "three dimensions": (partial(three_d, tp=2, pp=2, item=True), ON_TWO_HOSTS),
}
CAUSES = ("python", "op", "block", "data", "kernel", "slower", "copies")
PLACES = ("first of the step", "before the first call", "before a later call")
CASES = [(job, cause, place) for job in JOBS for cause in CAUSES for place in PLACES]
QUICK = [
    ("tp", "python", "first of the step"),
    ("three dimensions", "block", "before a later call"),
    ("gpipe, single messages", "kernel", "before the first call"),
]


def world(job: str) -> World:
    """A job without anything late; each of its hosts has a clock of its own."""
    program, (hosts, gpus) = JOBS[job]
    clocks = Clocks(offset_us=(0.0, 30_000.0)[:hosts])
    return World(5, program, hosts, gpus, steps=7, window=Window(((1, 5),)), clocks=clocks)


def at(made: World, place: str) -> float:
    """The part of a step of the late rank after which something happens."""
    ops = made.program(Place(made.seed, made.hosts, made.gpus, LATE, 1))
    calls = [number for number, op in enumerate(ops) if isinstance(op, Communication)]
    return {PLACES[0]: 0, PLACES[1]: calls[0], PLACES[2]: calls[len(calls) // 2]}[place] / len(ops)


def assert_predicted(calm: World, late: World, folder: Path, ranks: tuple[int, ...] = (LATE,)) -> None:
    """The late run without what these ranks have too much is as long as the calm one, to 3 % or within the interval."""
    simulate(late).write(folder)
    true = true_step_ns(calm)
    [row] = analyse(folder, details=True).predict(without_stragglers(ranks)).to_dict("records")
    narrow = row["high_ns"] - row["low_ns"] <= 0.3 * true  # what delays the first activity of a trace may stay
    assert row["step_ns"] == pytest.approx(true, rel=0.03) or (narrow and row["low_ns"] <= true <= row["high_ns"])


def late_at(calm: World, cause: str, place: str, ranks: tuple[int, ...] = (LATE,)) -> Injection:
    return Injection(cause, ranks, tuple(STEPS), LATE_US, at(calm, place))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "cause", "place"),
    with_slow(QUICK, CASES[3::13]),
)
def test_without_its_cause_a_run_is_as_without_it(job: str, cause: str, place: str, tmp_path: Path) -> None:
    calm = world(job)
    assert_predicted(calm, replace(calm, injections=(late_at(calm, cause, place),)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("job", a_sample(["tp", "fsdp", "three dimensions"], 1))
def test_calls_that_launch_nothing_interrupt_no_work(job: str, tmp_path: Path) -> None:
    """Nor do those of the thread that watches collectives."""
    calm = replace(world(job), layout=Layout(every_call=True))
    assert_predicted(calm, replace(calm, injections=(late_at(calm, "python", PLACES[2]),)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("job", a_sample(["ddp", "tp and dp"], 1))
def test_culprits_that_hide_each_other(job: str, tmp_path: Path) -> None:
    """One computes longer, the CPU of another stands still."""
    calm = world(job)
    both = (late_at(calm, "slower", PLACES[2], (1,)), late_at(calm, "op", PLACES[1], (3,)))
    assert_predicted(calm, replace(calm, injections=both), tmp_path, (1, 3))


@pytest.mark.slow
def test_what_happens_once_is_taken_out_of_that_step(tmp_path: Path) -> None:
    calm = world("ddp")
    once = replace(late_at(calm, "copies", PLACES[1]), steps=(3,), us=20_000.0)
    simulate(replace(calm, injections=(once,))).write(tmp_path)
    found = analyse(tmp_path, details=True)
    steps = found.breakdown_steps.groupby("step")["window_ns"].mean()
    [row] = found.predict(without_stragglers([LATE])).to_dict("records")
    assert row["step_ns"] == pytest.approx(steps.drop(3).mean(), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("job", a_sample([*JOBS], 2))
def test_nobody_late_gains_nothing(job: str, tmp_path: Path) -> None:
    """What is chance is no excess. In a mixture of experts, one has more to do."""
    simulate(world(job)).write(tmp_path)
    found = analyse(tmp_path, details=True)
    ranks = [rank for rank in range(4) if (job, rank) != ("moe", 0)]
    gains = found.predict(*(without_stragglers([rank]) for rank in ranks))["gain_frac"]
    assert gains.abs().max() < 0.02


def within_hosts(place: Place) -> list[Op]:
    """Nothing links the clocks of hosts that do not communicate."""
    return [op for _ in range(4) for op in (Kernel("gemm", 300.0), Comm("all_reduce", of_host(place), 1 << 20))]


@pytest.mark.slow
def test_a_clock_of_its_own_makes_no_rank_late(tmp_path: Path) -> None:
    clocks = Clocks(offset_us=(0.0, 30_000.0))
    simulate(World(5, within_hosts, 2, 2, steps=4, window=Window(((0, 3),)), clocks=clocks)).write(tmp_path)
    found = analyse(tmp_path, details=True)
    assert found.clocks["linked"].nunique() > 1
    gains = found.predict(*(without_stragglers([rank]) for rank in range(4)))["gain_frac"]
    assert gains.abs().max() < 0.02


@pytest.mark.quick_cases("ddp")
@pytest.mark.parametrize("job", a_sample([*JOBS], 2, seed=1))
def test_with_its_delays_a_run_is_played_as_it_was(job: str, tmp_path: Path) -> None:
    calm = replace(world(job), layout=Layout(every_call=True))
    simulate(replace(calm, injections=(late_at(calm, "block", PLACES[2]),))).write(tmp_path)
    found = analyse(tmp_path, details=True)
    for members in found.of(replayed).measured:
        for member, (start, end) in zip(members, play(members), strict=True):
            assert np.array_equal(start, member.program.start)
            assert np.array_equal(end, member.program.end)
