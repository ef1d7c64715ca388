"""Device time by kernel, by operator and of GPUs, on runs of known truth; real traces: test_kernels_real.py."""

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from builders import MS, US, Collective, Trace, analysed, traces_of
from hypothesis import given
from hypothesis import strategies as st

from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.metrics.device.launches import enclosing, innermost
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse, load_run
from commtrace.cli import main

LAUNCH = {"blocks per SM": 0.5, "est. achieved occupancy %": 25}


def by(rows: list[dict], name: str, column: str = "name") -> dict:
    (found,) = [row for row in rows if row[column] == name]
    return found


def detailed(folder, *traces: Trace) -> Analysis:
    for trace in traces:
        trace.write(folder)
    return Analysis(load_run([folder], details=True))


# --- by kernel -------------------------------------------------------------------------------------------------------


def test_the_share_of_a_communication_kernel_is_waiting_and_transfer(tmp_path):
    # Rank 1 comes 30 ms late to a transfer of 10 ms; rank 0 computes during the first 20 ms of its waiting.
    first, second = traces_of(2, [Collective((10 * MS, 40 * MS), 10 * MS)])
    found = analysed(tmp_path, first.kernel("gemm", 0, 30 * MS), second.kernel("gemm", 0, 40 * MS))
    comm = by(records(found.kernels), "ncclDevKernel_Generic")
    assert (comm["calls"], comm["ranks"], comm["total_ns"], comm["split_calls"]) == (2, 2, 50 * MS, 2)
    assert (comm["wait_ns"], comm["transfer_ns"], comm["hidden_ns"]) == (30 * MS, 20 * MS, 20 * MS)
    assert comm["share_frac"] == pytest.approx(50 / 120)
    assert comm["share_frac"] == pytest.approx(comm["wait_share_frac"] + comm["transfer_share_frac"])
    assert comm["hidden_share_frac"] == pytest.approx(20 / 120)
    compute = by(records(found.kernels), "gemm")
    assert [compute[c] for c in ("split_calls", "wait_ns", "transfer_ns", "hidden_ns")] == [None] * 4
    late = [row for row in records(found.kernels_devices) if row["rank"] == 1]
    assert [(row["name"], row["total_ns"]) for row in late] == [
        ("gemm", 40 * MS),
        ("ncclDevKernel_Generic", 10 * MS),
    ]
    assert sum(row["share_frac"] for row in late) == pytest.approx(1)


def test_one_rank_alone_shows_no_waiting(tmp_path):
    found = analysed(tmp_path, Trace(0, 2).nccl("all_reduce", 0, 9 * MS).kernel("gemm", 0, 3 * MS))
    comm = by(records(found.kernels), "ncclDevKernel_Generic")
    assert (comm["split_calls"], comm["wait_ns"], comm["wait_share_frac"]) == (0, None, None)
    assert (comm["hidden_ns"], comm["share_frac"]) == (3 * MS, 0.75)


def test_devices_of_one_process_are_apart_and_copies_are_no_kernels(tmp_path):
    trace = Trace().kernel("gemm", 0, MS).kernel("gemm", 0, 3 * MS, device=1)
    trace.memcpy("HtoD", 5 * MS, MS).memcpy("PtoP", 7 * MS, 2 * MS)
    found = analysed(tmp_path, trace)
    rows = [(r["device"], r["kind"], r["total_ns"], round(r["share_frac"], 3)) for r in records(found.kernels_devices)]
    assert rows == [("0", "comm", 2 * MS, 0.667), ("0", "compute", MS, 0.333), ("1", "compute", 3 * MS, 1.0)]
    assert [row["device"] for row in records(found.gpus)] == ["0", "1"]


def test_kernels_that_start_at_the_same_microsecond_keep_their_calls_apart(tmp_path):
    trace = Trace(0, 1, groups={"0": [0]})
    for dur in (0, 5 * US):
        trace.nccl("all_reduce", MS, dur, ranks=(0,))
    assert by(records(analysed(tmp_path, trace).kernels), "ncclDevKernel_Generic")["calls"] == 2


def test_without_any_time_there_are_no_shares(tmp_path):
    (row,) = records(analysed(tmp_path, Trace().kernel("gemm", 0, 0, args=LAUNCH)).kernels)
    assert [row[c] for c in ("total_ns", "share_frac", "occupancy_frac")] == [0, None, None]


