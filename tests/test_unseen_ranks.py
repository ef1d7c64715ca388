"""Runs of which the trace of a rank is missing: what is said of them must hold whatever that rank did."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from builders import MS, US, Collective, traces_of
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_waits_for_a_late_rank_unseen_waits_no_longer_without_it(tmp_path: Path) -> None:
    """The others' last kernel begins when the late rank has computed, as where a stream waits for a peer's memory."""
    late_ns, usual_ns, length_ns = 30 * MS, 10 * MS, 50 * MS
    begins = [step * length_ns for step in range(4)]
    arrivals = [late_ns + 3 * MS, *[late_ns + 2 * MS] * 3]
    traces = traces_of(
        4,
        [
            Collective([begin + after for after in arrivals], 5 * MS, args={"launch": begin + 2 * MS})
            for begin in begins
        ],
    )
    for trace in traces:
        for step, begin in enumerate(begins):
            trace.step(step, begin, begin + late_ns + 8 * MS)
            each_ns = (late_ns if trace.rank == 0 else usual_ns) // 5
            for number in range(5):
                trace.kernel("gemm", begin + number * each_ns, each_ns, launch=begin + number * 10 * US)
            trace.kernel("add", begin + late_ns, arrivals[trace.rank] - late_ns, launch=begin + MS)
        trace.write(tmp_path, f"x{trace.rank}.json")
    found = analyse(tmp_path, details=True)
    prices = found.prices
    assert prices is not None
    assert prices.late is not None
    assert prices.late.ranks == (0,)
    gain = prices.gains["no_straggler"]
    assert gain.ns == pytest.approx(late_ns + arrivals[0] - arrivals[1] - usual_ns)
    assert gain.low_ns < 2 * MS  # each of the others may as well have a delay of its own
