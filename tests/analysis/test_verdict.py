"""What limits communication: each verdict from a run of which it is true, with the numbers it names."""

import pytest
from builders import MS, US, Collective, Trace, analysed, traces_of
from idle_runs import detailed

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.analysis import Analysis

EVERY = 50 * MS


def verdicts_of(found: Analysis) -> list[tuple[str, str]]:
    return [(row["collective"], row["verdict"]) for row in records(found.verdicts)]


def run_row(found: Analysis) -> Row:
    row = records(found.verdicts)[0]
    assert row["collective"] == "run"
    return row


def made(folder, *, transfer: int, late: int = 0, behind: bool = False, count: int = 6, elems: int = 10**6) -> Analysis:
    """20 ms of compute and an all_reduce of 4 ranks, exposed or behind compute, again and again."""
    every = 22 * MS + late + transfer + (4 * MS if behind else 0)
    truth = [
        Collective([k * every + 21 * MS + (late if rank == 2 else 0) for rank in range(4)], transfer, elems=elems)
        for k in range(count)
    ]
    traces = traces_of(4, truth, host="node")
    for rank, trace in enumerate(traces):
        for k in range(count):
            trace.kernel("gemm", k * every, 20 * MS)
            if behind:
                trace.kernel("gemm", k * every + 20 * MS, transfer + late + 5 * MS)
            elif rank == 2 and late:
                trace.kernel("void slow_kernel<float, 4>(float*)", k * every + 21 * MS, late)
    return analysed(folder, *traces)


@pytest.mark.slow
def test_transfer_bound(tmp_path):
    found = made(tmp_path, transfer=10 * MS)
    assert verdicts_of(found) == [("run", "transfer-bound"), ("all_reduce", "transfer-bound")]
    run, size = records(found.verdicts)
    assert (run["calls"], run["split_calls"], run["exposed_wait_frac"]) == (24, 24, 0)
    assert run["exposed_ns"] == size["exposed_ns"] == 240 * MS
    assert (size["size_bytes"], size["dtype"], size["pg_ranks"]) == (4_000_000, "float32", "0 1 2 3")
    assert "100%" in size["because"]


@pytest.mark.slow
def test_skew_bound_names_the_rank_and_why(tmp_path):
    found = made(tmp_path, transfer=1 * MS, late=8 * MS)
    assert verdicts_of(found) == [("run", "skew-bound"), ("all_reduce", "skew-bound")]
    run = run_row(found)
    # 3 of 4 ranks wait 8 ms, all move for 1 ms.
    assert run["exposed_wait_frac"] == pytest.approx(24 / 28)
    assert "100% of it for rank 2" in run["because"]
    assert "computes 8.0 ms longer" in run["because"]
    assert "slow_kernel" in run["because"]
    assert "<" not in run["because"]


@pytest.mark.slow
def test_hidden(tmp_path):
    found = made(tmp_path, transfer=10 * MS, behind=True)
    assert verdicts_of(found) == [("run", "compute-bound"), ("all_reduce", "hidden")]
    assert records(found.verdicts)[1]["hidden_frac"] == 1
    assert records(found.verdicts)[0]["exposed_ns"] == 0


@pytest.mark.slow
def test_waiting_behind_compute_is_hidden_too(tmp_path):
    assert verdicts_of(made(tmp_path, transfer=1 * MS, late=8 * MS, behind=True))[1] == ("all_reduce", "hidden")


def test_latency_bound(tmp_path):
    # 10 us + size at 100 GB/s: of 4 kB that is latency, of 4 GB it is not.
    found = analysed(tmp_path, *traces_of(2, at_100_gb_per_s(1_000, 1_000_000, 1_000_000_000, late=0), host="node"))
    by_size = {row["size_bytes"]: row["verdict"] for row in records(found.verdicts)[1:]}
    assert by_size == {4_000: "latency-bound", 4_000_000: "transfer-bound", 4_000_000_000: "transfer-bound"}
    (small,) = [row for row in records(found.verdicts) if row["size_bytes"] == 4_000]
    assert "10 us are latency" in small["because"]


