"""Runs of which the trace of a rank is missing: what is said of them must hold whatever that rank did."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from simulator import Injection, Window, World, simulate
from simulator.programs import tp
from test_link_predictions import with_change

from commtrace import analyse
from commtrace.analysis.results.analysis import Analysis

CALM = World(7, partial(tp, layers=3), 1, 4, steps=6, window=Window(((1, 4),)))
UNSEEN = 2
STEPS = tuple(range(6))


def seen(world: World, folder: Path) -> Analysis:
    """The run without the trace of one rank."""
    simulate(world).write(folder)[UNSEEN].unlink()
    return analyse(folder, details=True)


def step_ns(analysis: Analysis) -> float:
    return float(analysis.breakdown_steps["window_ns"].mean())


@pytest.mark.parametrize("late", [(), (UNSEEN,), (0,)])
def test_faster_links_gain_between_nothing_and_all_transfers(late: tuple[int, ...], tmp_path: Path) -> None:
    """The calls may have waited for the unseen rank, which faster links do not change."""
    injections = (Injection("slower", late, STEPS, 2000.0, 0.4),) if late else ()
    world = replace(CALM, injections=injections)
    run = seen(world, tmp_path / "as it is")
    faster = replace(world, hardware=with_change(world.hardware, links=2))
    true = step_ns(seen(faster, tmp_path / "faster"))
    [row] = run.predict({"links": 2}).to_dict("records")
    assert row["low_ns"] - 0.001 * true <= true <= row["high_ns"] + 0.001 * true


@pytest.mark.parametrize("kind", ["kernel", "copies"])
def test_a_late_rank_is_named_and_may_not_be_all(kind: str, tmp_path: Path) -> None:
    """What a step gains without it is certain only if the unseen rank is not late as well."""
    one = (Injection(kind, (0,), STEPS, 2000.0, 0.4),)
    both = (*one, Injection(kind, (UNSEEN,), STEPS, 2000.0, 0.4))
    for name, injections, left in (("one", one, ()), ("both", both, both[1:])):
        run = seen(replace(CALM, injections=injections), tmp_path / name)
        without = seen(replace(CALM, injections=left), tmp_path / f"without {name}")
        true = step_ns(run) - step_ns(without)
        assert run.prices is not None
        assert run.prices.late is not None
        assert run.prices.late.ranks == (0,)
        gain = run.prices.gains["no_straggler"]
        assert gain.low_ns <= true <= gain.high_ns
