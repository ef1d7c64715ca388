"""What kernels take longer beside communication: planted in simulated runs, and traces built in memory."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from builders import US, Trace
from idle_runs import detailed
from samples import a_sample
from simulated_once import mean_step_ns, true_step_ns
from simulator import Hardware, Layout, Window, World, simulate
from simulator.ops import Comm, Op, Wait
from simulator.programs import ddp, everybody, fsdp, layer, load, optimizer
from simulator.world import Place

from commtrace import analyse
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.metrics.compute.contention import (
    DIFFERING,
    FASTER,
    NEVER_ALONE,
    TOO_FEW,
    WITHOUT_SHAPES,
    median_between,
)
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.opening import analyse_with
from commtrace.cli import main

SHAPES = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}


def world(seed: int) -> World:
    """Kernels that take a drawn time longer beside communication, in runs that reduce or gather."""
    rng = random.Random(seed)
    programs = [
        partial(ddp, layers=12, layer_us=rng.uniform(60, 160), buckets=(12 << 20, 60 << 20, 30 << 20)),
        partial(fsdp, layers=6, elems=rng.choice([24, 48]) << 20, layer_us=rng.uniform(60, 200)),
    ]
    return World(
        seed=seed,
        program=rng.choice(programs),
        gpus=rng.choice([2, 4]),
        steps=rng.choice([7, 12]),
        hardware=Hardware(contention=rng.uniform(1.0, 2.5)),
        layout=Layout(shapes=True),
        window=Window(cycles=((1, 5),)),
    )


@pytest.mark.slow
def test_planted_slowdowns_lie_inside_the_interval(tmp_path):
    """In 95 % of all rows, and every run has rows."""
    inside: list[bool] = []
    for seed in range(16):
        planted = world(seed)
        simulate(planted).write(tmp_path / str(seed))
        rows = [row for row in records(analyse(tmp_path / str(seed)).contention) if row["slowdown"] is not None]
        assert rows, seed
        inside += [row["slowdown_low"] <= planted.hardware.contention <= row["slowdown_high"] for row in rows]
    assert sum(inside) >= 0.95 * len(inside)


def test_extra_time_is_what_was_planted(tmp_path):
    planted = world(8)
    simulate(planted).write(tmp_path)
    found = analyse(tmp_path).contention.dropna(subset=["extra_ns"])
    slowdown = planted.hardware.contention
    assert found["extra_ns"].sum() == pytest.approx(found["paired_ns"].sum() * (1 - 1 / slowdown), rel=0.05)


@pytest.mark.slow
def test_tables_are_the_same_wherever_they_are_made(tmp_path):
    run, packed = tmp_path / "run", tmp_path / "packed"
    simulate(world(3)).write(run)
    assert main(["pack", "--output", str(packed), str(run)]) == 0
    spread = ReadOptions(details=True, workers=1, sizes=ReadSizes(ranks_bytes=0))
    for name in ("contention", "contention_kernels"):
        whole = as_csv(name, analyse(run).table(name))
        assert whole.count("\n") > 2
        assert as_csv(name, analyse_with(run, spread).table(name)) == whole
        assert as_csv(name, analyse(packed).table(name)) == whole


# What overlap gains


def half_hidden(place: Place, *, layers: int, layer_us: float, elems: int, hide: bool) -> list[Op]:
    """All_reduces of which every second one is waited for at once, unless all are to be hidden."""
    ops: list[Op] = [load()]
    for nth in range(layers):
        ops += [*layer(layer_us), Comm("all_reduce", everybody(place), elems, "Float", work=f"{nth}")]
        ops += [Wait(f"{nth}")] if nth % 2 and not hide else []
        ops += layer(layer_us)
    ops += layer(layer_us) * 3
    return [*ops, *(Wait(f"{nth}") for nth in range(layers) if hide or not nth % 2), *optimizer(layer_us)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", a_sample(range(6), 1))
def test_overlap_gains_no_more_than_the_run_simulated_again(tmp_path, seed):
    """Beside compute, the transfers that are hidden slow it down."""
    rng = random.Random(seed)
    program = partial(half_hidden, layers=8, layer_us=rng.uniform(250, 500), elems=rng.choice([4, 8, 16]) << 20)
    exposed = replace(world(seed), program=partial(program, hide=False), steps=7, gpus=4)
    simulate(exposed).write(tmp_path / "exposed")
    found = analyse(tmp_path / "exposed")
    hidden_ns = true_step_ns(replace(exposed, program=partial(program, hide=True)))
    (row,) = (row for row in records(found.remedies) if row["remedy"] == "overlap")
    gain_ns, low, high = row["gain_ns"], row["gain_low_ns"], row["gain_high_ns"]
    true_ns = mean_step_ns(found) - hidden_ns
    assert 0.85 * true_ns <= gain_ns <= true_ns
    assert low <= gain_ns <= high
    assert low <= true_ns


def test_what_hiding_gains_is_net_of_what_it_costs(tmp_path):
    """The same number in all tables: hidden time over the slowdown that was planted."""
    planted = world(8)
    simulate(planted).write(tmp_path)
    found = analyse(tmp_path)
    slowdown = planted.hardware.contention
    for table in (found.kernels, found.operators, found.kernels_devices):
        comm = table[table["kind"] == "comm"]
        assert comm["hidden_ns"].sum() > 0
        assert comm["hidden_net_ns"].sum() == pytest.approx(comm["hidden_ns"].sum() / slowdown, rel=0.05)
        assert table[table["kind"] == "compute"]["hidden_net_ns"].isna().all()
    assert found.hiding is not None
    assert found.hiding.net_ns == pytest.approx(found.hiding.hidden_ns / slowdown, rel=0.05)


@pytest.mark.slow
def test_nothing_is_claimed_where_contention_is_not_known(tmp_path):
    """Without shapes there is no net, no sentence; and overlap may gain less, down to what slow compute leaves."""
    rng = random.Random(1)
    program = partial(half_hidden, layers=8, layer_us=rng.uniform(250, 500), elems=8 << 20, hide=False)
    planted = replace(world(1), program=program, steps=7, gpus=4, layout=Layout(shapes=False))
    simulate(planted).write(tmp_path)
    found = analyse(tmp_path)
    comm = found.kernels[found.kernels["kind"] == "comm"]
    assert comm["hidden_net_ns"][comm["hidden_ns"] > 0].isna().all()
    assert found.hiding is None
    assert "slows compute" not in found.summary()
    hidden_ns = true_step_ns(replace(planted, program=partial(program, hide=True)))
    (row,) = (row for row in records(found.remedies) if row["remedy"] == "overlap")
    assert row["gain_low_ns"] <= mean_step_ns(found) - hidden_ns <= row["gain_high_ns"]


# Traces built in memory


def trace(
    alone_us: Sequence[float], beside_us: Sequence[float], *, rank: int = 0, world: int = 2, shapes: bool = True
) -> Trace:
    """Kernels of these times before an all_gather, and beside it."""
    made, at = Trace(rank=rank, world=world), 100 * US
    for took_us in (*alone_us, None, *beside_us):
        if took_us is None:
            made.nccl("all_gather", at, int(sum(beside_us) + 40) * US + 1)
            at += 10 * US
            continue
        made.event("cpu_op", "aten::mm", at - 60 * US, 4 * US, **(SHAPES if shapes else {}))
        made.kernel("gemm", at, round(took_us * US), launch=at - 58 * US)
        at += round(took_us * US)
    return made


def of(folder: Path, *traces: Trace) -> dict[int, Row]:
    """The rows of a run by rank, which has one each."""
    rows = records(detailed(folder, *traces).contention)
    assert len({row["rank"] for row in rows}) == len(rows)
    return {row["rank"]: row for row in rows}


def test_a_kernel_beside_communication_and_alone(tmp_path):
    row = of(tmp_path, trace([10.001, 10.101, 10.201, 10.001], [15.101, 15.201, 15.001]))[0]
    assert (row["alone_calls"], row["beside_calls"], row["pooled"], row["note"]) == (4, 3, False, None)
    assert row["slowdown"] == pytest.approx(15.101 / 10.051)
    assert row["slowdown_low"] < row["slowdown"] < row["slowdown_high"] < 1.1 * row["slowdown"]
    assert row["extra_ns"] == 45_303 - 3 * 10_051
    assert (row["beside_ns"], row["paired_ns"]) == (45_303, 45_303)


@pytest.mark.parametrize(
    ("alone", "beside", "shapes", "why"),
    [
        ([10.1, 10.1, 10.1], [15.1, 15.1, 15.1], False, WITHOUT_SHAPES),
        ([10.1, 10.1], [15.1, 15.1, 15.1], True, NEVER_ALONE),
        ([10.1, 10.1, 10.1], [15.1, 15.1], True, TOO_FEW),
        ([10.1, 20.1, 30.1], [15.1, 15.1, 15.1], True, DIFFERING),
        ([10.1, 10.1, 10.1], [5.1, 5.1, 5.1], True, FASTER),
    ],
)
def test_what_cannot_be_known_is_na_with_the_reason(tmp_path, alone, beside, shapes, why):
    row = of(tmp_path, trace(alone, beside, shapes=shapes))[0]
    assert row["note"] == why
    assert {row[name] for name in ("extra_ns", "slowdown", "slowdown_low", "slowdown_high", "pooled")} == {None}
    assert (row["beside_ns"], row["paired_ns"]) == (round(sum(beside) * US), 0)


def test_another_rank_stands_for_one_that_never_runs_alone_at_the_speed_of_that(tmp_path):
    """Rank 1 takes 1.2 times as long at a kernel that nothing is beside, so 12 us where rank 0 takes 10."""
    ranks = [trace([10.0, 10.0, 10.0], [15.0, 15.0, 15.0]), trace([], [24.0, 24.0, 24.0], rank=1)]
    for made, took in zip(ranks, (20.001, 24.0012), strict=True):
        for nth in range(3):
            at = (1000 + 50 * nth) * US
            made.event("cpu_op", "aten::mul", at - 20 * US, 4 * US, **SHAPES)
            made.kernel("mul", at, round(took * US), launch=at - 18 * US)
    rows = of(tmp_path, *ranks)
    assert [rows[rank]["pooled"] for rank in (0, 1)] == [False, True]
    assert rows[1]["slowdown"] == pytest.approx(24 / (10 * 24.0012 / 20.001), rel=1e-3)
    assert rows[1]["alone_calls"] == 3


def test_a_rank_that_overlaps_more_is_not_called_slow(tmp_path):
    """Rank 1 runs all of it beside an all_gather, rank 0 half of it, and neither is slower at either."""
    usual, beside = [10.1] * 4, [20.1] * 4
    of_ranks = (usual, beside), ([], [*beside, *beside]), (usual, [])
    found = detailed(tmp_path, *(trace(*times, rank=rank, world=3) for rank, times in enumerate(of_ranks)))
    (row,) = records(found.shapes)
    assert (row["ranks"], row["slowest_over_frac"]) == (3, 0.0)
    assert {row["over_frac"] for row in records(found.shapes_ranks)} == {0.0}


def test_whole_microseconds_may_be_off_by_one(tmp_path):
    row = of(tmp_path, trace([10, 10, 10], [15, 15, 15]))[0]
    assert row["slowdown"] == 1.5
    assert (row["slowdown_low"] < 1.4, row["slowdown_high"] > 1.6) == (True, True)


@pytest.mark.parametrize("count", [3, 5, 8, 20, 64])
def test_intervals_of_a_median_hold_it_in_99_of_100(count):
    draws = np.sort(np.exp(np.random.default_rng(count).normal(0, 0.1, (4000, count))), axis=1)
    held = [low <= 1 <= high for low, _, high in map(median_between, draws)]
    assert sum(held) >= 0.985 * len(held)


def test_the_command(tmp_path, capsys):
    trace([10.1, 10.1, 10.1], [15.1, 15.1, 15.1]).write(tmp_path)
    assert main(["table", "contention", "--by", "kernel", "-f", "csv", str(tmp_path)]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["kernel"], row["inputs"], row["collective"]) == ("gemm", "64x64 64x64", "all_gather")
    trace([10.1, 10.1, 10.1], []).write(tmp_path / "calm")
    assert main(["table", "contention", str(tmp_path / "calm")]) == 0
    assert "no kernel computes while its device communicates" in capsys.readouterr().out


# Counters


def sampled(
    memory: Sequence[float], *, busy: float = 90, beside_us: Sequence[float] = (15.1, 15.2, 15.3, 15.1), rank: int = 0
) -> Trace:
    """Kernels before an all_gather and beside it, with so many samples of the memory there, and others elsewhere."""
    made, at = trace([10.1, 10.2, 10.3, 10.1], beside_us, rank=rank), 150 * US + 701  # one sample in 100 ns
    for percent in memory:
        made.counter("DRAM BW (%)", at := at + 100, percent).counter("SM Active (%)", at, busy)
        made.counter("SM Clock (MHz)", at, 1980)
    for elsewhere in (110 * US, 5 * US, 900 * US):  # alone, and while nothing runs
        made.counter("DRAM BW (%)", elsewhere, 1)
    return made


@pytest.mark.parametrize(
    ("memory", "shared"),
    [
        ([75, 75, 75], "memory bandwidth"), ([90, 80, 60, 95], "memory bandwidth"), ([60, 70, 80], None),
        ([50, 50, 50], "multiprocessors"), ([10, 0, 30], "multiprocessors"), ([51, 50, 50], None), ([74, 75, 75], None),
    ],
)  # fmt: skip
def test_counters_say_what_both_need(memory, shared, tmp_path):
    row = of(tmp_path, sampled(memory))[0]
    assert row["memory_frac"] == pytest.approx(np.mean(memory) / 100)
    assert row["sm_active_frac"] == pytest.approx(0.9)
    assert row["shared"] == shared


def test_multiprocessors_that_have_nothing_to_do_are_not_missing(tmp_path):
    row = of(tmp_path, sampled([10, 20, 10], busy=40))[0]
    assert (row["sm_active_frac"], row["shared"]) == (pytest.approx(0.4), None)


def test_two_samples_are_too_few(tmp_path):
    row = of(tmp_path, sampled([90, 90]))[0]
    assert {row[name] for name in ("memory_frac", "sm_active_frac", "shared")} == {None}


def test_nothing_is_shared_where_nothing_is_slower(tmp_path):
    row = of(tmp_path, sampled([90, 90, 90], beside_us=(10.1, 10.3, 10.2, 10.1)))[0]
    assert row["slowdown_low"] <= 1
    assert (row["memory_frac"], row["shared"]) == (pytest.approx(0.9), None)


def test_each_rank_has_its_own_counters_wherever_they_are_read(tmp_path):
    for one in (sampled([90, 90, 90]), sampled([20, 20, 20], rank=1)):
        one.write(tmp_path)
    spread = ReadOptions(details=True, workers=1, sizes=ReadSizes(ranks_bytes=0))
    for found in (analyse(tmp_path), analyse_with(tmp_path, spread)):
        assert found.contention["shared"].tolist() == ["memory bandwidth", "multiprocessors"]