def test_inconclusive_without_the_other_ranks(tmp_path):
    trace = Trace(0, 2, groups={"0": [0, 1]}).kernel("gemm", 0, 5 * MS)
    for k in range(3):
        trace.nccl("all_reduce", 6 * MS + k * 10 * MS, 9 * MS, Seq=k)
    found = analysed(tmp_path, trace)
    assert verdicts_of(found) == [("run", "inconclusive"), ("all_reduce", "inconclusive")]
    assert "takes 27.0 of 35.0 ms in the window (77%)." in run_row(found)["because"]
    assert run_row(found)["not_known"] == (
        "Only 1 of 2 ranks has a trace, so waiting and transfer cannot be told apart: give the traces of all ranks."
    )
    assert run_row(found)["exposed_ns"] is None


def test_the_longest_exposed_comes_first(tmp_path):
    truth = []
    for k in range(3):
        truth += [Collective((k * EVERY,) * 2, 2 * MS, elems=100), Collective((k * EVERY + 9 * MS,) * 2, 7 * MS)]
    found = records(analysed(tmp_path, *traces_of(2, truth)).verdicts)[1:]
    assert [row["size_bytes"] for row in found] == [4096, 400]
    assert [row["exposed_ns"] for row in found] == [42 * MS, 12 * MS]


@pytest.mark.slow
def test_without_communication_the_verdict_is_about_the_largest_loss(tmp_path):
    busy = analysed(tmp_path / "busy", Trace().kernel("gemm", 0, 5 * MS))
    assert verdicts_of(busy) == [("run", "compute-bound")]
    assert run_row(busy)["because"] == "Compute fills 5.0 of 5.0 ms in the window (100%). No communication was traced."
    copying = Trace().kernel("gemm", 0, 1 * MS).memcpy("HtoD (Pageable -> Device)", 1 * MS, 9 * MS)
    found = run_row(analysed(tmp_path / "copying", copying))
    assert found["verdict"] == "copy-bound"
    assert found["because"].startswith("Copies that nothing hides take 9.0 of 10.0 ms in the window (90%).")
    idle = run_row(analysed(tmp_path / "idle", Trace().kernel("gemm", 0, 1 * MS).kernel("gemm", 9 * MS, 1 * MS)))
    assert idle["verdict"] == "idle"
    assert idle["because"].startswith("Devices are idle for 8.0 of 10.0 ms in the window (80%).")


def _mostly_computing(folder, *, ahead: bool) -> Analysis:
    """Steps of 10 kernels of 920 us, 80 us apart: all launched before, or each as the one before it ends."""
    trace = Trace()
    for step in range(4):
        begin = step * 10 * MS
        trace.step(step, begin, begin + 10 * MS)
        for number in range(10):
            start = begin + number * MS
            launch = begin + number * 10 * US if ahead else start - 6 * US
            trace.kernel("gemm", start, 920 * US, launch=max(launch, 0))
            trace.op("aten::mm", max(launch, 0), 8 * US)
    return detailed(folder, trace)


@pytest.mark.slow
def test_where_compute_fills_nearly_all_a_loss_counts_by_what_a_step_would_gain(tmp_path):
    ahead, late = (_mostly_computing(tmp_path / str(ahead), ahead=ahead) for ahead in (True, False))
    assert ahead.prices is not None
    assert run_row(ahead)["verdict"] == "compute-bound"
    assert run_row(ahead)["because"].startswith("Compute fills 9.2 of 10.0 ms in a step (92%). Devices are idle for")
    assert run_row(late)["verdict"] == "launch-bound"


