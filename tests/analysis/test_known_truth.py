"""The cases that other tools get wrong, each of known truth, from trace files to tables."""

from collections.abc import Sequence

import pytest
from builders import MS, US, Collective, Trace, analysed, traces_of

from commtrace import analyse
from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import load_run


def found_in(folder, world: int, truth: Sequence[Collective], **options) -> Analysis:
    return analysed(folder, *traces_of(world, truth, **options))


@pytest.mark.parametrize("arrivals", [(0, 0, 0, 0), (0, 27_500 * US, 3 * MS, 1 * MS)], ids=str)
def test_an_all_reduce_of_a_billion_bytes_in_10_ms(tmp_path, arrivals):
    found = found_in(tmp_path, 4, [Collective(arrivals, 10 * MS, elems=250_000_000)])
    (row,) = records(found.bandwidth)
    assert row["size_bytes"] == 1_000_000_000
    assert (row["algbw_gb_per_s"], row["busbw_gb_per_s"]) == (100, 150)
    assert (row["busbw_low_gb_per_s"], row["busbw_high_gb_per_s"]) == (150, 150)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["Seq", "nothing"])
def test_a_group_of_more_than_30_ranks_whose_list_the_trace_cuts(tmp_path, key):
    truth = [Collective([k * 9 * MS + (7 * rank + k) % 40 * 10 * US for rank in range(40)], 3 * MS, elems=10_000)
             for k in range(3)]  # fmt: skip
    traces = traces_of(40, truth, host="node")
    for trace in traces:
        for event in trace.events:
            assert "..." in event["args"].get("Process Group Ranks", "...")
            if key != "Seq":
                event["args"].pop("Seq", None)
    table = analysed(tmp_path, *traces).collectives
    assert table["complete"].tolist() == [True] * 3
    assert table["group_size"].tolist() == [40] * 3
    assert set(table["pg_ranks"]) == {" ".join(map(str, range(40)))}
    assert table["arrival_skew_ns"].tolist() == [390 * US] * 3
    assert table["transfer_ns"].tolist() == [3 * MS] * 3


@pytest.mark.quick_cases("seq")
@pytest.mark.parametrize("args", [{}, {"Comms Id": 77}, {"Seq": None}], ids=["seq", "equal ids", "no ids"])
def test_one_group_name_for_disjoint_groups(tmp_path, args):
    truth = [
        Collective({0: 0, 1: 2 * MS}, 1 * MS, group="3", args=args),
        Collective({2: 500 * US, 3: 700 * US}, 1 * MS, group="3", args=args),
    ]
    table = found_in(tmp_path, 4, truth, host="node").collectives
    assert table[["pg_ranks", "arrival_skew_ns", "complete"]].to_numpy().tolist() == [
        ["0 1", 2 * MS, True],
        ["2 3", 200 * US, True],
    ]


@pytest.mark.slow_cases("seq")
@pytest.mark.parametrize("ids", [True, False], ids=["seq", "no ids"])
def test_sends_and_receives_beside_all_reduces_of_one_group(tmp_path, ids):
    traces = [Trace(rank, 2, groups={"0": [0, 1]}, device=rank) for rank in range(2)]
    for k in range(4):
        at = k * 20 * MS
        for rank, trace in enumerate(traces):
            seq = {"Seq": k + 1} if ids else {}
            trace.nccl("all_reduce", at + rank * 2 * MS, 5 * MS - rank * 2 * MS, elems=1000 * (k + 1), **seq)
        # The receiver comes 1 ms before its sender.
        traces[0].nccl("send", at + 11 * MS, 2 * MS, elems=64, **({"Seq": 2 * k} if ids else {}), **{"Dst Rank": 1})
        traces[1].nccl("recv", at + 10 * MS, 3 * MS, elems=64, **({"Seq": 9 + k} if ids else {}), **{"Src Rank": 0})
    found = analysed(tmp_path, *traces)
    assert found.collectives["collective"].tolist() == ["all_reduce", "send_recv"] * 4
    assert found.collectives["complete"].all()
    assert found.participation["wait_ns"].tolist() == [2 * MS, 0, 0, 1 * MS] * 4


