"""Whom a verdict names: one rank, several, a host, or nobody, and for how much of all waiting."""

from pathlib import Path

import pandas as pd
import pytest
from builders import MS, Collective, analysed, traces_of
from simulator import Injection, Window, World, simulate
from simulator.programs import ddp

from commtrace import analyse
from commtrace.analysis.metrics.causes.blame import as_late, blamed, for_whom, standing_out
from commtrace.analysis.metrics.causes.late import tail
from commtrace.analysis.metrics.verdicts.doing import only_step
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.tables.lateness import explained_lateness, kernel_times, members_issued, members_ready
from commtrace.analysis.tables.participation import members

EVERY = 40 * MS


def run_of(folder: Path, late: list[dict[int, int]], *, world: int = 8, hosts: int = 1) -> Analysis:
    """Ranks that compute 5 ms in every step, and longer by what `late` says of it, before an all_reduce of 1 ms."""
    truth = [
        Collective([k * EVERY + 6 * MS + more.get(rank, 0) for rank in range(world)], 1 * MS)
        for k, more in enumerate(late)
    ]
    traces = traces_of(world, truth)
    for rank, trace in enumerate(traces):
        trace.host = f"node{rank * hosts // world}"
        for k, more in enumerate(late):
            trace.step(k, k * EVERY, (k + 1) * EVERY)
            trace.kernel("gemm", k * EVERY + 1 * MS, 5 * MS + more.get(rank, 0))
    return analysed(folder, *traces)


def sentence(found: Analysis) -> str:
    return str(found.verdicts.iloc[0]["because"])


@pytest.mark.slow
def test_shares_are_of_all_waiting_and_the_rest_is_said(tmp_path: Path) -> None:
    found = run_of(tmp_path, [{2: 8 * MS}] * 6)
    shares = found.ranks.set_index("rank")["caused_wait_frac"]
    assert shares[2] == 1
    assert shares.drop(2).tolist() == [0] * 7
    assert "100% of it for rank 2, which computes 8.0 ms per step longer than the others, mostly in gemm" in sentence(
        found
    )
    assert "not explained" not in sentence(found)


@pytest.mark.slow
def test_two_culprits_are_both_named(tmp_path: Path) -> None:
    # Of eight steps, the last does not count: its window ends with its last activity.
    text = sentence(run_of(tmp_path, [{1: 8 * MS}, {5: 7 * MS}] * 4))
    assert "100% of it for 2 ranks: rank 1 (60%), rank 5 (40%), the first computes" in text


