"""Calls that launch, and delays until what they launched begins, on traces built in memory."""

from __future__ import annotations

import csv
import io

from builders import US, Trace
from idle_runs import detailed
from nsight_exports import documents_in, export_of

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main


def launched(
    trace: Trace, took: int, launch: int, start: int, dur: int, name: str = "gemm", cat: str = "kernel"
) -> Trace:
    """An activity, and the call that launched it; times in us."""
    number, trace.next_id = trace.next_id, trace.next_id + 1
    trace.event("cuda_runtime", "cudaLaunchKernel", launch * US, took * US, tid=4242, correlation=number)
    return trace.event("kernel", name, start * US, dur * US, pid=0, tid=7, device=0, stream=7, correlation=number)


def of_kind(rows: list[Row], kind: str) -> Row:
    (row,) = [row for row in rows if row["kind"] == kind]
    return row


def test_calls_delays_and_their_outliers(tmp_path):
    trace = launched(Trace(), 5, 0, 10, 4)  # shorter than its call
    launched(trace, 50, 10, 160, 60)  # neither of 50 us nor of 100 us is too much
    launched(trace, 51, 70, 300, 51)
    launched(trace, 10, 400, 390, 20)  # clocks differ: no delay
    row = of_kind(records(detailed(tmp_path, trace).launches), "compute")
    assert (row["activities"], row["launches"], row["unlaunched"]) == (4, 4, 0)
    assert (row["call_ns"], row["ran_ns"]) == (116 * US, 135 * US)
    assert (row["short_kernels"], row["long_calls"], row["long_delays"]) == (1, 1, 1)
    assert (row["call_mean_us"], row["delay_mean_us"]) == (29.0, (5 + 100 + 179 + 0) / 4)
    assert (row["delay_median_us"], row["delay_max_us"]) == ((5 + 100) / 2, 179.0)
    assert row["note"] is None


def test_one_launch_of_a_graph_is_one_call(tmp_path):
    trace = Trace()
    trace.event("cuda_runtime", "cudaGraphLaunch", 0, 30 * US, tid=4242, correlation=5)
    for cat, name, start in (("kernel", "a", 40), ("kernel", "b", 50), ("gpu_memset", "Memset (Device)", 35)):
        trace.event(cat, name, start * US, 10 * US, pid=0, tid=7, device=0, stream=7, correlation=5)
    result = detailed(tmp_path, trace)
    rows = [
        (r["kind"], r["activities"], r["launches"], r["call_ns"] // US, r["delay_max_us"], r["short_kernels"])
        for r in records(result.launches)
    ]
    assert rows == [("compute", 2, 1, 30, 10.0, 1), ("memory", 1, 1, 30, 5.0, 1)]
    assert [(r["name"], r["launches"], r["delay_max_us"]) for r in records(result.launches_names)] == [
        ("Memset (Device)", 1, 5.0), ("a", 1, 10.0), ("b", 1, 20.0),
    ]  # fmt: skip


def test_what_was_launched_before_the_window_is_counted(tmp_path):
    trace = launched(Trace(), 5, 0, 10, 4).kernel("early", 0, US, launch=None)
    rows = {r["name"]: r for r in records(detailed(tmp_path, trace).launches_names)}
    early = rows["early"]
    assert (early["activities"], early["launches"], early["unlaunched"]) == (1, 0, 1)
    assert {early[name] for name in ("call_ns", "call_mean_us", "delay_median_us", "short_kernels")} == {None}
    assert "no call in the trace" in early["note"]
    assert rows["gemm"]["unlaunched"] == 0


def test_ranks_and_devices(tmp_path):
    first, two = Trace(rank=0, world=2), Trace(rank=1, world=2)
    for trace in (first, two):
        trace.kernel("gemm", 10 * US, US).kernel("gemm", 30 * US, US, device=1)
    result = detailed(tmp_path, first, two)
    assert [(r["rank"], r["kind"], r["launches"]) for r in records(result.launches)] == [
        (0, "compute", 2), (1, "compute", 2),
    ]  # fmt: skip


def test_without_calls_only_the_activities_are_known(tmp_path):
    launched(Trace(), 5, 0, 10, 4).write(tmp_path)
    (row,) = records(analyse(tmp_path, details=False).launches)
    assert (row["activities"], row["ran_ns"]) == (1, 4 * US)
    assert {row[name] for name in ("launches", "call_ns", "delay_mean_us", "short_kernels", "unlaunched")} == {None}
    assert "were not read" in row["note"]


def test_recordings_and_exports_have_the_same(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    wanted = records(detailed(run, launched(launched(Trace(), 5, 0, 10, 4), 60, 20, 90, 7, "add")).launches_names)
    assert main(["pack", "-o", str(tmp_path / "packed"), str(run)]) == 0
    assert records(analyse(tmp_path / "packed", details=True).launches_names) == wanted
    export = export_of(documents_in(run)).write(tmp_path / "x.sqlite")
    assert records(analyse(export, details=True).launches_names) == wanted


def test_the_commands(tmp_path, capsys):
    launched(launched(Trace(), 5, 0, 10, 4), 9, 20, 30, 7, "add").write(tmp_path)
    for args, rows in (([], 1), (["--by", "name"], 2), (["--by", "name", "--top", "1"], 1)):
        assert main(["table", "launches", *args, "--format", "csv", str(tmp_path)]) == 0
        assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == rows


def test_a_cpu_launches_nothing(tmp_path, capsys):
    Trace(backend="gloo", device_names=()).op("aten::mm", 0, US).write(tmp_path)
    assert main(["table", "launches", str(tmp_path)]) == 1
    assert "have no launches" in capsys.readouterr().err