def test_exposed_parts_of_the_calls_add_up_to_those_of_the_breakdown(tmp_path):
    found = made(tmp_path, transfer=3 * MS, late=4 * MS)
    split, whole = found.participation, found.breakdown
    assert split["exposed_wait_ns"].sum() == whole["exposed_wait_ns"].sum()
    assert split["exposed_transfer_ns"].sum() == whole["exposed_transfer_ns"].sum()
    assert (whole["exposed_wait_ns"] + whole["exposed_transfer_ns"] == whole["exposed_comm_ns"]).all()
    assert whole["exposed_unsplit_ns"].tolist() == [0] * 4


# --- fits ------------------------------------------------------------------------------------------------------------


def at_100_gb_per_s(*elems: int, latency: int = 10 * US, late: int = 3 * MS) -> list[Collective]:
    """Collectives that take exactly `latency` and 10 ps a byte, one rank late."""
    return [
        Collective((k * 100 * MS, k * 100 * MS + late), latency + 4 * count // 100, elems=count)
        for k, count in enumerate(elems)
    ]


def test_a_fit_recovers_latency_and_bandwidth(tmp_path):
    truth = at_100_gb_per_s(25_000, 250_000, 2_500_000, 25_000_000, 100_000_000)
    (row,) = records(analysed(tmp_path, *traces_of(2, truth)).fits)
    assert (row["collective"], row["sizes"], row["calls"]) == ("all_reduce", 5, 5)
    assert row["latency_us"] == pytest.approx(10, rel=0.01)
    assert row["algbw_gb_per_s"] == pytest.approx(100, rel=0.01)
    assert row["busbw_gb_per_s"] == row["algbw_gb_per_s"]  # 2 (n - 1) / n of 2 ranks is 1
    assert row["error_frac"] < 0.001


def test_the_median_of_each_size_is_fitted(tmp_path):
    truth = at_100_gb_per_s(25_000, 2_500_000, 25_000_000, 25_000, 2_500_000, 25_000_000, 25_000, 2_500_000, 25_000_000)
    slow = Collective(truth[4].arrivals, 40 * MS, elems=truth[4].elems)
    (row,) = records(analysed(tmp_path, *traces_of(2, [*truth[:4], slow, *truth[5:]])).fits)
    assert (row["sizes"], row["calls"]) == (3, 9)
    assert row["latency_us"] == pytest.approx(10, rel=0.01)
    assert row["algbw_gb_per_s"] == pytest.approx(100, rel=0.01)


def test_two_sizes_are_no_fit(tmp_path):
    truth = at_100_gb_per_s(25_000, 250_000, 25_000, 250_000)
    assert len(analysed(tmp_path, *traces_of(2, truth)).fits) == 0


def test_times_that_do_not_grow_show_no_bandwidth(tmp_path):
    truth = [Collective((k * 20 * MS,) * 2, (9 - k) * MS, elems=1000 * 4**k) for k in range(4)]
    assert len(analysed(tmp_path, *traces_of(2, truth)).fits) == 0


def test_latency_is_never_below_zero(tmp_path):
    truth = [Collective((k * 20 * MS,) * 2, n * n * 10 * US, elems=n * 1000) for k, n in enumerate((1, 2, 3, 4))]
    (row,) = records(analysed(tmp_path, *traces_of(2, truth)).fits)
    assert row["latency_us"] == 0
    assert row["error_frac"] > 0.1


def test_groups_and_collectives_have_fits_of_their_own(tmp_path):
    truth = []
    for k, count in enumerate((25_000, 250_000, 2_500_000)):
        for group, kind, turn in (("dp", "all_reduce", 0), ("tp", "all_reduce", 1), ("dp", "all_gather", 2)):
            time = (turn + 1) * (10 * US + 4 * count // 100)
            truth.append(Collective(((3 * k + turn) * 9 * MS,) * 2, time, kind, count, group=group))
    table = analysed(tmp_path, *traces_of(2, truth)).fits
    found = {(r["process_group"], r["collective"]): round(r["latency_us"], 1) for r in records(table)}
    assert found == {("dp", "all_reduce"): 10, ("tp", "all_reduce"): 20, ("dp", "all_gather"): 30}
