"""What the last rank was doing while the others waited for it, and who is named."""

import pytest
from builders import MS, US, Collective, Trace, analysed, traces_of

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.analysis import Analysis

EVERY = 20 * MS


def run_of(
    folder, world: int, late_rank: int, late: int, busy, *, count: int = 6, host: str | None = "node"
) -> Analysis:
    """All ranks compute 5 ms before every all_reduce of 2 ms; what makes one late is what `busy(trace, at)` adds."""
    truth = [
        Collective([k * EVERY + 6 * MS + (late if rank == late_rank else 0) for rank in range(world)], 2 * MS)
        for k in range(count)
    ]
    traces = traces_of(world, truth, host="node")
    for rank, trace in enumerate(traces):
        for k in range(count):
            trace.kernel("gemm", k * EVERY + 500 * US, 5 * MS)
            if rank == late_rank:
                busy(trace, k * EVERY + 5_500 * US)
    return analysed(folder, *traces)


def of_late(found: Analysis) -> list[Row]:
    """Without the first, before which there is no common collective."""
    first, *rest = records(found.lateness)
    assert first["because"] is None
    return rest


@pytest.mark.slow_cases("0")
@pytest.mark.parametrize("late_rank", [0, 2])
def test_late_by_more_compute_in_one_kernel(tmp_path, late_rank):
    found = run_of(tmp_path, 4, late_rank, 4 * MS, lambda t, at: t.kernel("slow_kernel", at, 4 * MS))
    assert len(found.lateness) == 6
    for row in of_late(found):
        assert (row["rank"], row["late_ns"], row["caused_wait_ns"]) == (late_rank, 4 * MS, 12 * MS)
        assert (row["because"], row["kernel"], row["kernel_extra_ns"]) == ("compute", "slow_kernel", 4 * MS)
        assert (row["extra_compute_ns"], row["extra_cpu_ns"], row["extra_memory_ns"]) == (4 * MS, 0, 0)
    named = found.ranks.set_index("rank").loc[late_rank]
    assert (named["times_last"], named["because"], named["kernel"]) == (6, "compute", "slow_kernel")
    assert (named["late_median_ns"], named["late_max_ns"], named["caused_wait_ns"]) == (4 * MS, 4 * MS, 72 * MS)
    assert found.ranks["times_last"].sum() == 6


@pytest.mark.slow
def test_late_because_a_kernel_that_all_run_takes_longer(tmp_path):
    found = run_of(tmp_path, 4, 1, 4 * MS, lambda t, at: t.kernel("gemm", at, 4 * MS))
    assert {(r["because"], r["kernel"], r["kernel_extra_ns"]) for r in of_late(found)} == {("compute", "gemm", 4 * MS)}


@pytest.mark.slow
def test_late_because_it_was_given_no_work(tmp_path):
    found = run_of(tmp_path, 4, 3, 4 * MS, lambda t, at: None)
    for row in of_late(found):
        assert (row["because"], row["extra_cpu_ns"], row["extra_compute_ns"]) == ("cpu", 4 * MS, 0)
        assert row["kernel"] is None
    assert found.ranks.set_index("rank").loc[3, "because"] == "cpu"


def test_late_by_a_copy(tmp_path):
    found = run_of(tmp_path, 4, 1, 4 * MS, lambda t, at: t.memcpy("HtoD", at, 4 * MS))
    for row in of_late(found):
        assert (row["because"], row["extra_memory_ns"], row["extra_compute_ns"]) == ("memory", 4 * MS, 0)


@pytest.mark.slow
def test_late_by_other_communication(tmp_path):
    def send(trace: Trace, at: int) -> None:
        trace.nccl("send", at, 4 * MS, group="pp", ranks=(1, 9), stream=33, **{"Dst Rank": 9})

    found = run_of(tmp_path, 4, 1, 4 * MS, send)
    for row in of_late(found):
        assert (row["because"], row["extra_comm_ns"]) == ("comm", 4 * MS)


def test_late_to_the_ns_beside_a_call_that_was_issued_before_the_window(tmp_path):
    def send(trace: Trace, at: int) -> None:
        launch = None if at < EVERY else at
        trace.nccl("send", at, 4 * MS + 37, launch=launch, group="pp", ranks=(1, 9), stream=33, **{"Dst Rank": 9})

    found = run_of(tmp_path, 4, 1, 4 * MS + 37, send)
    *rest, _ = of_late(found)  # behind the last kernel, nothing tells what the rank did
    assert {(row["late_ns"], row["new_ns"]) for row in rest} == {(4 * MS + 37, 4 * MS + 37)}


@pytest.mark.slow
def test_on_clocks_that_differ_the_late_rank_is_the_same(tmp_path):
    truth = [
        Collective([k * EVERY + 6 * MS + (k * k % 7) * MS + (4 * MS if r == 2 else 0) for r in range(4)], 2 * MS)
        for k in range(12)
    ]
    found = analysed(tmp_path, *traces_of(4, truth, offsets=(0, 3 * MS, -15 * MS, 9 * MS)))
    assert found.ranks["times_last"].tolist() == [0, 0, 12, 0]
    uncertain = int(found.clocks["uncertainty_ns"].max())
    assert found.ranks["late_median_ns"].tolist()[2] == pytest.approx(4 * MS, abs=2 * uncertain)


@pytest.mark.slow
def test_later_by_less_than_the_clocks_are_uncertain_is_not_late(tmp_path):
    found = run_of(tmp_path, 4, 2, 1 * US, lambda t, at: None)
    assert len(found.lateness) == 0
    assert found.ranks["times_last"].tolist() == [0] * 4


def test_of_a_partial_collective_nobody_is_called_late(tmp_path):
    truth = [Collective((k * EVERY, k * EVERY + 4 * MS, k * EVERY), 2 * MS) for k in range(4)]
    found = analysed(tmp_path, *traces_of(3, truth, host="node")[:2])
    assert len(found.lateness) == 0
    assert found.ranks["times_last"].isna().all()
    assert found.ranks["because"].isna().all()


# --- wire rate -------------------------------------------------------------------------------------------------------


def test_two_communicators_that_overlap_share_the_wire(tmp_path):
    # 100 and 50 GB/s at the same time on the same links: 150.
    truth = [
        Collective((0, 0), 10 * MS, elems=250_000_000, group="dp"),
        Collective((0, 0), 10 * MS, elems=125_000_000, group="tp"),
    ]
    assert analysed(tmp_path, *traces_of(2, truth)).ranks["wire_gb_per_s"].tolist() == [150, 150]


@pytest.mark.slow
def test_two_communicators_after_each_other_do_not(tmp_path):
    truth = [
        Collective((0, 0), 10 * MS, elems=250_000_000, group="dp"),
        Collective((30 * MS, 30 * MS), 10 * MS, elems=125_000_000, group="tp"),
    ]
    assert analysed(tmp_path, *traces_of(2, truth)).ranks["wire_gb_per_s"].tolist() == [75, 75]


@pytest.mark.slow
def test_waiting_is_no_time_on_the_wire(tmp_path):
    truth = [Collective((0, 30 * MS), 10 * MS, elems=250_000_000)]
    assert analysed(tmp_path, *traces_of(2, truth)).ranks["wire_gb_per_s"].tolist() == [100, 100]
