"""Loops that are longer than a step: the period is found, whole ones count, and what is said is about them."""

from __future__ import annotations

import random
import re
from functools import partial
from pathlib import Path

import pytest
from simulator import Window, World, simulate
from simulator.ops import Comm, Kernel, Op
from simulator.programs import ddp, everybody
from simulator.world import Place

from commtrace import Analysis, analyse, compare
from commtrace.analysis.metrics.periods import Period, StepWork, may_repeat, period_of
from commtrace.analysis.results.part import steps_to_play
from commtrace.analysis.show.comparison import explanation
from commtrace.analysis.show.overview import overview

_MS = 1_000_000


def _works(lengths_ms: list[float], collectives: list[int] | None = None, first: int = 0) -> list[StepWork]:
    calls = collectives or [8] * len(lengths_ms)
    return [StepWork(first + number, None, calls[number], 100, round(ms * _MS)) for number, ms in enumerate(lengths_ms)]


@pytest.mark.parametrize(
    ("works", "period"),
    [
        # By the number of collectives, each step of the period seen twice: DiLoCo syncs in every fourth step.
        (_works([2, 2, 2, 9] * 2, [0, 0, 0, 4] * 2), Period(4, frozenset({3}))),
        (_works([2, 2, 2, 9, 2, 2, 2], [0, 0, 0, 4, 0, 0, 0]), None),
        # The numbers of the loop, from wherever it is traced.
        (_works([2, 9, 2, 2, 2, 9, 2, 2], [1, 4, 1, 1, 1, 4, 1, 1], first=10), Period(4, frozenset({3}))),
        # By length alone, each seen three times; two hiccups always lie some steps apart.
        (_works([2, 2, 9] * 3), Period(3, frozenset({2}))),
        (_works([2, 2, 9] * 2), None),
        # A step that does more, and takes no longer, makes no period; nor do steps that are all alike.
        (_works([2, 2, 2.1, 2] * 2, [8, 8, 12, 8] * 2), None),
        (_works([2, 2.1, 2, 1.9] * 3), None),
        # An evaluation every fourth step, a sync every second one: the period is four.
        (_works([2, 5, 2, 20] * 3, [0, 4, 0, 9] * 3), Period(4, frozenset({3}))),
        # More long steps than short ones.
        (_works([9, 9, 2] * 3), Period(3, frozenset({0, 1}))),
    ],
)
def test_the_shortest_period_in_which_steps_repeat(works: list[StepWork], period: Period | None) -> None:
    assert period_of(works) == period


def test_an_evaluation_that_is_marked_repeats() -> None:
    kinds = [None, None, "eval"] * 2
    assert period_of([StepWork(n, kind, 8, 100, 9 if kind else 2) for n, kind in enumerate(kinds)]) is not None


def test_requests_that_an_engine_serves_have_no_period() -> None:
    assert may_repeat([None, "train", "eval"])
    assert not may_repeat(["decode", "prefill"])


def test_chance_seldom_makes_a_period() -> None:
    """Steps with hiccups in a tenth of them, and with lengths that are spread out, of 6 to 30 steps."""
    draw, found = random.Random(7), 0
    for _ in range(2_000):
        lengths = [draw.lognormvariate(1, 0.05) * (4 if draw.random() < 0.1 else 1) for _ in range(draw.randint(6, 30))]
        found += period_of(_works(lengths)) is not None
    assert found <= 4


def test_whole_periods_follow_each_other_without_a_gap() -> None:
    period = Period(4, frozenset({3}))
    assert period.whole([2, 3, 4, 5, 6, 7, 8, 9, 10]) == [*range(2, 10)]
    assert period.whole([2, 3, 4, 6, 7, 8, 9, 10]) == [6, 7, 8, 9]
    assert period.whole([2, 3, 5, 6, 8]) == []


def test_whole_periods_are_played() -> None:
    lengths = {step: 9.0 if step % 4 == 3 else 2.0 for step in range(2, 22)}
    played = steps_to_play(lengths, range(2, 22), 6, Period(4, frozenset({3})))
    assert len(played) == 4
    assert sum(lengths[step] for step in played) == 15.0
    assert len(steps_to_play(lengths, range(2, 22), 2, Period(4, frozenset({3})))) == 4


def _rollouts(place: Place, more: int = 0, us: float = 90.0, every: int = 4) -> list[Op]:
    """Every so many steps much is generated first, on rank 2 by so many kernels `more`; then a step of training."""
    generated = 120 + (more if place.rank == 2 else 0) if place.step % every == 1 else 0
    return [*[Kernel("decode_kernel", us)] * generated, *ddp(place, layers=3)]


