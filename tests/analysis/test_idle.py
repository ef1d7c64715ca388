"""Idle time by cause, and the calls behind it, on traces built in memory and against a count tick by tick."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import replace

import pytest
from builders import LAYOUTS, MS, US, Trace
from hypothesis import assume, given
from idle_runs import as_tables, call, detailed, gap, only, tables

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.metrics.device.idle import HOST, OF_WHICH, QUEUE, gaps_of_devices, is_alloc, is_sync
from commtrace.analysis.metrics.device.idle_pieces import idle_pieces
from commtrace.analysis.metrics.device.syncs import blocking_calls
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.results.opening import analyse, analyse_with
from commtrace.analysis.tables.idle import idle_tables
from commtrace.analysis.tables.syncs import syncs, syncs_steps
from commtrace.analysis.tables.values import host_tables
from commtrace.cli import main

BACKWARD = 777


def parts(row: Row) -> dict[str, int]:
    """The parts of the idle time that are not 0, in us."""
    return {name: row[f"{name}_ns"] // US for name in (*QUEUE, *HOST, "drained") if row[f"{name}_ns"]}


# --- what was queued ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launch", "found"),
    [
        (190 * US, {"starved": 90, "launching": 5, "queued": 5, "outside": 90}),
        (98 * US, {"launching": 3, "queued": 97}),
        (95 * US, {"queued": 100}),
        (20 * US, {"queued": 100}),
        (198 * US, {"starved": 98, "launching": 2, "outside": 98}),
        (230 * US, {"starved": 100, "outside": 100}),  # clocks of device and host differ
        (None, {"unknown": 100}),
    ],
)
def test_a_gap_divides_by_the_call_that_launched_what_ends_it(tmp_path, launch, found):
    row = only(detailed(tmp_path, gap(launch=launch).op("aten::mm", 300 * US, US)).idle)
    assert (row["window_ns"], row["idle_ns"], row["note"]) == (250 * US, 100 * US, None)
    assert parts(row) == found


def test_one_launch_of_a_graph_is_the_call_of_all_its_kernels(tmp_path):
    trace = Trace().op("aten::mm", 0, US)
    trace.event("cuda_runtime", "cudaGraphLaunch", 10 * US, 20 * US, tid=4242, correlation=5)
    for number, start in enumerate((0, 50, 80, 100)):
        own = {"device": 0, "stream": 7, "correlation": 5 if number else 0}
        trace.event("kernel", "gemm", start * US, 5 * US, pid=0, tid=7, **own)
    row = only(detailed(tmp_path, trace).idle)
    assert parts(row) == {"starved": 5, "launching": 20, "queued": 20 + 25 + 15, "outside": 5}


def test_of_activities_that_begin_together_the_one_launched_first_ends_the_gap(tmp_path):
    trace = gap(launch=150 * US).op("aten::mm", 0, US).kernel("memset", 200 * US, 9 * US, launch=120 * US, stream=8)
    assert parts(only(detailed(tmp_path, trace).idle))["starved"] == 20


def test_a_copy_or_fill_ends_and_fills_gaps(tmp_path):
    trace = gap().op("aten::mm", 0, US).memcpy("HtoD", 120 * US, 40 * US, launch=110 * US)
    row = only(detailed(tmp_path, trace).idle)
    assert row["idle_ns"] == 60 * US
    assert parts(row) == {"starved": 10 + 30, "launching": 10, "queued": 10, "outside": 40}


# --- what the host did -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sync", "alloc"),
    [
        ("cudaStreamSynchronize", True, False),
        ("cudaDeviceSynchronize", True, False),
        ("cudaEventSynchronize", True, False),
        ("cudaStreamSynchronize_ptsz", True, False),
        ("cuStreamSynchronize", True, False),
        ("cuCtxSynchronize", True, False),
        ("hipDeviceSynchronize", True, False),
        ("cudaMemcpy", True, False),
        ("cudaMemcpy2D", True, False),
        ("cuMemcpyDtoH_v2", True, False),
        ("hipMemcpy", True, False),
        ("hipMemcpyWithStream", True, False),
        ("cudaMemcpyAsync", False, False),
        ("cudaMemcpy2DAsync", False, False),
        ("cuMemcpyHtoDAsync_v2", False, False),
        ("hipMemcpyAsync", False, False),
        ("cudaMalloc", False, True),
        ("cudaMallocAsync", False, True),
        ("cudaFree", False, True),
        ("cudaHostAlloc", False, True),
        ("cudaHostRegister", False, True),
        ("cuMemCreate", False, True),
        ("cuMemUnmap", False, True),
        ("cuMemAlloc_v2", False, True),
        ("hipMalloc", False, True),
        ("hipFree", False, True),
        ("hipHostMalloc", False, True),
        ("cudaMemsetAsync", False, False),
        ("cuMemsetD8Async", False, False),
        ("cudaLaunchKernel", False, False),
        ("cudaStreamIsCapturing", False, False),
        ("cudaEventQuery", False, False),
        ("cudaFuncGetAttributes", False, False),
    ],
)
def test_which_calls_block_and_which_allocate(name, sync, alloc):
    assert (is_sync(name), is_alloc(name)) == (sync, alloc)


def nested() -> Trace:
    """Gap from 100 to 200 us in which operator, data, allocation and blocking call nest."""
    trace = gap().op("aten::cat", 110 * US, 70 * US)
    trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 120 * US, 50 * US)
    call(trace, "cudaMalloc", 130 * US, 30 * US)
    return call(trace, "cudaDeviceSynchronize", 140 * US, 10 * US)


def test_where_causes_nest_the_first_of_them_counts(tmp_path):
    row = only(detailed(tmp_path, nested()).idle)
    assert parts(row) == {
        "starved": 90, "launching": 5, "queued": 5,
        "sync": 10, "alloc": 20, "data": 20, "operator": 20, "outside": 20,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["c10d::allreduce_", "record_param_comms"])
def test_operators_that_hand_collectives_over_are_operators(tmp_path, name):
    row = only(detailed(tmp_path, gap().op(name, 120 * US, 30 * US).op("aten::mm", 0, US)).idle)
    assert parts(row) == {"starved": 90, "launching": 5, "queued": 5, "operator": 30, "outside": 60}


def test_only_the_thread_that_launches_counts(tmp_path):
    # The backward pass launches from a thread of its own, while the forward's waits for it.
    trace = gap(thread=BACKWARD).op("MulBackward0", 150 * US, 30 * US, thread=BACKWARD)
    call(trace.op("aten::backward", 100 * US, 100 * US), "cudaStreamSynchronize", 100 * US, 80 * US)
    found = detailed(tmp_path, trace)
    assert parts(only(found.idle)) == {"starved": 90, "launching": 5, "queued": 5, "operator": 30, "outside": 60}
    assert only(found.syncs)["lost_ns"] == 0


def test_calls_and_operators_that_reach_out_of_the_gap_count_within_it(tmp_path):
    trace = gap().op("aten::mm", 150 * US, 200 * US)
    found = detailed(tmp_path, call(trace, "cudaStreamSynchronize", 30 * US, 80 * US))
    assert parts(only(found.idle)) == {
        "starved": 90, "launching": 5, "queued": 5, "sync": 10, "operator": 40, "outside": 40, "drained": 90,
    }  # fmt: skip
    row = only(found.syncs)
    assert (row["kind"], row["calls"], row["total_ns"], row["lost_ns"]) == ("sync", 1, 80 * US, 10 * US)


# --- garbage collection, communication on the CPU, compiling ---------------------------------------------------------


def of_which(row: Row) -> dict[str, int]:
    """The parts of operator and outside time that are known and not 0, in us."""
    return {name: row[f"{name}_ns"] // US for name in (*OF_WHICH, "python") if row[f"{name}_ns"]}


def collected(trace: Trace, start: int, dur: int) -> Trace:
    """A run of Python's garbage collector, as torch 2.13 records it."""
    return trace.event("python_function", "Python GC", start, dur, tid=4242)


