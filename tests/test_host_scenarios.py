"""Runs played again with other code: as the simulator runs them with that code."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from samples import a_sample
from simulator import Injection, Layout, Window, World, simulate
from simulator.ops import Comm, Kernel, Op
from simulator.programs import ddp, fsdp, moe, tp, tp_dp
from simulator.world import Place, Program

from analysis import analyse
from analysis.replay.scenarios.host import (
    no_allocation,
    no_blocking,
    no_copies,
    no_data_wait,
    no_launch_overhead,
    pinned_copies,
)
from analysis.replay.scenarios.scenario import Scenario, all_at_once
from analysis.results.analysis import Analysis

STEPS = tuple(range(1, 6))
PROGRAMS: dict[str, Program] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "moe": moe,
    "tp": partial(tp, layers=3),
    "tp and dp": tp_dp,
}
RANKS = {"moe": (2, 2), "tp and dp": (2, 2)}


def world(name: str, seed: int = 5) -> World:
    layout, window = Layout(events=True), Window(((1, 5),))
    return World(seed, PROGRAMS[name], *RANKS.get(name, (1, 4)), steps=7, layout=layout, window=window)


def with_all(calm: World, kind: str, us: float, *places: float) -> World:
    """On all ranks."""
    ranks = tuple(range(calm.size))
    return replace(calm, injections=tuple(Injection(kind, ranks, STEPS, us, at) for at in places))


def with_one(calm: World, kind: str, us: float, at: float) -> World:
    return replace(calm, injections=(Injection(kind, (1,), STEPS, us, at),))


def slow_to_launch(place: Place, *, of: Program, factor: float) -> list[Op]:
    """The same, of a CPU that is slower by this factor."""
    return [replace(op, cpu_us=op.cpu_us * factor) if isinstance(op, (Kernel, Comm)) else op for op in of(place)]


def analysed(made: World, folder: Path) -> Analysis:
    simulate(made).write(folder)
    return analyse(folder, details=True)


def step_ns(analysis: Analysis) -> float:
    return float(analysis.breakdown_steps["window_ns"].mean())


def assert_predicted(as_it_is: World, changed: World, scenario: Scenario, folder: Path) -> None:
    """Within 3 %, or inside an interval that is not wider than a fifth of the step."""
    found, true = analysed(as_it_is, folder / "is"), step_ns(analysed(changed, folder / "changed"))
    [row] = found.predict(scenario).to_dict("records")
    inside = row["low_ns"] <= true <= row["high_ns"] and row["high_ns"] - row["low_ns"] <= 0.2 * true
    assert inside or row["step_ns"] == pytest.approx(true, rel=0.03)


CHANGES = {
    "one item": (lambda w: with_all(w, "item", 2.0, 0.3), lambda w: w, no_blocking(operator="aten::item")),
    "items": (lambda w: with_all(w, "item", 2.0, 0.2, 0.4, 0.6, 0.8), lambda w: w, no_blocking(operator="aten::item")),
    "a device synchronised": (
        lambda w: with_one(w, "block", 3000.0, 0.4),
        lambda w: w,
        no_blocking(names=["cudaDeviceSynchronize"]),
    ),
    "an allocation": (lambda w: with_one(w, "alloc", 4000.0, 0.4), lambda w: w, no_allocation()),
    "data of all": (lambda w: with_all(w, "data", 9000.0, 0.0), lambda w: w, no_data_wait()),
    "data of one": (lambda w: with_one(w, "data", 9000.0, 0.0), lambda w: w, no_data_wait([1])),
    "copies": (lambda w: with_one(w, "copies", 3000.0, 0.4), lambda w: w, no_copies(["HtoD"])),
    "pageable copies": (
        lambda w: with_all(w, "pageable", 1500.0, 0.5),
        lambda w: with_all(w, "pinned", 1500.0, 0.5),
        pinned_copies(),
    ),
    "launches": (
        lambda w: replace(w, program=partial(slow_to_launch, of=w.program, factor=12.0)),
        lambda w: replace(w, program=partial(slow_to_launch, of=w.program, factor=0.01)),
        no_launch_overhead(),
    ),
}


@pytest.mark.parametrize(("change", "name"), a_sample([(c, n) for c in CHANGES for n in PROGRAMS], 6, seed=7))
def test_with_other_code_a_run_is_as_with_that_code(change: str, name: str, tmp_path: Path) -> None:
    before, after, scenario = CHANGES[change]
    assert_predicted(before(world(name)), after(world(name)), scenario, tmp_path)


def test_what_is_inside_something_else_is_taken_away_once(tmp_path: Path) -> None:
    """Without allocations and with everything launched in time is no faster than without the kernels' own time."""
    late = with_one(
        replace(world("tp"), program=partial(slow_to_launch, of=PROGRAMS["tp"], factor=12.0)), "alloc", 4e3, 0.4
    )
    fast = replace(world("tp"), program=partial(slow_to_launch, of=PROGRAMS["tp"], factor=0.01))
    both = all_at_once("both", [no_allocation(), no_launch_overhead(), no_allocation()])
    assert_predicted(late, fast, both, tmp_path)


def test_other_ranks_keep_what_they_have(tmp_path: Path) -> None:
    found = analysed(with_one(world("tp"), "data", 9000.0, 0.0), tmp_path)
    mine, others = found.predict(no_data_wait([1]), no_data_wait([0, 2, 3])).to_dict("records")
    assert mine["gain_frac"] > 0.3
    assert abs(others["gain_frac"]) < 0.01