@pytest.mark.parametrize("ids", [True, False], ids=["seq", "no ids"])
@pytest.mark.parametrize("dropped", ["first", "last"])
def test_one_rank_captured_one_collective_more(tmp_path, ids, dropped):
    # Calls 37.5 ms apart: whoever pairs the k-th with the k-th sees a skew of that.
    truth = [Collective((k * 37_500 * US,) * 2, 10 * MS) for k in range(8)]
    first, second = traces_of(2, truth, host="node")
    second.events = second.events[2:] if dropped == "first" else second.events[:-2]
    for trace in (first, second):
        for event in trace.events if not ids else ():
            event["args"].pop("Seq", None)
    found = analysed(tmp_path, first, second)
    alone = found.collectives[found.collectives["matched_by"] == "none"]
    assert alone["ranks"].tolist() == ["0"]
    assert found.collectives["arrival_skew_ns"].dropna().tolist() == [0] * 7
    assert found.participation["wait_ns"].dropna().tolist() == [0] * 14


@pytest.mark.parametrize("ids", [True, False], ids=["seq", "no ids"])
def test_a_clock_8_ms_ahead_invents_no_waiting(tmp_path, ids):
    # Everybody arrives together in kernels of 5 ms; the trace of rank 1 shows everything 8 ms late.
    starts = [0, 31 * MS, 45 * MS, 90 * MS, 103 * MS, 150 * MS]
    traces = traces_of(2, [Collective((start,) * 2, 5 * MS) for start in starts], offsets=(0, 8 * MS))
    for trace in traces:
        for event in trace.events if not ids else ():
            event["args"].pop("Seq", None)
    found = analysed(tmp_path, *traces)
    assert found.participation["wait_ns"].tolist() == [0] * 12
    assert found.ranks["times_last"].tolist() == [0, 0]
    clock = records(found.clocks)[1]
    assert abs(clock["offset_ns"] - 8 * MS) <= clock["uncertainty_ns"]
    assert found.collectives["transfer_ns"].tolist() == [5 * MS] * 6


def test_tensor_and_data_parallel_groups_of_equal_size(tmp_path):
    truth = []
    for k in range(3):
        truth += [
            Collective(dict.fromkeys(ranks, k * 40 * MS), 2 * MS, elems=1000, group="tp") for ranks in ((0, 1), (2, 3))
        ]
        truth += [
            Collective(dict.fromkeys(ranks, k * 40 * MS + 9 * MS), 4 * MS, elems=1000, group="dp")
            for ranks in ((0, 2), (1, 3))
        ]
    table = found_in(tmp_path, 4, truth).bandwidth
    found = sorted(zip(table["process_group"], table["pg_ranks"], table["calls"], table["time_us_median"], strict=True))
    assert found == [("dp", "0 2", 3, 4000), ("dp", "1 3", 3, 4000), ("tp", "0 1", 3, 2000), ("tp", "2 3", 3, 2000)]


@pytest.mark.parametrize(
    ("dtype", "known", "elems", "algbw"),
    [("Float8_e4m3fn", "float8_e4m3fn", 4_000_000, 4), ("Char", "int8", 1_000_000, 1), ("Byte", "uint8", 10**6, 1)],
)
def test_payloads_of_one_byte_elements(tmp_path, dtype, known, elems, algbw):
    (row,) = records(found_in(tmp_path, 2, [Collective((0, 0), 1 * MS, elems=elems, dtype=dtype)]).bandwidth)
    assert (row["dtype"], row["algbw_gb_per_s"]) == (known, algbw)


def test_no_skew_no_straggler(tmp_path):
    found = found_in(tmp_path, 4, [Collective((k * 13 * MS,) * 4, 5 * MS) for k in range(10)])
    assert found.ranks["times_last"].tolist() == [0] * 4
    assert found.ranks["caused_wait_ns"].tolist() == [0] * 4
    assert found.ranks["wait_ns"].tolist() == [0] * 4
    assert found.collectives["last_rank"].isna().all()
    assert len(found.lateness) == 0
    assert found.ranks["because"].isna().all()


def test_skew_below_the_uncertainty_makes_no_straggler(tmp_path):
    truth = [Collective((k * 13 * MS, k * 13 * MS + 1 * US), 5 * MS) for k in range(10)]
    assert found_in(tmp_path, 2, truth).ranks["times_last"].tolist() == [0, 0]