def _diloco(place: Place) -> list[Op]:
    step = [op for op in ddp(place, layers=3, buckets=()) if not isinstance(op, Comm)]
    return [*step, Comm("all_reduce", everybody(place), 400 << 20)] if place.step % 5 == 4 else step


def _captured(folder: Path, program: partial[list[Op]], seed: int = 3) -> Analysis:
    world = World(seed, program, gpus=4, steps=16, window=Window(cycles=((2, 14),)))
    simulate(world).write(folder)
    return analyse(folder, cache=False)


def _said(found: Analysis) -> str:
    return " ".join(overview(found).split())


@pytest.mark.slow
def test_the_first_sentence_is_about_the_period_and_the_gain_about_its_mean(tmp_path: Path) -> None:
    found = _captured(tmp_path / "slow", partial(_rollouts, more=60))
    assert found.typical_step.period == Period(4, frozenset({1}))
    assert found.typical_step.steps == tuple(range(2, 14))
    said = _said(found)
    assert "Every 4th step (5, 9, 13) takes 6.2 times as long as the others, 67% of the time. Rank 2 costs" in said
    assert "(3 periods of 4 steps, 2-13: long ones" in said
    assert "Step 14 is left out: only whole periods of 4 steps count." in said
    # What a world without the planted kernels takes less.
    even = _captured(tmp_path / "even", partial(_rollouts, more=0))
    gains = found.remedies.set_index("remedy")["gain_ns"]
    truth = found.typical_step.parts["window_ns"] - even.typical_step.parts["window_ns"]
    assert gains["no_straggler"] == pytest.approx(truth, rel=0.05)
    assert not even.remedies["gain_frac"].fillna(0.0).gt(0.03).any()


@pytest.mark.slow
def test_a_sync_every_few_steps_is_no_part_of_a_step(tmp_path: Path) -> None:
    said = _said(_captured(tmp_path, partial(_diloco)))
    assert "Every 5th step (4, 9) takes" in said
    assert "exposed transfers take" in said
    assert "may be parts of steps" not in said


@pytest.mark.slow
def test_longer_rollouts_are_longer_steps(tmp_path: Path) -> None:
    """A median of steps would not see them: three of four take as long as before."""
    lengths_ns = [
        _captured(tmp_path / name, partial(_rollouts, us=us)).typical_step.parts["window_ns"]
        for name, us in (("a", 90.0), ("b", 100.0))
    ]
    compared = compare(tmp_path / "a", tmp_path / "b")
    [step] = compared.comparison.query("measure == 'step'").to_dict("records")
    truth = lengths_ns[1] / lengths_ns[0] - 1
    assert truth > 0.05
    assert step["change_frac"] == pytest.approx(truth, rel=0.1)
    said = re.search(
        r"Every 4th step takes (.+) ms in A and (.+) in B, the others (.+) and (.+)\.", " ".join(explanation(compared))
    )
    assert said is not None
    before, after, *others = map(float, said.groups())
    assert after - before == pytest.approx(4 * (lengths_ns[1] - lengths_ns[0]) / 1e6, rel=0.05)
    assert others[0] == others[1] < before


def _uneven_rollouts(place: Place, us: float) -> list[Op]:
    """Rollouts whose kernels take longer in some steps than in others, on all ranks; rank 2 by so much more."""
    own = (60.0 + (90.0, 40.0, 0.0)[place.step // 4 % 3]) * (us / 100.0 if place.rank == 2 else 1.0)
    return _rollouts(place, us=own)


@pytest.mark.slow
def test_what_is_late_in_long_steps_is_late_beside_others_in_the_same_step(tmp_path: Path) -> None:
    """A median over steps of 60, 100 and 150 us takes some of what the slow rank has more for chance."""
    found, even = (_captured(tmp_path / str(us), partial(_uneven_rollouts, us=us)) for us in (130.0, 100.0))
    truth = found.typical_step.parts["window_ns"] - even.typical_step.parts["window_ns"]
    late = found.remedies.set_index("remedy").loc["no_straggler"]
    assert late["what"] == "rank 2 as fast as the others"
    assert late["gain_ns"] == pytest.approx(truth, rel=0.05)
    assert late["gain_low_ns"] <= truth <= late["gain_high_ns"]