def test_garbage_is_collected_within_operators_and_outside(tmp_path):
    trace = collected(collected(gap().op("aten::mm", 110 * US, 20 * US), 120 * US, 20 * US), 175 * US, 5 * US)
    row = only(detailed(tmp_path, trace).idle)
    assert (row["operator_ns"], row["outside_ns"]) == (20 * US, 70 * US)
    assert of_which(row) == {"gc": 25, "python": 55}


def test_without_a_record_of_it_garbage_collection_is_not_known(tmp_path):
    trace = gap().op("aten::mm", 110 * US, 20 * US).event("python_function", "gc.py(3): Python GC", 120 * US, 9 * US)
    row = only(detailed(tmp_path, trace).idle)
    assert (row["gc_ns"], of_which(row)) == (None, {"python": 70})


def test_blocking_and_loading_count_before_garbage_collection(tmp_path):
    row = only(detailed(tmp_path, collected(nested(), 100 * US, 90 * US)).idle)
    assert parts(row)["data"] == 20
    assert of_which(row) == {"gc": 40}


@pytest.mark.parametrize(
    ("name", "compiles"),
    [
        ("_compile.compile_inner (dynamo_timed)", True),
        ("CachingAutotuner.benchmark_all_configs (dynamo_timed)", True),
        ("Torch-Compiled Region: 0/0", False),
        ("TorchDynamo Cache Lookup", False),
        ("## Call CompiledFxGraph fabc ##", False),
    ],
)
@pytest.mark.parametrize("category", ["cpu_op", "user_annotation"])
def test_compiling_is_not_running_what_is_compiled(tmp_path, name, compiles, category):
    trace = gap().op("aten::mm", 0, US).event(category, name, 120 * US, 30 * US)
    row = only(detailed(tmp_path, trace).idle)
    is_operator = category == "cpu_op"
    assert row["operator_ns"] == (30 * US if is_operator else 0)
    assert of_which(row) == ({"compile": 30, "python": 60} if compiles else {"python": 60 if is_operator else 90})


