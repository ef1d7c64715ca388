"""Gaps in what devices ran, on traces built in memory, and against idle time."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from builders import US, Trace
from hypothesis import given
from idle_runs import Drawn, as_tables, call, detailed, gap, only, tables

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.metrics.device.idle import HOST, QUEUE, gaps_of_devices
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.tables.gaps import gaps
from commtrace.analysis.tables.idle import idle_tables
from commtrace.cli import main

DESCRIBED = ("cause", "call", "operator", "annotation")


def described(folder: Path, trace: Trace) -> tuple[str | None, ...]:
    """What is said of the only gap."""
    row = only(detailed(folder, trace).gaps)
    return tuple(row[name] for name in DESCRIBED)


def test_a_blocking_call_and_its_operator(tmp_path):
    trace = gap().op("aten::item", 85 * US, 80 * US).op("aten::mul", 165 * US, 20 * US)
    call(trace.annotation("loss", 80 * US, 90 * US), "cudaStreamSynchronize", 90 * US, 60 * US)
    row = only(detailed(tmp_path, trace.step(3, 0, 300 * US)).gaps)
    assert [row[name] for name in DESCRIBED] == ["sync", "cudaStreamSynchronize", "aten::item", "loss"]
    assert (row["start_ns"] % (300 * US), row["idle_ns"], row["step"], row["thread"]) == (100 * US, 100 * US, 3, 4242)
    assert (row["before"], row["after"], row["rank"], row["device"]) == ("gemm", "gemm", 0, "0")


def test_of_several_calls_the_longest_within_the_gap_counts(tmp_path):
    trace = call(gap().op("aten::mm", 300 * US, US), "cudaDeviceSynchronize", 0, 110 * US)
    call(trace, "cudaMalloc", 120 * US, 30 * US)
    call(trace, "cudaFree", 160 * US, 20 * US)
    assert described(tmp_path, trace) == ("alloc", "cudaMalloc", None, None)


def test_of_operators_the_innermost_that_takes_most_counts(tmp_path):
    trace = gap().op("aten::linear", 100 * US, 90 * US).op("aten::t", 110 * US, 5 * US)
    trace.op("aten::addmm", 115 * US, 70 * US).op("aten::empty", 116 * US, 10 * US)
    assert described(tmp_path, trace) == ("operator", None, "aten::addmm", None)


def test_of_operators_one_counts_for_all_that_it_calls(tmp_path):
    trace = gap().op("aten::add", 100 * US, 20 * US).op("aten::split", 125 * US, 60 * US)
    for number in range(6):
        trace.op("aten::narrow" if number % 2 else "aten::cat", (125 + 10 * number) * US, 9 * US)
    assert described(tmp_path, trace) == ("operator", None, "aten::split", None)


def test_loading_of_data(tmp_path):
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    trace = gap().annotation("epoch", 0, 400 * US).annotation(loading, 110 * US, 60 * US).op("aten::cat", 120 * US, US)
    assert described(tmp_path, trace) == ("data", None, None, loading)


def test_python_outside_of_operators_has_an_annotation(tmp_path):
    trace = gap().op("aten::mm", 100 * US, 10 * US).annotation("sparse arch", 105 * US, 80 * US)
    assert described(tmp_path, trace) == ("outside", None, None, "sparse arch")


def test_a_gap_that_waits_with_a_launched_kernel_shows_the_launch(tmp_path):
    trace = gap(launch=80 * US).op("aten::mm", 70 * US, 30 * US).annotation("forward", 0, 90 * US)
    assert described(tmp_path, trace) == ("queued", None, "aten::mm", "forward")


def test_modules_are_read_where_they_are_recorded(tmp_path):
    trace = gap().op("aten::mm", 110 * US, 70 * US)
    for name, start in (("nn.Module: MLP_0", 90), ("nn.Module: Linear_1", 105), ("forward.py(3): forward", 106)):
        trace.event("python_function", name, start * US, 80 * US, **{"Python id": start})
    result = detailed(tmp_path, trace)
    assert (only(result.gaps)["module"], only(result.gaps)["operator"]) == ("Linear_1", "aten::mm")
    assert result.run.modules["name"].tolist() == ["nn.Module: MLP_0", "nn.Module: Linear_1"]
    assert not len(analyse(tmp_path, details=False).run.modules)


def test_recordings_keep_modules(tmp_path):
    trace = gap().op("aten::mm", 110 * US, 70 * US)
    trace.event("python_function", "nn.Module: MLP_0", 90 * US, 100 * US).write(tmp_path)
    for name, args in (("with", []), ("without", ["--no-details"])):
        assert main(["pack", *args, "-o", str(tmp_path / name), str(tmp_path)]) == 0
    assert only(analyse(tmp_path / "with", details=True).gaps)["module"] == "MLP_0"
    assert only(analyse(tmp_path / "without", details=True).gaps)["module"] is None


def test_operators_of_other_threads_do_not_count(tmp_path):
    trace = gap(thread=777).op("aten::mm", 100 * US, 90 * US)
    row = only(detailed(tmp_path, trace).gaps)
    assert (row["cause"], row["operator"], row["thread"]) == ("outside", None, 777)


def test_a_graph_has_gaps_between_its_kernels(tmp_path):
    trace = Trace().op("aten::mm", 0, US)
    trace.event("cuda_runtime", "cudaGraphLaunch", 10 * US, 20 * US, tid=4242, correlation=5)
    for number, start in enumerate((0, 50, 80)):
        here = {"device": 0, "stream": 7, "correlation": 5 if number else 0}
        trace.event("kernel", f"k{number}", start * US, 5 * US, pid=0, tid=7, **here)
    rows = [(r["before"], r["after"], r["cause"], r["idle_ns"] // US) for r in records(detailed(tmp_path, trace).gaps)]
    assert rows == [("k0", "k1", "launching", 45), ("k1", "k2", "queued", 25)]


# --- what cannot be known --------------------------------------------------------------------------------------------


def unknown(row: Row) -> bool:
    return all(row[name] is None for name in (*DESCRIBED, "thread"))


def test_without_calls_only_the_length_and_the_neighbours_are_known(tmp_path):
    gap().write(tmp_path)
    row = only(analyse(tmp_path, details=False).gaps)
    assert (row["idle_ns"], row["before"], row["after"]) == (100 * US, "gemm", "gemm")
    assert unknown(row)
    assert row["starved_ns"] is None
    assert "were not read" in row["note"]


def test_a_gap_that_no_call_ended_is_unknown(tmp_path):
    row = only(detailed(tmp_path, gap(launch=None).op("aten::mm", 100 * US, 90 * US)).gaps)
    assert (row["cause"], row["unknown_ns"], row["thread"], row["operator"]) == ("unknown", 100 * US, None, None)


def test_a_trace_without_any_call_says_so(tmp_path):
    trace = Trace().kernel("a", 0, 10, launch=None).kernel("b", 90, 10, launch=None).op("aten::mm", 20, 50)
    row = only(detailed(tmp_path, trace).gaps)
    assert (row["cause"], row["call"], row["operator"], row["thread"]) == ("unknown", None, None, None)
    assert "no call of the runtime" in row["note"]


@pytest.mark.parametrize(("took", "cause"), [(20, None), (80, "alloc")])
def test_without_operators_the_cause_is_known_only_if_nothing_else_can_be_larger(tmp_path, took, cause):
    row = only(detailed(tmp_path, call(gap(), "cudaMalloc", 105 * US, took * US)).gaps)
    assert (row["cause"], row["call"]) == (cause, "cudaMalloc")
    assert "no operators" in row["note"]


def test_a_cpu_has_gaps_without_causes(tmp_path):
    trace = Trace(backend="gloo", device_names=()).op("aten::mm", 0, 10 * US).op("aten::add", 30 * US, 10 * US)
    row = only(detailed(tmp_path, trace).gaps)
    assert (row["device"], row["idle_ns"], row["before"], row["after"]) == ("cpu", 20 * US, "aten::mm", "aten::add")
    assert unknown(row)


# --- the command -----------------------------------------------------------------------------------------------------


def many(rank: int) -> Trace:
    """Twelve gaps, each longer than the one before."""
    trace, at = Trace(rank=rank, world=2), 0
    for length in range(13):
        at += length * US
        trace.kernel(f"k{length}", at, US)
        at += US
    return trace


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> list[Row]:
    assert main(["table", "gaps", *args]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_the_longest_of_each_device_come_first(tmp_path, capsys):
    for rank in (0, 1):
        many(rank).write(tmp_path)
    rows = printed(capsys, "--top", "2", "--format", "csv", str(tmp_path))
    assert [(r["rank"], r["idle_ns"], r["after"]) for r in rows] == [
        ("0", "12000", "k12"), ("0", "11000", "k11"), ("1", "12000", "k12"), ("1", "11000", "k11"),
    ]  # fmt: skip
    assert len(printed(capsys, "--format", "csv", str(tmp_path))) == 24
    assert main(["table", "gaps", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("k12") == 2
    assert main(["table", "gaps", str(tmp_path)]) == 0
    assert " k1 " not in capsys.readouterr().out


# --- against idle time -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(tables())
def test_gaps_add_up_to_idle_time(drawn: Drawn) -> None:
    activities, host = as_tables(drawn)
    devices = gaps_of_devices(activities, host)
    result, idle = gaps(devices), only(idle_tables(devices).whole)
    for part in ("idle", *QUEUE, *HOST, "drained"):
        assert result[f"{part}_ns"].sum() == idle[f"{part}_ns"], part
    for row in records(result):
        parts = {part: row[f"{part}_ns"] for part in (*HOST, *QUEUE[1:])}
        assert row["cause"] is None or parts[row["cause"]] == max(parts.values())
        assert row["idle_ns"] == sum(row[f"{part}_ns"] for part in QUEUE) > 0