def test_no_arguments_but_annotations(tmp_path):
    # As in dlrm-v100-w8: 5 all_to_all and 3 all_reduce on 8 ranks, named and sized by the annotations around them.
    kinds = ["all_to_all"] * 3 + ["all_reduce"] * 2 + ["all_to_all"] * 2 + ["all_reduce"]
    names = {"all_to_all": "ncclDevKernel_SendRecv", "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL()"}
    traces = []
    for rank in range(8):
        trace = Trace(rank, 8, device=rank)
        for k, kind in enumerate(kinds):
            start, end = k * 9 * MS + (rank * 3 + k) % 8 * 300 * US, k * 9 * MS + 5 * MS
            trace.annotation(f"nccl:{kind}", start - 50 * US, 20 * US, dims=[[1000 * (k + 1)]], types=["float"])
            trace.kernel(names[kind], start, end - start, launch=start - 45 * US, stream=20)
        traces.append(trace)
    found = analysed(tmp_path, *traces)
    assert found.collectives["collective"].tolist() == kinds
    assert found.collectives["complete"].all()
    assert found.collectives["arrival_skew_ns"].tolist() == [2100 * US] * 8
    assert found.collectives["size_bytes"].tolist() == [4000 * (k + 1) for k in range(8)]


def test_a_pattern_of_the_user_for_another_kernel(tmp_path):
    for rank in range(2):
        trace = Trace(rank, 2, device=rank, host="node")
        for k in range(3):
            trace.kernel("my_fused_ring_kernel<float>", k * 9 * MS + rank * 2 * MS, 5 * MS - rank * 2 * MS, stream=9)
        trace.write(tmp_path)
    assert len(Analysis(load_run([tmp_path])).calls) == 0
    found = analyse(tmp_path, comm_names=["my_fused_ring"])
    assert len(found.calls) == 6
    assert found.breakdown["comm_ns"].tolist() == [15 * MS, 9 * MS]
    assert found.collectives["ranks"].tolist() == ["0 1"] * 3


@pytest.mark.parametrize("ids", [True, False], ids=["seq", "no ids"])
def test_kernels_from_before_the_window(tmp_path, ids):
    # Rank 0 shows three of them, rank 1 one: without arguments and launch, and of more than a step.
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL()"
    truth = [Collective((k * 37 * MS + k * k % 5 * MS,) * 2, 10 * MS, elems=1000) for k in range(8)]
    traces = traces_of(2, truth, host="node")
    for rank, trace in enumerate(traces):
        kernels = [e for e in trace.events if e["cat"] == "kernel"]
        launches = [e for e in trace.events if e["cat"] != "kernel"]
        for event in kernels[:3]:
            event["name"] = name
            event["args"] = {k: v for k, v in event["args"].items() if k in ("device", "stream", "correlation")}
        for event in kernels if not ids else ():
            event["args"].pop("Seq", None)
        trace.events = (kernels if rank == 0 else kernels[2:]) + launches[3:]
    found = analysed(tmp_path, *traces)
    assert len(found.calls) == 14
    table = found.collectives
    assert table["ranks"].tolist() == ["0", "0", *["0 1"] * 6]
    assert table["arrival_skew_ns"].dropna().tolist() == [0] * 6
    assert found.breakdown["n_comm"].tolist() == [8, 6]


def test_the_devices_of_one_process_are_the_participants(tmp_path):
    # nn.DataParallel: one rank, several devices, no arguments on any kernel.
    trace = Trace(0, 1)
    for k in range(5):
        for device in (0, 1):
            late = device * MS
            trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", k * 10 * MS + late, 4 * MS - late, device=device)
    found = analysed(tmp_path, trace)
    assert len(found.collectives) == 5
    assert found.collectives["complete"].all()
    assert found.participation.sort_values(["collective_id", "device"])["wait_ns"].tolist() == [MS, 0] * 5


@pytest.mark.slow
def test_what_the_uncertainty_of_clocks_explains_is_not_called_wrongly_matched(tmp_path):
    """Two ranks that are said to share a host: the clock of one is set back by 1 ms in between."""
    truth = [Collective((k * 20 * MS, k * 20 * MS), 200 * US) for k in range(12)]
    first, second = traces_of(2, truth, host="node")
    for event in second.events[len(second.events) // 2 :]:
        event["ts"] = event["ts"] - 1_000
    found = analysed(tmp_path, first, second)
    assert found.clocks["uncertainty_ns"].max() > 300 * US
    assert "matched wrongly" not in found.summary()