C10D_FRAME = "torch/distributed/distributed_c10d.py(5283): "


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("cpu_op", "c10d::barrier"),
        ("cpu_op", "c10d::monitored_barrier_"),
        ("user_annotation", "gloo:recv"),
        ("python_function", f"{C10D_FRAME}barrier"),
        ("python_function", f"{C10D_FRAME}all_gather_object"),
        ("python_function", f"{C10D_FRAME}broadcast_object_list"),
    ],
)
def test_a_cpu_that_communicates(tmp_path, category, name):
    trace = gap().op("aten::mm", 0, US).event(category, name, 120 * US, 30 * US)
    assert of_which(only(detailed(tmp_path, trace).idle)) == {"cpu_comm": 30, "python": 60}


@pytest.mark.parametrize(
    ("meanwhile", "waited"),
    [
        ([], True),
        ([("aten::mul", 155, 5)], True),  # when that has ended
        ([("aten::mul", 140, 5)], False),
        ([("aten::mul", 112, 2)], True),  # within the operator that hands the collective over
    ],
)
def test_a_thread_that_stands_still_waits_for_gloo(tmp_path, meanwhile, waited):
    trace = gap().c10d("allreduce_", 110 * US, 10 * US).gloo("all_reduce", 115 * US, 35 * US)
    for name, start, dur in meanwhile:
        trace.op(name, start * US, dur * US)
    row = only(detailed(tmp_path, trace.op("aten::mm", 0, US)).idle)
    assert row["cpu_comm_ns"] == (40 * US if waited else 0)


def test_handing_a_collective_to_the_device_is_no_communication_of_the_cpu(tmp_path):
    trace = gap().op("aten::mm", 0, US).event("python_function", f"{C10D_FRAME}all_reduce", 120 * US, 30 * US)
    assert of_which(only(detailed(tmp_path, trace).idle)) == {"python": 90}


