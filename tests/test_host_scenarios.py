"""Runs played again with other code: as the simulator runs them with that code."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from builders import MS, Trace
from given_runs import analysis_of_run
from samples import a_sample
from simulated_once import true_step_ns
from simulator import Injection, Layout, Window, World, simulate
from simulator.ops import Comm, Kernel, Op
from simulator.programs import LOADER, ddp, fsdp, moe, tp, tp_dp
from simulator.world import Place, Program

from commtrace import analyse, cli
from commtrace.analysis.replay.scenarios.host import (
    no_allocation,
    no_blocking,
    no_copies,
    no_data_wait,
    no_launch_overhead,
    no_pauses,
    pinned_copies,
)
from commtrace.analysis.replay.scenarios.scenario import Scenario, all_at_once
from commtrace.analysis.results.analysis import Analysis

DATA = Path(__file__).parent / "data"
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


def assert_predicted(as_it_is: World, changed: World, scenario: Scenario, folder: Path) -> None:
    """Within 3 %, or inside an interval that is not wider than a quarter of the step."""
    found, true = analysed(as_it_is, folder), true_step_ns(changed)
    [row] = found.predict(scenario).to_dict("records")
    inside = row["low_ns"] <= true <= row["high_ns"] and row["high_ns"] - row["low_ns"] <= 0.25 * true
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
    "pauses": (lambda w: with_all(w, "python", 3000.0, 0.4), lambda w: w, no_pauses()),
    "a long operator of one": (lambda w: with_one(w, "op", 3000.0, 0.4), lambda w: w, no_pauses([1])),
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


@pytest.mark.slow
@pytest.mark.parametrize(("change", "name"), a_sample([(c, n) for c in CHANGES for n in PROGRAMS], 6, seed=7))
def test_with_other_code_a_run_is_as_with_that_code(change: str, name: str, tmp_path: Path) -> None:
    before, after, scenario = CHANGES[change]
    assert_predicted(before(world(name)), after(world(name)), scenario, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("option", "name"), [("no_reshard", "reshard"), ("separate_gathers", "beside")])
@pytest.mark.parametrize(
    ("elems", "us"), a_sample([(e, us) for e in (6 << 20, 24 << 20, 64 << 20) for us in (100.0, 400.0)], 1)
)
def test_sharded_in_another_way(option: str, name: str, elems: int, us: float, tmp_path: Path) -> None:
    before = world("fsdp")
    program = partial(fsdp, elems=elems, layer_us=us)
    found = analysed(replace(before, program=program), tmp_path)
    changed = replace(before, program=partial(program, **{name: option != "no_reshard"}))
    true = true_step_ns(changed)
    [row] = found.predict({option: True}).to_dict("records")
    assert row["step_ns"] == pytest.approx(true, rel=0.02)


@pytest.mark.quick_cases("--no-reshard")
@pytest.mark.parametrize("option", ["--no-reshard", "--separate-gathers"])
def test_what_is_not_sharded(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", option, str(DATA / "nccl-straggler")]) == 1
    assert "as FSDP does" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_inside_something_else_is_taken_away_once(tmp_path: Path) -> None:
    """Without allocations and with everything launched in time is no faster than without the kernels' own time."""
    late = with_one(
        replace(world("tp"), program=partial(slow_to_launch, of=PROGRAMS["tp"], factor=12.0)), "alloc", 4e3, 0.4
    )
    fast = replace(world("tp"), program=partial(slow_to_launch, of=PROGRAMS["tp"], factor=0.01))
    both = all_at_once("both", [no_allocation(), no_launch_overhead(), no_allocation()])
    assert_predicted(late, fast, both, tmp_path)


@pytest.mark.slow
def test_other_ranks_keep_what_they_have(tmp_path: Path) -> None:
    found = analysed(with_one(world("tp"), "data", 9000.0, 0.0), tmp_path)
    mine, others = found.predict(no_data_wait([1]), no_data_wait([0, 2, 3])).to_dict("records")
    assert mine["gain_frac"] > 0.3
    assert abs(others["gain_frac"]) < 0.01