@pytest.mark.parametrize("value", ["NaN", '"N/A"', "[]", "{}", "null", "-1", "Infinity", "1" + "0" * 400, "true"])
def test_an_occupancy_that_is_none_makes_no_file_unreadable(tmp_path, value):
    trace = Trace().kernel("odd", 0, MS, args={"est. achieved occupancy %": "HERE", "blocks per SM": "HERE"})
    path = trace.kernel("good", MS, MS, args=LAUNCH).write(tmp_path, gz=False)
    path.write_text(path.read_text().replace('"HERE"', value))
    odd, good = (by(records(analyse(tmp_path).kernels), name) for name in ("odd", "good"))
    assert odd["total_ns"] == MS
    assert odd["occupancy_frac"] is None or math.isfinite(odd["occupancy_frac"])
    assert (good["occupancy_frac"], good["blocks_per_sm"]) == (0.25, 0.5)


# --- by operator -----------------------------------------------------------------------------------------------------


def with_operators(rank: int = 0) -> Trace:
    """linear around addmm, which launches two kernels; DDP's all_reduce; and one launch outside of all."""
    trace = Trace(rank, 2, groups={"0": [0, 1]}, host="node").op("aten::linear", 0, 100 * US)
    trace.op("aten::addmm", 10 * US, 50 * US)
    trace.kernel("gemm", MS, 6 * MS, launch=20 * US).kernel("bias", 7 * MS, MS, launch=30 * US)
    trace.kernel("cast", 8 * MS, MS, launch=80 * US).kernel("alone", 9 * MS, MS, launch=500 * US)
    trace.kernel("other thread", 10 * MS, MS, launch=20 * US, thread=77).kernel("before", 0, MS, launch=None)
    trace.c10d("allreduce_", 200 * US, 50 * US).op("record_param_comms", 210 * US, 20 * US)
    return trace.nccl("all_reduce", 20 * MS, 4 * MS, launch=220 * US)


def test_a_kernel_belongs_to_the_innermost_operator_around_its_launch(tmp_path):
    rows = records(detailed(tmp_path, with_operators(0), with_operators(1)).operators)
    assert [(r["operator"], r["kernels"], r["calls"], r["total_ns"], r["kind"], r["ranks"]) for r in rows] == [
        ("aten::addmm", 2, 4, 14 * MS, "compute", 2),
        ("c10d::allreduce_", 1, 2, 8 * MS, "comm", 2),
        (None, 3, 6, 6 * MS, "compute", 2),
        ("aten::linear", 1, 2, 2 * MS, "compute", 2),
    ]
    assert by(rows, "c10d::allreduce_", "operator")["transfer_ns"] == 8 * MS


def test_a_kernel_belongs_to_the_innermost_annotation_around_its_launch(tmp_path):
    traces = []
    for rank in range(2):
        trace = with_operators(rank).step(1, 0, 900 * US).annotation("forward", 5 * US, 90 * US)
        trace.annotation("attention", 15 * US, 10 * US).annotation("sync grads", 190 * US, 90 * US)
        traces.append(trace.annotation("nccl:all_reduce", 212 * US, 15 * US))
    rows = records(replace(detailed(tmp_path, *traces), whole=True).annotation_times)
    assert [(r["annotation"], r["kernels"], r["calls"], r["total_ns"], r["kind"], r["ranks"]) for r in rows] == [
        ("attention", 1, 2, 12 * MS, "compute", 2),
        ("sync grads", 1, 2, 8 * MS, "comm", 2),
        (None, 3, 6, 6 * MS, "compute", 2),  # launched after all, by a thread without any, before the window
        ("forward", 2, 4, 4 * MS, "compute", 2),
    ]


@pytest.mark.slow
def test_operators_annotations_and_kernels_are_the_same_time(tmp_path):
    found = detailed(tmp_path, with_operators())
    tables = (found.operators, found.operators_devices, found.annotation_times, found.annotation_times_devices)
    for table in (found.kernels_devices, *tables):
        assert table["total_ns"].sum() == found.kernels["total_ns"].sum()
        assert table["share_frac"].sum() == pytest.approx(1)


@pytest.mark.parametrize("table", ["operators", "annotation_times"])
def test_what_was_not_read_is_no_guess(tmp_path, table):
    with pytest.raises(NothingMeasured, match="details=False"):
        getattr(analysed(tmp_path, with_operators()), table)


def test_on_a_cpu_run_an_operator_is_its_own_kernel(tmp_path):
    trace = Trace(device_names=(), backend="gloo").op("aten::mm", 0, MS).op("aten::add", 2 * MS, 3 * MS)
    found = analysed(tmp_path, trace)
    assert found.kernels["name"].tolist() == found.operators["operator"].tolist() == ["aten::add", "aten::mm"]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12), st.lists(st.integers(-2, 45)))