@pytest.mark.slow
def test_who_comes_nearly_as_late_as_the_last_is_named_beside_it(tmp_path: Path) -> None:
    found = run_of(tmp_path, [{1: 8 * MS, 4: 8 * MS - MS // 10, 6: 5 * MS}] * 6)
    assert "for rank 1 and rank 4 (nearly as late), the first computes 8.0 ms per step longer" in sentence(found)
    assert "rank 1 and rank 4 (nearly as late):" in found.summary()


@pytest.mark.slow
def test_where_all_are_late_in_turn_nobody_is_named(tmp_path: Path) -> None:
    text = sentence(run_of(tmp_path, [{k % 8: 8 * MS} for k in range(16)]))
    assert "jitter, all are late in turn, no rank for more than 13% of it" in text
    assert "for rank" not in text


@pytest.mark.slow
def test_a_slow_host_is_named_as_a_host(tmp_path: Path) -> None:
    late = [{rank: 8 * MS + (rank * 7 + k) % 4 * MS // 20 for rank in range(4, 8)} for k in range(12)]
    found = run_of(tmp_path, late, hosts=2)
    table = found.hosts.set_index("host")
    assert table.index.tolist() == ["node0", "node1"]
    assert table["ranks"].tolist() == ["0 1 2 3", "4 5 6 7"]
    assert table.loc["node1", "caused_wait_frac"] > 0.95
    assert table["times_last"].tolist() == [0, found.breakdown["steps"].max()]
    assert "for host node1 (4 ranks, all of them late), whose ranks compute" in sentence(found)


@pytest.mark.slow
def test_one_slow_rank_is_no_slow_host(tmp_path: Path) -> None:
    text = sentence(run_of(tmp_path, [{6: 8 * MS}] * 6, hosts=2))
    assert "for rank 6" in text
    assert "for host" not in text


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ([0.9, 0.05, 0.05], [0]),
        ([0.5, 0.5], []),
        ([0.95, 0.05], [0]),
        ([0.125] * 8, []),
        ([0.45, 0.45, 0.05, 0.05], [0, 1]),
        ([0.08] + [0.0] * 7, []),
        ([1.0], [0]),
    ],
)
def test_who_stands_out(shares: list[float], named: list[int]) -> None:
    assert standing_out(pd.Series(shares)) == named


@pytest.mark.parametrize(
    ("times", "total", "chance", "expected"),
    [(0, 5, 0.5, 1.0), (5, 5, 0.5, 1 / 32), (4, 5, 0.5, 6 / 32), (2, 2, 0.125, 1 / 64), (3, 2, 0.5, 0.0)],
)
def test_the_tail_of_a_binomial_distribution(times: int, total: int, chance: float, expected: float) -> None:
    assert tail(times, total, chance) == pytest.approx(expected)


def test_the_chance_of_being_last_every_time_is_next_to_nothing() -> None:
    assert 0 < tail(192, 192, 1 / 8) < 1e-170


def _late_in_the_second_step(folder: Path, begins_late: int) -> str:
    """Rank 2 computes 9 ms longer in step 1, and begins the traced steps late; what the verdict says of it."""
    arrivals = [begins_late + 5 * MS, EVERY + 14 * MS, 2 * EVERY + 5 * MS, 3 * EVERY + 5 * MS]
    truth = [
        Collective([at if rank == 2 else step * EVERY + 5 * MS for rank in range(4)], MS)
        for step, at in enumerate(arrivals)
    ]
    traces = traces_of(4, truth, host="node")
    for rank, trace in enumerate(traces):
        for step in range(4):
            begin = step * EVERY + (begins_late if rank == 2 and step == 0 else 0)
            trace.step(step, begin, (step + 1) * EVERY)
            trace.kernel("gemm", begin, (13 if rank == 2 and step == 1 else 4) * MS)
    return sentence(analysed(folder, *traces))


@pytest.mark.slow
def test_a_rank_late_in_one_step_is_late_in_that_alone(tmp_path: Path) -> None:
    assert "in step 1 alone" in _late_in_the_second_step(tmp_path, 0)


@pytest.mark.slow
def test_if_it_begins_late_as_well_that_step_is_not_the_only_one(tmp_path: Path) -> None:
    said = _late_in_the_second_step(tmp_path, 4 * MS)
    assert "in step 1" in said
    assert "alone" not in said


def test_ranks_that_come_with_a_late_one_are_late_as_well(tmp_path: Path) -> None:
    """Ranks 1 and 4 come last in turn, a little apart: without one of them, the others wait for the other one."""
    late = [{1: 9 * MS, 4: 10 * MS}, {1: 10 * MS, 4: 9 * MS}] * 2
    participation = run_of(tmp_path, late, world=6).participation
    assert as_late(participation, [4]) == {1}
    assert as_late(participation, [1, 4]) == set()
    assert as_late(participation, []) == set()


def test_late_ranks_that_wait_for_each_other_are_no_others() -> None:
    """Two stages of two ranks: the late ones wait 6 ms for each other, and the others 2 and 4 ms for one of them."""
    waits = [(0, 0, 3, 2 * MS), (1, 1, 2, 4 * MS), (2, 2, 3, 6 * MS), (3, 3, 2, 6 * MS), (4, 0, 1, 2 * MS)]
    participation = pd.DataFrame(
        [
            {"call_id": call, "batch": pd.NA, "collective_id": call, "rank": rank, "waited_for": other,
             "wait_ns": ns, "exposed_wait_ns": ns}
            for call, rank, other, ns in waits
        ]
    ).astype({"batch": "Int64"})  # fmt: skip
    lateness = pd.DataFrame(
        {"collective_id": range(4), "rank": [3, 2, 3, 2], "because": "compute", "origin_rank": [3, 2, 3, 2]}
    )
    # Two kernels of rank 0 wait at the same time: half of its 2 ms is for nobody that is known.
    exposed_ns = {0: 2.0 * MS, 1: 4.0 * MS, 2: 6.0 * MS, 3: 6.0 * MS}
    found = for_whom(blamed(participation, lateness), exposed_ns)
    assert found.others_ns({2, 3}) == (1 + 4) / 2 * MS <= max(exposed_ns[0], exposed_ns[1])
    assert found.others_ns({3}) == (1 + 0 + 6) / 3 * MS
    assert found.others_ns(()) == 0
    assert found.known_ns == (1 + 4 + 6 + 6) / 4 * MS


def test_a_late_rank_for_which_nobody_is_known_to_wait(tmp_path: Path) -> None:
    """It is late as in the other steps; how long others wait for it there is in no sum."""
    found = run_of(tmp_path, [{1: 8 * MS}] * 4, world=3)
    waits = found.of(members)
    [unknown, *others] = sorted(waits["collective_id"].unique())
    lacking = waits.assign(wait_ns=waits["wait_ns"].mask(waits["collective_id"] == unknown))
    tables = {"collectives": found.collectives, "clocks": found.clocks}
    issued = members_issued(found.calls, found.collectives, lacking)
    made = explained_lateness(
        found.of(kernel_times),
        issued,
        found.of(members_ready),
        **tables,
        members=lacking,
        detailed=found.detailed,
    )
    caused = {row["collective_id"]: row["caused_wait_ns"] for row in made.rows}
    assert pd.isna(caused[unknown])
    assert {caused[each] for each in others} == {2 * 8 * MS}
    assert sum(each.weight_ns for each in made.behind) == len(others) * 2 * 8 * MS


@pytest.mark.slow
def test_of_a_rank_with_one_step_nobody_knows_whether_it_is_late_in_that_alone(tmp_path: Path) -> None:
    """Rank 2 has only the second of the two steps in its trace, and computes 0.5 ms longer in it."""
    window = Window(((4, 5),), shifts=((0, 0), (0, 0), (1, 0), (0, 0)))
    world = World(3, ddp, 1, 4, steps=8, window=window, injections=(Injection("throttled", (2,), (5,), 500.0),))
    simulate(world).write(tmp_path)
    said = sentence(analyse(tmp_path))
    assert "Rank 2 costs" in said
    assert "in step 5" in said
    assert "alone" not in said


def test_a_loader_that_is_slow_in_each_step_is_not_so_in_one_alone() -> None:
    """Whatever else the CPUs of others do in some step, such as wait for a core."""
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    rows = [
        (1, step, kind, what, longer)
        for step, of_cpu in ((1, 62), (2, -1))
        for kind, what, longer in (("total", "cpu", of_cpu), ("range", loader, 67))
    ]
    late_work = pd.DataFrame(rows, columns=["rank", "step", "kind", "what", "extra_ns"])
    assert only_step(late_work, 1, "data", 2) is None
    assert only_step(late_work, 1, "cpu", 2) == 1
