"""Collectives of which some members have no trace, and ranks that are alone."""

from pathlib import Path

import pytest
from builders import MS, US, Collective, Trace, analysed, traces_of

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis

EVERY = 20 * MS
MISSING = 3


def run_of(folder: Path, late: int, *, missing_late: int = 0, count: int = 12, whole: int = 0) -> Analysis:
    """Four ranks on one host of which the last has no trace; rank 1 is late by `late`, in other calls by a bit less.

    The missing one is late by `missing_late` in every second call. Of `whole` calls of a group of the same size all
    members have traces.
    """
    truth = []
    for k in range(count):
        shift = k * k % 7 * 37 * US
        arrivals = [k * EVERY + 6 * MS + (late + shift if rank == 1 else 0) for rank in range(4)]
        arrivals[MISSING] += missing_late if k % 2 else 0
        truth.append(Collective(arrivals, 2 * MS))
    traces = traces_of(4, truth, host="node")
    for trace in traces:
        for k in range(count):
            trace.kernel("gemm", k * EVERY + 500 * US, 5 * MS)
    return analysed(folder, *(trace for rank, trace in enumerate(traces) if rank != MISSING))


@pytest.mark.slow
def test_where_nobody_missing_came_later_all_is_known(tmp_path: Path) -> None:
    found = run_of(tmp_path, 4 * MS)
    split = found.participation
    assert split["wait_ns"].notna().all()
    assert split[split["rank"] == 1]["wait_ns"].tolist() == [0] * 12
    assert split[split["rank"] == 0]["wait_ns"].min() == 4 * MS
    assert set(split["transfer_ns"]) == {2 * MS}
    assert found.collectives["complete"].tolist() == [False] * 12
    assert found.bandwidth["busbw_gb_per_s"].notna().all()
    run = found.verdicts.iloc[0]
    assert run["not_known"] == "Only 3 of 4 ranks have a trace."
    assert "100% of it for rank 1" in run["because"]


def test_where_a_missing_rank_came_later_there_is_a_lower_bound(tmp_path: Path) -> None:
    found = run_of(tmp_path, 4 * MS, missing_late=9 * MS)
    split = found.participation.merge(found.collectives[["collective_id", "first_start_ns"]], on="collective_id")
    late = split["dur_ns"] > split["wait_low_ns"] + 2 * MS
    assert late.sum() == 18
    assert split["wait_ns"][late].isna().all()
    waited = split[late & (split["rank"] != 1)]
    assert (waited["wait_low_ns"] >= 4 * MS).all()
    assert (waited["wait_low_ns"] < 5 * MS).all()


def test_a_missing_rank_that_is_always_late_is_not_taken_for_a_slow_network(tmp_path: Path) -> None:
    # Always by the same: no call is shorter than others, and arrivals of those present do not vary.
    truth = [Collective([k * 8 * MS, k * 8 * MS, k * 8 * MS, k * 8 * MS + 5 * MS], 2 * MS) for k in range(12)]
    found = analysed(tmp_path, *traces_of(4, truth, host="node")[:3])
    assert found.participation["wait_ns"].isna().all()
    assert set(found.participation["wait_low_ns"]) == {0}
    assert found.collectives["transfer_ns"].isna().all()
    run = found.verdicts.iloc[0]
    assert run["verdict"] == "inconclusive"
    assert "Only 3 of 4 ranks have a trace, so " in run["not_known"]
    assert "give the traces of all ranks" in run["not_known"]


def test_waiting_for_those_present_may_be_enough_for_a_verdict(tmp_path: Path) -> None:
    truth = [Collective([k * 12 * MS, k * 12 * MS, k * 12 * MS + 9 * MS, k * 12 * MS], 2 * MS) for k in range(3)]
    run = analysed(tmp_path, *traces_of(4, truth, host="node")[:3]).verdicts.iloc[0]
    assert run["verdict"] == "skew-bound"
    # 2 of 3 ranks wait 9 of 11 ms three times, the third 0 of 2.
    assert "takes 24.0 of 32.0 ms in the window (75%), at least 18.0 ms of it waiting" in run["because"]


@pytest.mark.parametrize("extra", [0, 6 * MS])
def test_one_rank_alone_tells_how_much_longer_calls_take_than_the_fastest(tmp_path: Path, extra: int) -> None:
    trace = Trace(0, 2, groups={"0": [0, 1]}).kernel("gemm", 0, 5 * MS)
    for k in range(4):
        trace.nccl("all_reduce", k * EVERY + 6 * MS, 2 * MS + (extra if k == 3 else 0), Seq=k)
    found = analysed(tmp_path, trace)
    assert found.participation["excess_ns"].tolist() == [0, 0, 0, extra]
    assert found.participation["wait_ns"].isna().all()
    beyond = f"{extra / (8 * MS + extra):.0%} of the calls' time is more than the fastest similar call takes"
    assert (beyond in records(found.verdicts)[0]["not_known"]) == bool(extra)


def _steps_of_a_rank_alone(folder: Path, durations: list[list[int]]) -> Analysis:
    """Calls of unknown size, by step."""
    trace = Trace(0, 2)
    for step, of_step in enumerate(durations):
        begin = step * EVERY
        trace.step(step, begin, begin + EVERY).kernel("gemm", begin, 1 * MS)
        for turn, dur in enumerate(of_step):
            trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + (turn + 1) * 4 * MS, dur)
    return analysed(folder, trace)


def test_calls_of_unknown_size_compare_at_the_same_place_of_a_step(tmp_path: Path) -> None:
    found = _steps_of_a_rank_alone(tmp_path, [[1 * MS, 8 * MS], [1 * MS, 8 * MS], [1 * MS, 6 * MS]])
    assert found.participation["excess_ns"].tolist() == [0, 2 * MS, 0, 2 * MS, 0, 0]
    assert "16% of the calls' time is more than" in records(found.verdicts)[0]["not_known"]


def test_alike_in_all_steps_nothing_hints_at_waiting(tmp_path: Path) -> None:
    found = _steps_of_a_rank_alone(tmp_path, [[1 * MS, 8 * MS]] * 3)
    assert "probably waiting" not in records(found.verdicts)[0]["not_known"]


@pytest.mark.parametrize(
    "durations", [[[1 * MS, 8 * MS]], [[8 * MS], [1 * MS, 8 * MS]]], ids=["one step", "counts differ"]
)
def test_without_such_a_place_there_is_nothing_to_compare_with(tmp_path: Path, durations: list[list[int]]) -> None:
    assert _steps_of_a_rank_alone(tmp_path, durations).participation["excess_ns"].isna().all()


def test_one_rank_alone_tells_the_least_bandwidth(tmp_path: Path) -> None:
    trace = Trace(0, 4, groups={"0": [0, 1, 2, 3]}).kernel("gemm", 0, 5 * MS)
    for number, dur in enumerate((8, 6, 9)):
        trace.nccl("all_reduce", number * EVERY + 6 * MS, dur * MS, Seq=number, elems=10**6, ranks=(0, 1, 2, 3))
    found = records(analysed(tmp_path, trace).verdicts)[0]["not_known"]
    # 2 (4 - 1) / 4 of 4 MB in 6 ms.
    assert "Waiting included, the fastest all_reduce of 3.81 MiB reaches 1 GB/s (bus bandwidth)." in found


def test_a_single_call_has_no_other_to_compare_with(tmp_path: Path) -> None:
    trace = Trace(0, 2, groups={"0": [0, 1]}).nccl("all_reduce", 0, 2 * MS, Seq=1)
    assert analysed(tmp_path, trace).participation["excess_ns"].isna().all()
