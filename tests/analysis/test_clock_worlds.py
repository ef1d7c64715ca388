"""Clocks that jump, bend, or are linked by messages alone: offsets are as right as they claim, nobody is accused."""

import numpy as np
import pytest
from builders import MS, US, Collective, Trace, analysed, traces_of
from hypothesis import given
from hypothesis import strategies as st
from samples import a_sample
from simulator.clock_worlds import KINDS, of_uneven_ends, simulated_with
from simulator.score import clock_errors

from commtrace import analyse
from commtrace.analysis.core.schema import records
from commtrace.analysis.metrics.clocks.frame import Bends

SEEDS = range(8)


@pytest.mark.quick_cases(
    "steady-2",
    "late ends-1",
    "late ends-2",
    "jumps-2",
    "jumps-6",
    "jumps-7",
    "warming-0",
    "warming-2",
    "warming-3",
    "warming-5",
    "warming-7",
)
@pytest.mark.parametrize(("kind", "seed"), a_sample([(kind, seed) for kind in KINDS for seed in SEEDS], 24))
def test_clocks_are_as_right_as_they_claim(tmp_path, kind, seed):
    made = simulated_with(kind, seed)
    made.write(tmp_path)
    errors = clock_errors(analyse(tmp_path, workers=1).clocks, made.truth)
    assert len(errors) == made.world.size - 1
    assert errors["time_covered"].all(), errors.to_string()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "named", "seed"),
    a_sample([(hosts, named, seed) for hosts in (1, 2) for named in (False, True) for seed in SEEDS], 8),
)
def test_ends_that_differ_by_kind_and_size_are_no_jump(tmp_path, hosts, named, seed):
    made = of_uneven_ends(seed, hosts, named=named)
    made.write(tmp_path)
    clocks = analyse(tmp_path, workers=1).clocks
    assert clocks["bends"].isna().all()
    errors = clock_errors(clocks, made.truth)
    assert errors["time_covered"].all(), errors.to_string()
    if hosts == 1 and named:
        assert (clocks["offset_ns"] == 0).all()
        assert (clocks["drift_ppm"] == 0).all()


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(-(10**7), 10**7), st.booleans()), min_size=1, max_size=9))
def test_bends_are_read_as_they_are_written(knots):
    at_ns = 1_759_300_074_000_000_000 + np.cumsum([apart for apart, _, _ in knots])
    jumps = np.array([jump for _, _, jump in knots])
    jumps[-1] = False
    bends = Bends(at_ns, np.array([by for _, by, _ in knots]), jumps)
    again = Bends.parsed(str(bends))
    for column in ("at_ns", "by_ns", "jumps"):
        assert (getattr(again, column) == getattr(bends, column)).all()
    assert (bends.added(at_ns) == bends.by_ns).all()
    assert not bends.unclear(at_ns).any()


def jumping(folder, moments, *, ranks=(2, 3), calls=40):
    """Two hosts of two ranks whose collectives begin and end together; clocks of `ranks` jump at (call, by) each."""
    starts = [k * MS for k in range(calls)]
    traces = traces_of(4, [Collective((start,) * 4, 100 * US) for start in starts])
    for rank, trace in enumerate(traces):
        trace.host = f"node{rank // 2}"
        for event in trace.events if rank in ranks else ():
            for call, by_ns in moments:
                if event["ts"] * 1000 >= (call - 0.5) * MS:
                    event["ts"] += by_ns / 1000
    return analysed(folder, *traces)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [
        [(20, 500 * US)],
        [(20, -500 * US)],
        [(8, 300 * US), (30, -300 * US)],
        [(10, 150 * US), (20, 150 * US), (30, 900 * US)],
    ],
    ids=str,
)
def test_a_clock_that_jumps_accuses_nobody(tmp_path, moments):
    found = jumping(tmp_path, moments)
    assert len(found.lateness) == 0
    assert found.participation["wait_ns"].max() <= 5 * US
    assert found.participation["wait_ns"].isna().sum() <= 4 * 3 * len(moments)
    assert found.clocks["bends"].notna().tolist() == [False, False, True, True]
    assert found.clocks["basis"].str.contains("jumps").tolist() == [False, False, True, True]
    because = found.verdicts["because"].dropna()
    assert not because.str.contains("cannot be compared").any()


def test_calls_that_become_longer_are_no_jump(tmp_path):
    traces = [Trace(rank, 2, groups={"0": [0, 1]}, device=rank, host=f"node{rank}") for rank in range(2)]
    for k in range(40):
        for rank, trace in enumerate(traces):
            later = 200 * US if rank and k >= 20 else 0
            trace.nccl("all_reduce", k * MS, 300 * US + later, elems=1000, Seq=k + 1)
    clocks = analysed(tmp_path, *traces).clocks
    assert clocks["bends"].isna().all()
    assert clocks["uncertainty_ns"].iloc[1] >= 200 * US


def test_three_calls_that_scatter_do_not_move_a_clock_of_the_same_host(tmp_path):
    traces = [Trace(rank, 2, groups={"0": [0, 1]}, device=rank, host="node") for rank in range(2)]
    for k, later in enumerate((30, 62, 96)):
        for rank, trace in enumerate(traces):
            trace.nccl("all_reduce", k * MS, 300 * US + rank * later * US, elems=1000, Seq=k + 1)
    clock = records(analysed(tmp_path, *traces).clocks)[1]
    assert clock["offset_ns"] == 0
    assert clock["uncertainty_ns"] >= 62 * US


def exchanged(folder, directions):
    """Two hosts that only exchange messages; the clock of rank 1 is 5 ms ahead, and every message takes 50 us."""
    ahead = (0, 5 * MS)
    traces = [Trace(rank, 2, groups={"0": [0, 1]}, device=rank, host=f"node{rank}") for rank in range(2)]
    for trace, by in zip(traces, ahead, strict=True):
        trace.step(1, by, len(directions) * MS)
    for k, source in enumerate(directions):
        target = 1 - source
        traces[source].nccl("send", k * MS + ahead[source], 50 * US, elems=64, **{"Dst Rank": target})
        traces[target].nccl("recv", k * MS + ahead[target], 50 * US, elems=64, **{"Src Rank": source})
    return analysed(folder, *traces)


def test_messages_in_both_directions_link_two_hosts(tmp_path):
    found = exchanged(tmp_path, [0, 1, 0, 1, 1, 0])
    clock = records(found.clocks)[1]
    assert clock["linked"] == 0
    assert abs(clock["offset_ns"] - 5 * MS) <= clock["uncertainty_ns"] < 100 * US
    assert found.participation["wait_ns"].notna().all()


def test_messages_in_one_direction_do_not_and_it_is_said(tmp_path):
    clock = records(exchanged(tmp_path, [0] * 6).clocks)[1]
    assert clock["linked"] == 1
    assert "one direction only" in clock["basis"]