def test_innermost_is_the_last_begun_that_holds_the_time(intervals, times):
    ordered = sorted(((start, start + dur) for start, dur in intervals), key=lambda i: (i[0], -i[1]))
    starts, ends = (np.array(column, dtype=np.int64) for column in (list(zip(*ordered, strict=True)) or [(), ()]))
    expected = [max((i for i, (s, e) in enumerate(ordered) if s <= t <= e), default=-1) for t in times]
    if len(ordered):
        assert innermost(starts, ends, np.array(times, dtype=np.int64)).tolist() == expected
    around = [max((i for i in range(k) if ordered[i][1] >= ordered[k][0]), default=-1) for k in range(len(ordered))]
    assert enclosing(starts, ends).tolist() == around


# --- GPUs ------------------------------------------------------------------------------------------------------------


def test_a_last_step_that_was_cut_off_does_not_count(tmp_path):
    trace = Trace().step(1, 0, 10 * MS).step(2, 10 * MS, 20 * MS)
    for k in range(5):
        trace.kernel("gemm", k * MS, MS, args=LAUNCH)
    trace.kernel("gemm", 15 * MS, MS, args=LAUNCH)
    (row,) = records(analysed(tmp_path, trace).gpus)
    assert (row["steps"], row["window_ns"], row["utilisation_frac"], row["note"]) == (1, 10 * MS, 0.5, None)
    assert (row["sm_efficiency_frac"], row["occupancy_frac"]) == (0.25, 0.25)


def test_what_a_gpu_does_not_tell_is_na_and_why(tmp_path):
    (row,) = records(analysed(tmp_path, Trace().kernel("gemm", 0, MS).kernel("gemm", 3 * MS, MS)).gpus)
    assert (row["utilisation_frac"], row["sm_efficiency_frac"], row["occupancy_frac"]) == (0.5, None, None)
    assert row["note"] == (
        "no step is marked: from the first to the last activity; the traces do not show the kernels' blocks per SM; "
        "the traces do not show the kernels' occupancy"
    )


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def run_dir(tmp_path):
    for rank in (0, 1):
        with_operators(rank).write(tmp_path)
    return tmp_path


def printed(capsys, *arguments: str) -> list[dict[str, str]]:
    assert main([*map(str, arguments), "--format", "csv"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


@pytest.mark.slow
def test_rows_of_one_rank_of_each_and_of_all_together(capsys, run_dir):
    together, each, one = (
        printed(capsys, "table", "kernels", run_dir, *more) for more in ((), ("--rank", "all"), ("--rank", 1))
    )
    assert len(each) == 2 * len(together) == 2 * len(one)
    assert {row["rank"] for row in one} == {"1"}
    assert "rank" not in together[0]


@pytest.mark.parametrize("output_format", ["table", "csv", "markdown", "json"])
@pytest.mark.parametrize("command", ["kernels", "kernels --by operator", "kernels --rank 0", "gpus"])
def test_every_format(capsys, run_dir, command, output_format):
    assert main(["table", *command.split(), str(run_dir), "-f", output_format]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("\n")
    assert captured.err == ""


@pytest.mark.slow
def test_the_longest_rows_only(capsys, run_dir):
    assert len(printed(capsys, "table", "kernels", run_dir, "--top", 2)) == 2
    rows = printed(capsys, "table", "kernels", run_dir, "--top", 2, "--rank", "all", "--by", "operator")
    assert [(row["rank"], row["operator"]) for row in rows] == [
        (rank, operator) for rank in "01" for operator in ("aten::addmm", "c10d::allreduce_")
    ]


def test_long_names_are_cut_for_people_only(capsys, tmp_path):
    name = "void at::native::" + "x" * 500
    Trace().kernel(name, 0, MS).write(tmp_path)
    assert main(["table", "kernels", str(tmp_path)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 200
    assert printed(capsys, "table", "kernels", tmp_path)[0]["name"] == name


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("kernels", "--rank", "7"), 1, "has no trace of rank 7, only of 0, 1"),
        (("kernels", "--rank", "first"), 2, "neither a rank nor all"),
        (("kernels", "--top", "0"), 2, "--top"),
        (("kernels", "--by", "stream"), 2, "stream"),
    ],
)
def test_what_cannot_be_shown(capsys, run_dir, arguments, code, message):
    assert main(["table", *arguments, str(run_dir)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_no_gpu_and_no_kernel_say_so(capsys, tmp_path):
    Trace(device_names=(), backend="gloo").op("aten::mm", 0, MS).write(tmp_path)
    assert main(["table", "gpus", str(tmp_path)]) == 1
    assert "no GPU ran a kernel" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "rank0.json").write_text(json.dumps({"traceEvents": []}))
    assert main(["table", "kernels", str(tmp_path / "empty")]) == 1
    assert "show no kernel" in capsys.readouterr().err