def test_what_other_threads_hand_to_gloo_nobody_here_waits_for(tmp_path):
    trace = gap().c10d("allreduce_", 110 * US, 10 * US, thread=BACKWARD).gloo("all_reduce", 115 * US, 35 * US)
    assert of_which(only(detailed(tmp_path, trace.op("aten::mm", 0, US)).idle)) == {"python": 90}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_garbage_collection_is_read_from_any_layout_and_kept_in_recordings(tmp_path, layout):
    run, packed = tmp_path / "run", tmp_path / "packed"
    trace = gap().op("aten::mm", 0, US).event("python_function", "f.py(1): f", 100 * US, US)
    trace.event("python_function", f"{C10D_FRAME}barrier", 150 * US, 7 * US)
    collected(trace, 120 * US, 9 * US).write(run, layout=layout)
    assert main(["pack", "-o", str(packed), str(run)]) == 0
    for path in (run, packed):
        assert of_which(only(analyse(path, details=True).idle)) == {"gc": 9, "cpu_comm": 7, "python": 74}
    assert not analyse(run, details=False).run.annotations["name"].str.contains("Python GC|barrier").any()


@pytest.mark.parametrize(("start", "dur", "drains"), [(99, 2, True), (100, 5, False), (90, 10, False), (0, 500, True)])
def test_a_gap_is_drained_if_it_begins_within_a_blocking_call(tmp_path, start, dur, drains):
    trace = call(gap().op("aten::mm", 0, US), "cudaStreamSynchronize", start * US, dur * US)
    assert only(detailed(tmp_path, trace).idle)["drained_ns"] == (90 * US if drains else 0)


# --- what cannot be known ------------------------------------------------------------------------------------------


def causes(row: Row) -> set[int | None]:
    return {row[f"{name}_ns"] for name in (*QUEUE, *HOST, *OF_WHICH, "python", "drained")}


def test_without_calls_the_causes_are_not_known(tmp_path):
    gap().write(tmp_path)
    found = analyse(tmp_path, details=False)
    row = only(found.idle)
    assert (row["idle_ns"], causes(row)) == (100 * US, {None})
    assert "were not read" in row["note"]
    assert not len(found.syncs)


def test_a_cpu_has_no_launches(tmp_path):
    trace = Trace(backend="gloo", device_names=()).op("aten::mm", 0, 10 * US).op("aten::mm", 30 * US, 10 * US)
    row = only(detailed(tmp_path, trace).idle)
    assert (row["device"], row["idle_ns"], causes(row)) == ("cpu", 20 * US, {None})
    assert "without a GPU" in row["note"]


def test_without_operators_it_is_not_known_what_the_host_did_besides_calls(tmp_path):
    row = only(detailed(tmp_path, call(gap(), "cudaMalloc", 120 * US, 30 * US)).idle)
    assert (row["starved_ns"], row["alloc_ns"], row["sync_ns"]) == (90 * US, 30 * US, 0)
    assert [row[f"{name}_ns"] for name in ("data", "operator", "outside", *OF_WHICH, "python")] == [None] * 7
    assert "no operators" in row["note"]


def test_a_trace_without_any_call_says_so(tmp_path):
    row = only(detailed(tmp_path, Trace().kernel("a", 0, 10, launch=None).kernel("b", 90, 10, launch=None)).idle)
    assert (row["unknown_ns"], row["idle_ns"]) == (80, 80)
    assert "no call of the runtime" in row["note"]


def test_devices_of_one_process_are_kept_apart(tmp_path):
    trace = gap().op("aten::mm", 0, US)
    trace.kernel("gemm", 0, 150 * US, device=1).kernel("gemm", 200 * US, 50 * US, device=1, launch=20 * US)
    rows = records(detailed(tmp_path, trace).idle)
    assert [(row["device"], row["idle_ns"], row["starved_ns"]) for row in rows] == [
        ("0", 100 * US, 90 * US),
        ("1", 50 * US, 0),
    ]


# --- blocking and allocating calls ---------------------------------------------------------------------------------