def test_garbage_is_not_collected() -> None:
    """A pause of 300 of 1,000 ns, before the second kernel is launched."""
    found = analysis_of_run({
        "annotations": [
            {"name": "ProfilerStep#1", "start_ns": 0, "dur_ns": 1_500},
            {"name": "ProfilerStep#2", "start_ns": 1_500, "dur_ns": 1_500},
            *({"name": "Python GC", "start_ns": begin + 200, "dur_ns": 300} for begin in (0, 1_500)),
        ],
        "activities": [
            {"name": "gemm", "kind": "compute", "issue_ns": begin + at, "start_ns": begin + at + 10, "dur_ns": 90}
            for begin in (0, 1_500)
            for at in (50, 600)
        ],
    })  # fmt: skip
    [row] = found.predict({"no_gc": True}).to_dict("records")
    assert row["gain_ns"] == 300


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--no-gc", "show no garbage collection; with torch 2.9 or later, `commtrace run --with-stack`"),
        ("--no-allocation", "no call of the runtime in these traces allocates"),
        ("--pinned-copies", "show no copy from pageable memory"),
        ("--no-copies=DtoH", "show no copies DtoH"),
    ],
)
def test_what_a_trace_does_not_show_is_not_predicted(
    option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["predict", option, str(DATA / "nccl-straggler")]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--no-sync=all", "without a GPU nothing waits for a device; give an operator"),
        ("--no-sync=aten::nothing", "without a GPU nothing waits for a device; give an operator"),
        ("--no-copies=HtoD", "show no copies HtoD"),
        ("--no-copies=all", "show no operators that only copy"),
        ("--no-allocation", "show no calls of the runtime"),
    ],
)
def test_what_a_run_without_a_gpu_does_not_show(
    option: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on_cpu(tmp_path, "aten::clone" if "HtoD" in option else "aten::mm")
    assert cli.main(["predict", option, str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


def on_cpu(folder: Path, operator: str) -> None:
    """Two ranks, one of which comes 40 ms later to an all_reduce; then an operator of 20 ms, 40 ms of work, and 40 more
    on the other rank, before another all_reduce."""
    for rank in (0, 1):
        trace = Trace(rank, 2, backend="gloo")
        for step in range(3):
            begin = step * 200 * MS
            first, reduced = begin + (10 + 40 * rank) * MS, begin + 50 * MS + MS // 2
            trace.step(step, begin, 200 * MS).op("aten::mm", begin, first - begin)
            trace.c10d("allreduce_", first).gloo("all_reduce", first + MS // 10, reduced - first)
            last = reduced + (60 + 40 * (1 - rank)) * MS
            trace.op(operator, reduced + MS // 4, 20 * MS).op("aten::mm", reduced + 21 * MS, last - reduced - 21 * MS)
            trace.c10d("allreduce_", last).gloo("all_reduce", last + MS // 10, begin + 152 * MS - last)
            trace.op("aten::add", begin + 153 * MS, 47 * MS)
        trace.write(folder, f"x{rank}.json")


@pytest.mark.slow
def test_copies_on_cpus(tmp_path: Path) -> None:
    on_cpu(tmp_path, "aten::copy_")
    [row] = analyse(tmp_path, details=True).predict({"no_copies": "all"}).to_dict("records")
    assert row["gain_ns"] == pytest.approx(20 * MS, rel=0.02)


def test_a_value_read_on_cpus(tmp_path: Path) -> None:
    """The late rank has less to do afterwards: without waiting for each other in between, both take 40 ms less."""
    on_cpu(tmp_path, "aten::item")
    [row] = analyse(tmp_path, details=True).predict({"no_sync": "aten::item"}).to_dict("records")
    assert row["gain_ns"] == pytest.approx(40 * MS, rel=0.02)


@pytest.mark.parametrize("option", ["--no-sync=aten::nothing", "--no-copies=everything"])
def test_what_makes_no_sense_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", option, str(DATA / "nccl-straggler")]) == 2
    assert "error: 'aten::nothing' is neither" in (err := capsys.readouterr().err) or "'everything' is no kind" in err


def test_a_batch_that_every_step_begins_with(tmp_path: Path) -> None:
    """A CPU that waits 40 ms for a batch before anything else: its gain is that of all steps, also the first."""
    for rank in range(2):
        trace, now = Trace(rank, 2, backend="gloo"), 0
        for step in range(4):
            wait, late = (MS // 10, 40 * MS - MS // 10) if rank == 0 else (40 * MS, 0)
            arrived = now + wait + 16 * MS
            done = arrived + late + 2 * MS
            trace.step(step, now, done + MS).annotation(LOADER, now, wait).op("aten::mm", now + wait, 15 * MS)
            trace.c10d("allreduce_", arrived).gloo("all_reduce", arrived, done - arrived)
            trace.op("aten::add_", done, MS)
            now = done + MS
        trace.write(tmp_path, f"x{rank}.json")
    [row] = analyse(tmp_path, details=True).predict({"no_data_wait": True}).to_dict("records")
    assert row["gain_ns"] == pytest.approx(40 * MS, rel=0.01)


def test_a_slow_loader_on_cpus(tmp_path: Path) -> None:
    """A CPU that needs 40 ms for a batch, and 100 for its work: what it waits for is gone, but for 0.1 ms."""
    trace = Trace(0, 1, backend="gloo")
    for step in range(3):
        begin = step * 150 * MS
        trace.step(step, begin, 150 * MS).annotation(LOADER, begin + 5 * MS, 40 * MS)
        trace.op("aten::mm", begin, 4 * MS).op("aten::mm", begin + 50 * MS, 98 * MS)
        trace.c10d("allreduce_", begin + 148 * MS).gloo("all_reduce", begin + 149 * MS, MS // 2)
    trace.write(tmp_path, "x0.json")
    [row] = analyse(tmp_path, details=True).predict({"no_data_wait": True}).to_dict("records")
    assert row["gain_ns"] == pytest.approx(40 * MS, rel=0.05)
