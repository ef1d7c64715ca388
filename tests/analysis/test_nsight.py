"""Exports of Nsight Systems: the same tables as from Kineto traces of the same run, and what exports lack."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from nsight_exports import (
    ALL_REDUCE,
    KERNEL,
    SYSTEM_NS,
    UTC_NS,
    Export,
    add,
    documents,
    export_of,
    process,
    small,
)  # fmt: skip

from commtrace import analyse
from commtrace.analysis.core.markers import COMPILING
from commtrace.analysis.core.schema import records
from commtrace.analysis.core.tables.events import EVENT_SORTS, EventColumn
from commtrace.analysis.errors import MixedJobs, NotATrace
from commtrace.analysis.formats.nsight.reader import read_nsight
from commtrace.analysis.recording.arrays import integers
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.replay.cycles import rank_programs
from commtrace.analysis.replay.edges import gpu_edges
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.tables.replay import played_tables
from commtrace.cli import main

UNTOLD = {"dtype", "process_group", "seq", "matched_by", "device_name", "count_elems"}
"""Columns that differ: NCCL says bytes and communicators, where torch says dtypes, names and sequence numbers."""


def assert_same(found: Analysis, wanted: Analysis, *tables: str) -> None:
    for name in tables:
        ours, theirs = (getattr(one, name).drop(columns=UNTOLD, errors="ignore") for one in (found, wanted))
        pd.testing.assert_frame_equal(ours, theirs, obj=name)


def one_file(documents: Sequence[dict[str, Any]], folder: Path) -> None:
    export_of(documents).write(folder / "report.sqlite")


def a_file_per_host(documents: Sequence[dict[str, Any]], folder: Path) -> None:
    for host in {document["host_name"] for document in documents}:
        export_of([one for one in documents if one["host_name"] == host]).write(folder / f"{host}.sqlite")


def a_file_per_rank(documents: Sequence[dict[str, Any]], folder: Path) -> None:
    for number, document in enumerate(documents):
        export_of([document]).write(folder / f"report{9 - number}.sqlite")


@pytest.mark.quick_cases("plain-one_file")
@pytest.mark.parametrize(
    ("name", "spread"),
    [
        ("plain", one_file),
        ("plain", a_file_per_rank),
        pytest.param("two hosts", a_file_per_host, marks=pytest.mark.slow),
        pytest.param("two hosts", a_file_per_rank, marks=pytest.mark.slow),
        pytest.param("pipeline", a_file_per_host, marks=pytest.mark.slow),
        pytest.param("rooted", one_file, marks=pytest.mark.slow),
        pytest.param("ring", one_file, marks=pytest.mark.slow),
        pytest.param("straggler", one_file, marks=pytest.mark.slow),
        pytest.param("cross", a_file_per_host, marks=pytest.mark.slow),
    ],
)
def test_tables_are_those_of_the_same_run_as_kineto_traces(
    tmp_path: Path, name: str, spread: Callable[[Sequence[dict[str, Any]], Path], None]
) -> None:
    made = documents(name, tmp_path / "kineto")
    (tmp_path / "nsight").mkdir()
    spread(made, tmp_path / "nsight")
    wanted, found = (analyse(tmp_path / kind, cache=False) for kind in ("kineto", "nsight"))
    assert found.run.ranks == wanted.run.ranks
    assert found.run.world_size == wanted.run.world_size
    assert_same(found, wanted, "breakdown", "breakdown_steps", "kernels", "kernels_devices", "collectives")
    assert found.calls["size_bytes"].notna().sum() == wanted.calls["size_bytes"].notna().sum()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return documents("plain", tmp_path_factory.mktemp("kineto"))


@pytest.mark.slow
def test_without_payloads_ranks_are_counted_and_sizes_are_not_known(tmp_path: Path, plain: Any) -> None:
    told = analyse(export_of(plain).write(tmp_path / "told.sqlite"), cache=False)
    found = analyse(export_of(plain, payloads=False).write(tmp_path / "report.sqlite"), cache=False)
    assert_same(found, told, "breakdown", "kernels")
    assert found.run.ranks == [0, 1, 2, 3]
    assert found.run.world_size is None
    assert found.collectives["size_bytes"].isna().all()
    notes = " ".join(found.run.notes)
    assert "rank 0 is process 4000, rank 1 is process 4007" in notes
    assert "report.sqlite: has no ranges of NCCL, so sizes and groups of collectives are not known" in notes


@pytest.mark.slow
def test_payloads_that_were_not_exported_are_what_is_missing(tmp_path: Path, plain: Any) -> None:
    export = export_of(plain)
    export.rows["META_DATA_EXPORT"] = [("EXPORT_PARAM_INCLUDE_BLOBS", "false")]
    found = analyse(export.write(tmp_path / "report.sqlite", without=["NVTX_EVENTS.binaryData"]), cache=False)
    assert "nsys export --type sqlite --include-blobs=true" in " ".join(found.run.notes)
    assert found.collectives["size_bytes"].isna().all()


@pytest.mark.slow
def test_columns_and_tables_that_older_exports_lack(tmp_path: Path, plain: Any) -> None:
    whole = analyse(export_of(plain[:1]).write(tmp_path / "rank0.sqlite"), cache=False)
    without = [
        "CUPTI_ACTIVITY_KIND_KERNEL.demangledName", "CUPTI_ACTIVITY_KIND_KERNEL.globalPid",
        "CUPTI_ACTIVITY_KIND_MEMCPY.globalPid", "TARGET_INFO_SESSION_START_TIME.systemClockNs", "NVTX_EVENTS.textId",
        "NVTX_EVENTS.binaryData", "NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES", "META_DATA_EXPORT",
        "PROCESSES", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_GPU",
    ]  # fmt: skip
    export = export_of(plain[:1])
    found = analyse(export.write(tmp_path / "rank1.sqlite", without=without), cache=False)
    assert_same_but_rank(found, whole, "breakdown", "breakdown_steps")
    whole = replace(whole, whole=True)  # the next one has no steps
    bare = [*without, "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "TARGET_INFO_SESSION_START_TIME"]
    assert_same_but_rank(analyse(export.write(tmp_path / "rank2.sqlite", without=bare), cache=False), whole, "kernels")


def assert_same_but_rank(found: Analysis, wanted: Analysis, *tables: str) -> None:
    for name in tables:
        ours, theirs = (getattr(one, name) for one in (found, wanted))
        left_out = [*UNTOLD, "rank", "n_no_step", "name"]
        pd.testing.assert_frame_equal(*(t.drop(columns=left_out, errors="ignore") for t in (ours, theirs)), obj=name)


def test_times_count_from_the_epoch_by_the_clock_of_the_system(tmp_path: Path) -> None:
    path = small().write(tmp_path / "rank0.sqlite")
    assert analyse(path).run.activities["start_ns"].tolist() == [UTC_NS, UTC_NS + 50]
    older = small().write(path, without=["TARGET_INFO_SESSION_START_TIME.systemClockNs"])
    assert analyse(older).run.activities["start_ns"].tolist() == [UTC_NS + SYSTEM_NS, UTC_NS + SYSTEM_NS + 50]
    shift = UTC_NS - SYSTEM_NS
    normalised = Export()
    normalised.about()
    add(normalised, [(KERNEL, shift, shift + 100)], pid=7, gpu=0)
    found = analyse(normalised.write(path)).run.activities
    assert found["start_ns"].tolist() == [UTC_NS]
    assert found["dur_ns"].tolist() == [100]


def test_one_process_with_several_gpus_is_one_rank(tmp_path: Path) -> None:
    export = small()
    add(export, [(KERNEL, 0, 30)], pid=7, gpu=1)
    found = analyse(export.write(tmp_path / "report.sqlite"))
    assert found.breakdown[["rank", "device", "compute_ns"]].to_numpy().tolist() == [[0, "0", 100], [0, "1", 30]]


def test_processes_that_only_help_are_not_ranks(tmp_path: Path) -> None:
    export = small(pid=8)
    add(export, [(ALL_REDUCE, 0, 30)], pid=7, gpu=1)
    add(export, [("resize(uchar*)", 0, 30)], pid=6, gpu=0)
    found = analyse(export.write(tmp_path / "report.sqlite"))
    assert found.run.traces[["rank", "pid"]].to_numpy().tolist() == [[0, 8], [1, 7]]  # by their GPUs
    assert any("left out what did not communicate, as the others did: process 6" in note for note in found.run.notes)


@pytest.mark.slow
def test_a_rank_in_a_file_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = small()
    add(export, [(ALL_REDUCE, 0, 30)], pid=8, gpu=1)
    path = export.write(tmp_path / "report.sqlite")
    assert main(["breakdown", f"{path}/rank1-pid8", "-f", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("1,1,")
    assert main(["pack", "-o", str(tmp_path / "packed"), str(path)]) == 0
    assert sorted(one.name for one in (tmp_path / "packed").iterdir()) == [
        "report.rank0-pid7.ctrace", "report.rank1-pid8.ctrace",
    ]  # fmt: skip
    assert_same(analyse(tmp_path / "packed"), analyse(path), "breakdown", "kernels")


def test_files_of_different_runs_are_not_taken_for_ranks(tmp_path: Path) -> None:
    small().write(tmp_path / "before.sqlite")
    small([(ALL_REDUCE, 10**10, 10**10 + 50)]).write(tmp_path / "after.sqlite")
    with pytest.raises(MixedJobs, match="captured one after the other"):
        analyse(tmp_path)
    small().write(tmp_path / "after.sqlite")
    assert analyse(tmp_path).run.ranks == [0, 1]


@pytest.mark.parametrize(
    ("variables", "ranks", "world"),
    [
        (("RANK=5;WORLD_SIZE=8;A=1", "WORLD_SIZE=8;LOCAL_RANK=0;RANK=1"), [1, 5], 8),
        (("OMPI_COMM_WORLD_RANK=1;OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0;OMPI_COMM_WORLD_SIZE=2"), [0, 1], 2),
        (("SLURM_PROCID=3;SLURM_NTASKS=4", "SLURM_PROCID=2"), [2, 3], None),
        (("RANK=0;WORLD_SIZE=1", "RANK=0;WORLD_SIZE=1"), [0, 1], None),  # the same: they are counted
        (("RANK=9;WORLD_SIZE=2", "RANK=1"), [0, 1], None),  # not possible
        (("LOCAL_RANK=3", "MY_RANK=7;RANK=x"), [0, 1], None),
    ],
)
def test_variables_of_launchers_tell_ranks(
    tmp_path: Path, variables: tuple[str, str], ranks: list[int], world: int | None
) -> None:
    for name, told in zip("ab", variables, strict=True):
        export = small()
        export.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=told)
        export.write(tmp_path / f"{name}.sqlite")
    found = analyse(tmp_path)
    assert found.run.ranks == ranks
    assert found.run.world_size == world


@pytest.mark.parametrize(
    ("functions", "collective"),
    [
        ("ncclCommCount ncclGroupStart ncclSend ncclRecv ncclSend ncclRecv ncclGroupEnd", "all_to_all"),
        ("ncclGroupStart ncclSend ncclRecv ncclSend ncclRecv ncclGroupEnd", None),  # may be an exchange of neighbours
        ("ncclCommCount ncclGroupStart ncclSend ncclRecv ncclSend ncclGroupEnd", None),
        ("ncclCommCount ncclGroupStart ncclSend ncclRecv ncclGroupEnd", None),
        ("ncclSend ncclSend ncclRecv ncclRecv ncclGroupEnd", None),  # the window began in between
        ("ncclAllGather", "all_gather"),
    ],
)
def test_what_functions_of_nccl_tell_without_payloads(tmp_path: Path, functions: str, collective: str | None) -> None:
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    export = small([(name, 0, 100)])
    names = functions.split()
    for place, function in enumerate(names):
        at = SYSTEM_NS - 15 - 20 * (len(names) - 1 - place)  # the last is around the launch
        export.range(process(7) + 7, function, at - 8, at + 8, nccl=True)
    found = analyse(export.write(tmp_path / "report.sqlite"))
    assert found.calls["collective"].dropna().tolist() == ([collective] if collective else [])
    assert found.calls["size_bytes"].isna().all()


def test_sessions_on_one_host_have_one_clock(tmp_path: Path) -> None:
    """Each notes what time it is when it begins, and the clock of the system, by which it counts."""
    for rank, wrong_ns in enumerate((0, 300_000)):
        export = small()
        export.rows["TARGET_INFO_SESSION_START_TIME"] = [(UTC_NS + wrong_ns, None, None, SYSTEM_NS)]
        export.write(tmp_path / f"report_rank{rank}.sqlite")
    starts = analyse(tmp_path, cache=False).run.activities.groupby("rank")["start_ns"].min()
    assert starts.tolist() == [UTC_NS, UTC_NS]
    alone = analyse(tmp_path / "report_rank1.sqlite", cache=False).run.activities
    assert alone["start_ns"].min() == UTC_NS + 300_000


def test_copies_fills_and_graphs(tmp_path: Path) -> None:
    export = small([(KERNEL, 0, 10)])
    place = {"deviceId": 0, "streamId": 7, "contextId": 1, "globalPid": process(7)}
    for number, (way, source, target) in enumerate([(1, None, None), (8, 0, 0), (8, 0, 1), (10, 1, 0)]):
        at = SYSTEM_NS + 20 * (number + 1)
        export.add("CUPTI_ACTIVITY_KIND_MEMCPY", **place, start=at, end=at + 10, correlationId=50 + number, bytes=4096,
                   copyKind=way, srcKind=1, dstKind=2, srcDeviceId=source, dstDeviceId=target)  # fmt: skip
    at = SYSTEM_NS + 200
    export.add("CUPTI_ACTIVITY_KIND_MEMSET", **place, start=at, end=at + 10, correlationId=60, bytes=4, memKind=2)
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", **place, start=at + 50, end=at + 60, correlationId=61, graphId=1)
    found = analyse(export.write(tmp_path / "report.sqlite"))
    assert found.run.activities[["kind", "name"]].to_numpy().tolist() == [
        ["compute", KERNEL], ["memory", "Memcpy HtoD (Pinned -> Device)"], ["memory", "Memcpy DtoD (Pinned -> Device)"],
        ["comm", "Memcpy PtoP (Pinned -> Device)"], ["comm", "Memcpy PtoP (Pinned -> Device)"],
        ["memory", "Memset (Device)"], ["compute", "CUDA graph"],
    ]  # fmt: skip
    assert found.calls[["collective", "size_bytes"]].to_numpy().tolist() == [["peer_copy", 4096]] * 2
    assert any("1 run of CUDA graphs traced as a whole" in note for note in found.run.notes)


@pytest.mark.parametrize(
    "written", [one for one in EVENT_SORTS["activities"].held if one.nsight], ids=lambda one: one.name
)
def test_columns_of_kernels_are_read_where_they_are_declared(tmp_path: Path, written: EventColumn) -> None:
    """Also such as these exports do not have yet: whatever is declared is asked for."""
    export = small()
    path = export.write(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")]
        if written.nsight not in columns:
            database.execute(f'ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN "{written.nsight}"')
        database.execute(f'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "{written.nsight}" = 40 + rowid')
    raw = read_nsight(path, ReadOptions())
    assert sorted(integers(raw.activities[written.name]).tolist()) == [41, 42]


def test_blocks_per_multiprocessor(tmp_path: Path) -> None:
    export = small()
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=7)
    found = analyse(export.write(tmp_path / "report.sqlite"))
    assert found.run.activities["blocks_per_sm"].tolist() == [0.5, 0.5]
    assert found.gpus["device_name"].tolist() == ["H100"]


def test_operators_and_calls_with_details(tmp_path: Path) -> None:
    export = small()
    for name, start, end in (("forward", -30, 200), ("aten::mm, seq = 3, op_id = 17, sizes = [[2, 3]]", -25, -5)):
        export.range(process(7) + 7, name, SYSTEM_NS + start, SYSTEM_NS + end)
    found = analyse(export.write(tmp_path / "report.sqlite"), details=True)
    assert found.operators[["operator", "total_ns"]].to_numpy().tolist() == [["aten::mm", 100], ["forward", 50]]
    assert found.run.runtime_calls["name"].tolist() == ["cudaLaunchKernel"] * 2


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["ProfilerStep#4", "ProfilerStep#5", "step 1", "step 2"], [4, 5]),
        (["step 3", "step 4", "step 5"], [3, 4, 5]),
        (["iteration7", "iteration8"], [7, 8]),
        (["Train Step: 12", "Train Step: 13"], [12, 13]),
        (["global_step=2", "global_step=3"], [2, 3]),
        (["batch [0]", "batch [1]", "batch [0]", "batch [1]"], [0, 1, 2, 3]),  # once an epoch
        (["train_step", "train_step", "train_step"], [0, 1, 2]),
        (["Prefill", "Decode", "Decode"], [0, 1, 2]),  # Megatron
        (["step 1"], []),  # one may be anything
        (["optimizer.step", "optimizer.step"], []),
        (["layer 1", "layer 2", "stepwise 3", "stepwise 4", "aten::batch_norm"], []),
    ],
)
def test_ranges_that_are_steps(tmp_path: Path, names: list[str], steps: list[int]) -> None:
    export = small()
    for place, name in enumerate(names):
        export.range(process(7) + 7, name, SYSTEM_NS + 100 * place - 30, SYSTEM_NS + 100 * place + 60)
    found = analyse(export.write(tmp_path / "report.sqlite")).run
    named = found.annotations["name"].tolist()
    assert [name for name in named if name.startswith("ProfilerStep")] == [f"ProfilerStep#{step}" for step in steps]
    said = any("are taken for steps" in note for note in found.notes)
    assert said == bool(steps and not names[0].startswith(("ProfilerStep", "Prefill")))


def waiting(*, with_records: bool) -> Export:
    """Two streams: the second waits for what the first did up to the first of two records, not the second."""
    export = Export()
    export.about()
    names = ("gemm", "cudaEventRecord", "gemm", "cudaEventRecord", "cudaStreamWaitEvent", "norm")
    streams = (7, None, 7, None, None, 20)
    times = ((0, 1000), None, (1000, 9000), None, None, (1010, 2000))
    for number, (name, stream, span) in enumerate(zip(names, streams, times, strict=True)):
        called = "cudaLaunchKernel" if span else name
        at = SYSTEM_NS - 600 + 100 * number
        export.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=at, end=at + 20, globalTid=process(7) + 7, correlationId=number,
                   nameId=export.text(f"{called}_v3020"))  # fmt: skip
        own = {"deviceId": 0, "contextId": 1, "correlationId": number, "globalPid": process(7)}
        if span:
            export.add("CUPTI_ACTIVITY_KIND_KERNEL", **own, start=SYSTEM_NS + span[0], end=SYSTEM_NS + span[1],
                       streamId=stream, demangledName=export.text(name), shortName=export.text(name))  # fmt: skip
        elif name == "cudaStreamWaitEvent":
            export.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **own | {"deviceId": 3}, start=at, end=at + 5,
                       streamId=20, syncType=2, eventId=18, eventSyncId=40)  # fmt: skip
        elif with_records:
            export.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", **own, streamId=7, eventId=18, eventSyncId=39 + number // 2)
    return export


def test_stream_waits_name_the_event_that_they_wait_for(tmp_path: Path) -> None:
    export = waiting(with_records=True)
    export.rows["CUPTI_ACTIVITY_KIND_CUDA_EVENT"][0] = (
        *export.rows["CUPTI_ACTIVITY_KIND_CUDA_EVENT"][0][:-1], 40,
    )  # fmt: skip
    export.rows["CUPTI_ACTIVITY_KIND_CUDA_EVENT"].pop()
    found = analyse(export.write(tmp_path / "report.sqlite"), details=True)
    waits = found.run.stream_waits[["correlation", "device", "stream", "recorded", "recorded_stream"]]
    assert waits.to_numpy().tolist() == [[4, "0", 20, 1, 7]]
    assert joins(found) == [("norm", "gemm", 1000)]


def test_stream_waits_are_counted_where_events_were_not_recorded(tmp_path: Path) -> None:
    found = analyse(waiting(with_records=False).write(tmp_path / "report.sqlite"), details=True)
    assert found.run.stream_waits["recorded"].tolist() == [3]  # the last before it, from which numbers are counted
    assert found.run.stream_waits["recorded_stream"].isna().all()


def joins(found: Analysis) -> list[tuple[str, str, int]]:
    """What waited for what, and when that ended."""
    run = found.run
    ((program,),) = rank_programs(found.of(played_tables))
    [edges], activities = gpu_edges([program]), run.activities
    ran = [activities.iloc[row] for row in program.row]
    zero = activities["start_ns"].min()
    return [
        (ran[node]["name"], ran[at]["name"], int(ran[at]["start_ns"] + ran[at]["dur_ns"] - zero))
        for node, sources in edges.joins.items()
        for at in sources
    ]


def test_a_report_that_was_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(os.urandom(5000))
    for given in (report, tmp_path):
        assert main(["breakdown", str(given)]) == 1
        err = capsys.readouterr().err
        assert "nsys export --type sqlite --include-blobs=true" in err
        assert err.count("\n") == 1


def test_databases_of_others(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    path.write_bytes(b"no database")
    with pytest.raises(NotATrace, match="is not an SQLite database"):
        read_nsight(path, ReadOptions())
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE people (name TEXT)")
    connection.close()
    with pytest.raises(NotATrace, match="without any table of an Nsight Systems export"):
        read_nsight(path, ReadOptions())
    with pytest.raises(NotATrace, match="shows nothing that a GPU did"):
        read_nsight(nothing_ran().write(path), ReadOptions())


def nothing_ran() -> Export:
    export = Export()
    export.about()
    export.range(process(7) + 7, "forward", 10, 20)
    return export


@pytest.mark.quick_cases("/opt/lmp-False")
@pytest.mark.parametrize(
    ("program", "runs_python"),
    [
        ("./bin/matmul_test", False),
        ("/opt/lmp", False),
        ("/usr/bin/python3.11", True),
        ("torchrun", True),
        (None, True),
    ],
)
def test_nothing_is_said_of_python_where_another_program_ran(tmp_path, capsys, program, runs_python):
    export = Export()
    if program is not None:
        export.add("PROCESSES", globalPid=process(145), pid=145, name=program)
    add(export, [("fill", 0, 1_000), ("gemm", 400_000_000, 1_000), ("gemm", 900_000_000, 1_000)], pid=145, gpu=0)
    export.range(process(145) + 145, "prepare", SYSTEM_NS + 5_000, SYSTEM_NS + 100_000_000)
    path = tmp_path / "report.sqlite"
    export.write(path)
    found = analyse(path, details=True)
    assert found.run.runs_python == runs_python
    assert main([str(path)]) == 0
    shown = capsys.readouterr().out
    assert ("Python" in shown) == runs_python
    assert ("in `prepare`" in shown) == (not runs_python)


@pytest.mark.slow
def test_ranges_of_cpp_name_what_ran(tmp_path):
    """Idle time by ranges that are in no other, also in two kernels' gaps; regions with their C++ names; compiling."""
    export = Export()
    export.add("PROCESSES", globalPid=process(145), pid=145, name="./engine")
    add(export, [("a", 0, 1_000), ("b", 100_000_000, 1_000), ("c", 150_000_000, 1_000)], pid=145, gpu=0)
    for name, begin_ms, end_ms in [
        ("Executor::compileFusion", 10, 60), ("utils::NVRTC", 20, 50), ("Other::run", 101, 102),
        ("loader::Next", 110, 130), ("Executor::compileFusion", 131, 141),
    ]:  # fmt: skip
        export.range(process(145) + 145, name, SYSTEM_NS + begin_ms * 10**6, SYSTEM_NS + end_ms * 10**6)
    path = tmp_path / "report.sqlite"
    export.write(path)
    found = analyse(path, details=True)
    assert "their CPUs were in `Executor::compileFusion` (60.0 ms), in `loader::Next` (20.0 ms) and" in found.verdict
    (idle,) = records(found.idle)
    assert (idle["operator_ns"], idle["compile_ns"]) == (81_000_000, 60_000_000)
    cpu_ms = dict(zip(found.regions["region"], found.regions["cpu_ns"] / 1e6, strict=True))
    assert cpu_ms["Executor::compileFusion"] == 60
    assert cpu_ms["Executor::compileFusion > utils::NVRTC"] == 30


@pytest.mark.parametrize(
    ("name", "compiles"),
    [
        ("OutputGraph.call_user_compiler (dynamo_timed)", True),
        ("Torch-Compiled Region: 0/0", False),
        ("## Call CompiledFxGraph fabc ##", False),
        ("CompiledFunctionBackward", False),
        ("nvrtcCompileProgram", True),
        ("executor_utils::NVRTC", True),
        ("XlaCompile:#module=jit_step#", True),
        ("triton.compile", True),
        ("compiler_fn", False),
        ("forward", False),
    ],
)
def test_ranges_in_which_something_is_compiled(name, compiles):
    assert bool(COMPILING.search(name)) == compiles