def test_calls_by_kind_operator_and_step(tmp_path):
    trace = nested().step(3, 0, 145 * US).step(4, 145 * US, 400 * US)
    call(trace, "cudaMalloc", 152 * US, 4 * US)
    found = detailed(tmp_path, trace)
    rows = [(r["step"], r["kind"], r["name"], r["operator"], r["calls"]) for r in records(found.syncs_steps)]
    assert rows == [
        (3, "alloc", "cudaMalloc", "aten::cat", 1),
        (3, "sync", "cudaDeviceSynchronize", "aten::cat", 1),
        (4, "alloc", "cudaMalloc", "aten::cat", 1),
    ]
    assert [(r["kind"], r["lost_ns"] // US, r["longest_ns"] // US) for r in records(found.syncs)] == [
        ("alloc", 20, 30),  # the second call lies within the first: each ns counts once
        ("sync", 10, 10),
    ]


@pytest.mark.parametrize(
    ("copy", "rows"),
    [
        ("DtoH (Device -> Pageable)", [("copy", "cudaMemcpyAsync", 80)]),
        ("DtoH (Device -> Pinned)", []),
        ("HtoD (Pageable -> Device)", []),  # the CPU may go on once the driver has what it copies
        ("DtoH (Device -> Host)", []),  # ROCm does not say which memory that is
    ],
)
def test_a_copy_to_pageable_memory_holds_the_cpu(tmp_path, copy, rows):
    trace = Trace().kernel("gemm", 0, 70 * US)
    trace.kernel(f"Memcpy {copy}", 80 * US, 5 * US, cat="gpu_memcpy", launch=None)
    correlation = trace.events[-1]["args"]["correlation"]
    trace.event("cuda_runtime", "cudaMemcpyAsync", 10 * US, 80 * US, correlation=correlation)
    found = records(detailed(tmp_path, trace).syncs)
    assert [(row["kind"], row["name"], row["total_ns"] // US) for row in found] == rows


def test_an_operator_that_ends_as_the_call_begins_is_not_around_it(tmp_path):
    trace = gap().op("aten::mm", 100 * US, 80 * US).op("aten::view", 110 * US, 20 * US)
    found = only(detailed(tmp_path, call(trace, "cudaFree", 130 * US, 20 * US)).syncs)
    assert found["operator"] == "aten::mm"


def test_the_commands(tmp_path, capsys):
    nested().step(3, 0, 400 * US).write(tmp_path)
    for command, rows in (("idle", 1), ("idle --by step", 1), ("table syncs", 2), ("table syncs --by step", 2)):
        assert main([*command.split(), "--format", "csv", str(tmp_path)]) == 0
        table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert len(table) == rows, command


def test_no_blocking_call_is_a_result_and_calls_not_read_are_none(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    gap().nccl("all_reduce", 300 * US, MS).write(run)
    assert main(["table", "syncs", str(run)]) == 0
    assert "no call of the runtime blocked" in capsys.readouterr().out
    assert main(["pack", "--no-details", "-o", str(tmp_path / "packed"), str(run)]) == 0
    assert main(["table", "syncs", str(tmp_path / "packed")]) == 1
    assert "--no-details" in capsys.readouterr().err
    assert main(["idle", "--format", "csv", str(tmp_path / "packed")]) == 0


# --- the first screen ----------------------------------------------------------------------------------------------


def test_details_are_read_for_the_first_screen_however_large_the_run_is(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    nested().write(run)
    wanted = ReadOptions(details_if_recorded=True)
    assert only(analyse_with(run, wanted).idle)["sync_ns"] == 10 * US
    assert not analyse_with(run, ReadOptions()).run.details
    assert only(analyse_with(run, replace(wanted, sizes=ReadSizes(ranks_bytes=0))).idle)["sync_ns"] == 10 * US


@pytest.mark.parametrize("kept", [["--no-details"], []])
def test_a_recording_without_details_is_as_good_for_the_first_screen(tmp_path, kept):
    run, packed = tmp_path / "run", tmp_path / "packed"
    run.mkdir()
    nested().write(run)
    assert main(["pack", *kept, "-o", str(packed), str(run)]) == 0
    found = analyse_with(packed, ReadOptions(details_if_recorded=True))
    assert found.run.details != bool(kept)
    assert not any("--no-details" in note for note in found.run.notes)
    assert only(found.idle)["sync_ns"] == (None if kept else 10 * US)


# --- tick by tick --------------------------------------------------------------------------------------------------


def within(row: Row, tick: int) -> bool:
    return bool(row["start_ns"] <= tick < row["start_ns"] + row["dur_ns"])


def ticks(activities: list[Row], calls: list[Row], operators: list[Row], marks: list[Row]) -> dict[int, Counter[str]]:
    """What each tick of the window counts as."""
    begin = min(row["start_ns"] for row in activities)
    end = max(row["start_ns"] + row["dur_ns"] for row in activities)
    idle = [t for t in range(begin, end) if not any(within(row, t) for row in activities)]
    found: dict[int, Counter[str]] = {}
    for tick in idle:
        last = next(t for t in range(tick, end) if t + 1 not in idle) + 1
        first = next(t for t in range(tick, begin - 1, -1) if t - 1 not in idle)
        launches = [
            min((c for c in calls if c["correlation"] == row["correlation"]), key=lambda c: c["start_ns"])
            for row in activities
            if row["start_ns"] == last and row["correlation"] in {c["correlation"] for c in calls} - {None}
        ]
        counts = found[tick] = Counter({"idle": 1})
        if not launches:
            counts["unknown"] += 1
            continue
        launch = min(launches, key=lambda c: c["start_ns"])
        if tick >= launch["start_ns"]:
            counts["launching" if within(launch, tick) else "queued"] += 1
            continue
        ran = [{**row, "is_operator": True} for row in operators]
        own = [row for row in (*calls, *ran, *marks) if row["thread"] == launch["thread"]]
        now = [row for row in own if within(row, tick)]
        cause = next((cause for cause in HOST if any(_is(cause, row) for row in now)), "outside")
        counts[cause] += 1
        if cause in ("operator", "outside"):
            sorts = {
                "gc": any(row["name"] == "Python GC" for row in now),
                "cpu_comm": any(row["name"] in ("c10d::barrier", "gloo:send") for row in now)
                or any(begin <= tick < end for begin, end in stood_still(own, marks, launch["thread"])),
                "compile": any("dynamo_timed" in row["name"] for row in now),
                "python": cause == "outside",
            }
            counts.update([sort for sort, holds in sorts.items() if holds][:1])
        counts["starved"] += 1
        counts["drained"] += any(
            _is("sync", row) and row["start_ns"] < first < row["start_ns"] + row["dur_ns"] for row in own
        )
    return found


def stood_still(own: list[Row], marks: list[Row], thread: int) -> list[tuple[int, int]]:
    """When a thread with these events handed a collective to gloo and did nothing else until that was done."""
    work = sorted((row for row in marks if row["thread"] != thread and row["name"] == "gloo:send"), key=_since)
    found = []
    for handed in own:
        after = [row for row in work if row["start_ns"] >= handed["start_ns"]]
        if handed["name"].startswith("c10d") and after:
            end = after[0]["start_ns"] + after[0]["dur_ns"]
            returned = handed["start_ns"] + handed["dur_ns"]
            if all(end <= row["start_ns"] for row in own if row["start_ns"] >= returned):
                found.append((handed["start_ns"], end))
    return found


def _since(row: Row) -> int:
    return int(row["start_ns"])


def _is(cause: str, row: Row) -> bool:
    sorts = {"cudaStreamSynchronize": "sync", "cudaMemcpy": "sync", "cudaMalloc": "alloc", "aten::mm": "operator",
             "enumerate(DataLoader)#x": "data", "c10d::send": "operator", "c10d::barrier": "operator"}  # fmt: skip
    return sorts.get(row["name"]) == cause or (cause == "operator" and row.get("is_operator", False))


@pytest.mark.slow
@given(tables())
def test_every_tick_counts_once(drawn):
    activities, calls, _, marks = drawn
    # Of several calls that begin together with one correlation, either may be the first.
    known = [(c["correlation"], c["start_ns"]) for c in calls if c["correlation"]]
    issued = [c["start_ns"] for c in calls if c["correlation"]]
    assume(len(set(known)) == len(known) and len(set(issued)) == len(issued))
    # Nor is it known which of several that begin together is the one that gloo was handed.
    worked = [(row["thread"], row["start_ns"]) for row in marks if row["name"] == "gloo:send"]
    assume(len(set(worked)) == len(worked))
    table, host = as_tables(drawn)
    found, wanted = idle_tables(gaps_of_devices(table, host)), ticks(*drawn)
    row, sums = only(found.whole), sum(wanted.values(), Counter())
    if not calls:
        assert row["note"]
    has_gc = bool(calls) and any(mark["name"] == "Python GC" for mark in marks)
    assert has_gc or row["gc_ns"] is None or not calls
    counted = [part for part in (*OF_WHICH, "python") if part != "gc" or has_gc]
    for part in ("idle", *QUEUE, *HOST, "drained", *counted):
        assert row[f"{part}_ns"] == sums[part], part
    stepped = [a for a in activities if a["step"]]
    numbers = sorted({a["step"] for a in stepped})
    begins = [min(a["start_ns"] for a in stepped if a["step"] >= number) for number in numbers]
    ends = [*begins[1:], max((a["start_ns"] + a["dur_ns"] for a in stepped), default=0)][: len(numbers)]
    for step, number, begin, end in zip(records(found.steps), numbers, begins, ends, strict=True):
        assert (step["step"], step["window_ns"]) == (number, end - begin)
        inside = sum((counts for tick, counts in wanted.items() if begin <= tick < end), Counter())
        for part in ("idle", *QUEUE, *HOST, "drained", *counted):
            assert step[f"{part}_ns"] == inside[part], part
    each = blocking_calls(gaps_of_devices(table, host), host)
    for rows in (records(syncs(each, ())), records(syncs_steps(each))):
        for kind in ("sync", "alloc"):
            assert sum(r["lost_ns"] for r in rows if r["kind"] == kind) == sums[kind]
        blocking = sum(r["calls"] for r in rows if r["kind"] != "compile")
        assert blocking == sum(c["name"] != "cudaLaunchKernel" for c in calls)


@pytest.mark.slow
@given(tables())
def test_pieces_lie_apart_and_add_up_by_cause(drawn):
    table, host = as_tables(drawn)
    pieces, found = idle_pieces(table, host), idle_tables(gaps_of_devices(table, host))
    assert (pieces["end_ns"] > pieces["start_ns"]).all()
    assert (pieces["start_ns"].to_numpy()[1:] >= pieces["end_ns"].to_numpy()[:-1]).all()
    lasts = pieces["end_ns"] - pieces["start_ns"]
    whole = only(found.whole)
    causes = ["launching", "queued", "unknown", *HOST]
    assert lasts.groupby(pieces["cause"]).sum().to_dict() == {c: whole[f"{c}_ns"] for c in causes if whole[f"{c}_ns"]}
    for step in records(found.steps):
        of_step = lasts[pieces["step"] == step["step"]].groupby(pieces["cause"]).sum().to_dict()
        assert of_step == {c: step[f"{c}_ns"] for c in causes if step[f"{c}_ns"]}


@pytest.mark.parametrize("details", [True, False])
def test_pieces_name_no_cause_that_is_not_known(tmp_path, details):
    """Without operators, nothing tells what a CPU did that was in no call; without details, nothing at all."""
    trace = call(gap(), "cudaMalloc", 110 * US, 30 * US)
    trace.write(tmp_path)
    found = analyse(tmp_path, details=details)
    pieces = idle_pieces(found.run.activities, found.of(host_tables))
    zero_ns = pieces["start_ns"].min() - 100 * US
    times = [(row["cause"], *((row[key] - zero_ns) // US for key in ("start_ns", "end_ns"))) for row in records(pieces)]
    alloc = [("starved", 100, 110), ("alloc", 110, 140), ("starved", 140, 190)]
    assert times == ([*alloc, ("launching", 190, 195), ("queued", 195, 200)] if details else [("idle", 100, 200)])
