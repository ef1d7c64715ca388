"""Databases and JSON of rocprofv3: what they hold becomes what torch's traces of the same run hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from nsight_exports import documents, export_of
from rocprof_files import GENERIC, LAYOUTS, Process, launched, processes_of, write_database, write_json

from commtrace import analyse
from commtrace.analysis.errors import MixedJobs, NotATrace
from commtrace.analysis.results.analysis import Analysis
from commtrace.cli import main

MS = 1_000_000
Write = Callable[[Path, Sequence[Process]], Path]
WRITERS: dict[str, Write] = {"db": write_database, "json": write_json}
BOTH = pytest.mark.parametrize("kind", WRITERS)
GEMM = "Cijk_Alik_Bljk_BBS(float*)"


def written(folder: Path, kind: str, *processes: Process, name: str = "9_results") -> Path:
    folder.mkdir(exist_ok=True)
    return WRITERS[kind](folder / f"{name}.{kind}", processes)


def small(pid: int = 7, **more: Any) -> Process:
    process = Process(pid, **more)
    launched(process, GEMM, 1_000, 5_000)
    launched(process, GENERIC, 5_000, 6_000, stream=2)
    return process


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Analysis]:
    folder = tmp_path_factory.mktemp("kineto")
    return documents("plain", folder), analyse(folder, cache=False)


def assert_same(found: Analysis, wanted: Analysis, *tables: str) -> None:
    """Equal but for what rocprofv3 does not record: sizes and groups, and what rests on them."""
    untold = ["size_bytes", "busbw_gbs", "algbw_gbs", "process_group", "group_size", "dtype", "group", "groups",
              "blocks_per_sm"]  # fmt: skip
    for name in tables:
        ours, theirs = (getattr(one, name).drop(columns=untold, errors="ignore") for one in (found, wanted))
        pd.testing.assert_frame_equal(ours, theirs, obj=name)


@pytest.mark.quick_cases("3")
@pytest.mark.parametrize("kind", [*LAYOUTS, "json"])
def test_tables_are_those_of_the_same_run_as_kineto_traces(tmp_path: Path, made: Any, kind: str) -> None:
    traced, wanted = made
    processes = processes_of(export_of(traced), generic=False)
    if kind == "json":
        path = write_json(tmp_path / "9_results.json", processes)
    else:
        path = write_database(tmp_path / "9_results.db", processes, layout=kind)
    found = analyse(path, cache=False)
    assert found.run.ranks == wanted.run.ranks
    assert_same(found, wanted, "breakdown", "breakdown_steps", "kernels", "kernels_devices")
    assert found.calls["size_bytes"].isna().all()
    waits = [one.participation[["rank", "dur_ns", "wait_ns", "waited_for"]] for one in (found, wanted)]
    pd.testing.assert_frame_equal(*waits)


@pytest.mark.slow
@BOTH
def test_functions_of_rccl_tell_what_its_generic_kernel_did(tmp_path: Path, made: Any, kind: str) -> None:
    traced, wanted = made
    found = analyse(written(tmp_path, kind, *processes_of(export_of(traced))), cache=False)
    told = found.calls["collective"].notna()  # of some, the launch was before the window
    assert told.sum() == 36
    assert (found.calls["collective"][told] == wanted.calls["collective"][told]).all()
    assert_same(found, wanted, "breakdown")


@pytest.mark.slow
@BOTH
def test_details_have_calls_and_marks(tmp_path: Path, made: Any, kind: str) -> None:
    traced, _ = made
    found = analyse(written(tmp_path, kind, *processes_of(export_of(traced))), cache=False, details=True)
    called = set(found.run.runtime_calls["name"])
    assert "hipLaunchKernel" in called
    assert not any(name.startswith("nccl") for name in called)
    assert found.run.cpu_operators["name"].str.contains("aten::").any()


@BOTH
def test_one_process_is_rank_0_and_a_step_is_a_marked_one(tmp_path: Path, kind: str) -> None:
    process = Process(7)
    for step in range(3):
        begin = (step + 1) * MS
        process.call("MARKER_CORE_RANGE_API", "roctxThreadRangeA", begin - 900_000, begin, text=f"train step {step}")
        by = process.call("HIP_RUNTIME_API_EXT", "hipLaunchKernel", begin - 500_000, begin - 490_000)
        process.kernel(GEMM, begin - 400_000, begin - 100_000, by=by)
    found = analyse(written(tmp_path, kind, process), cache=False)
    assert found.run.ranks == [0]
    assert found.breakdown["compute_ns"].tolist() == [900_000]
    assert found.run.activities["step"].tolist() == [0, 1, 2]


@BOTH
def test_a_call_of_hsa_inside_is_not_what_launched(tmp_path: Path, kind: str) -> None:
    """With --sys-trace a kernel has the id of the innermost call, which is of HSA."""
    process = Process(7)
    rccl = process.call("RCCL_API", "ncclReduceScatter", 100, 500)
    hip = process.call("HIP_RUNTIME_API_EXT", "hipExtLaunchKernel", 200, 400, ancestor=rccl)
    hsa = process.call("HSA_CORE_API", "hsa_signal_store_screlease", 300, 310, ancestor=hip)
    process.kernel(GENERIC, 1_000, 2_000, by=hsa)
    found = analyse(written(tmp_path, kind, process), cache=False, details=True)
    assert found.calls["collective"].tolist() == ["reduce_scatter"]
    assert found.run.runtime_calls["name"].tolist() == ["hipExtLaunchKernel"]
    assert found.run.launches["start_ns"].tolist() == [200]


@BOTH
@pytest.mark.parametrize("library", ["RCCL_API", "HSA_CORE_API"])
def test_without_calls_of_hip_another_call_launched(tmp_path: Path, kind: str, library: str) -> None:
    process = Process(7)
    rccl = process.call("RCCL_API", "ncclAllGather", 100, 500)
    by = rccl if library == "RCCL_API" else process.call(library, "hsa_signal_store", 300, 310)
    process.kernel(GENERIC, 1_000, 2_000, by=by)
    found = analyse(written(tmp_path, kind, process), cache=False)
    assert found.calls["collective"].tolist() == ["all_gather"]
    assert len(found.run.launches) == 1


@BOTH
@pytest.mark.parametrize(
    ("functions", "collective"),
    [
        ("ncclAllToAllv", "all_to_all"),
        ("ncclGroupStart ncclAllToAll ncclGroupEnd", "all_to_all"),
        ("ncclGroupStart ncclSend ncclRecv ncclSend ncclRecv ncclGroupEnd", None),  # may be an exchange of neighbours
        ("ncclCommCount ncclGroupStart ncclSend ncclRecv ncclSend ncclRecv ncclGroupEnd", "all_to_all"),
        ("ncclBroadcast", "broadcast"),
    ],
)
def test_what_functions_of_rccl_tell(tmp_path: Path, kind: str, functions: str, collective: str | None) -> None:
    process = Process(7)
    *before, last = functions.split()
    for place, name in enumerate(before):
        process.call("RCCL_API", name, 100 + 10 * place, 105 + 10 * place)
    around = process.call("RCCL_API", last, 500, 600)
    by = process.call("HIP_RUNTIME_API_EXT", "hipLaunchKernel", 510, 520, ancestor=around)
    process.kernel(GENERIC, 1_000, 2_000, by=by)
    found = analyse(written(tmp_path, kind, process), cache=False)
    assert found.calls["collective"].dropna().tolist() == ([collective] if collective else [])


@BOTH
def test_copies_have_a_direction_and_a_size(tmp_path: Path, kind: str) -> None:
    process = small()
    process.kernel(GEMM, 7_000, 8_000, gpu=1)
    ways: list[tuple[int | None, int | None]] = [(None, 0), (0, None), (0, 0), (1, 0), (None, None)]
    for place, way in enumerate(ways):
        process.copy(way, 10_000 + 100 * place, 10_050 + 100 * place, size=4096 + place)
    found = analyse(written(tmp_path, kind, process), cache=False).run.activities
    copies = found[found["name"].str.startswith("Memcpy")]
    assert copies["name"].tolist() == [
        "Memcpy HtoD (Unknown -> Device)", "Memcpy DtoH (Device -> Unknown)", "Memcpy DtoD (Device -> Device)",
        "Memcpy PtoP (Device -> Device)", "Memcpy HtoH (Unknown -> Unknown)",
    ]  # fmt: skip
    assert copies["size_bytes"].tolist() == [4096, 4097, 4098, 4099, 4100]
    assert copies["device"].tolist() == ["0", "0", "0", "1", "0"]
    assert copies["kind"].tolist() == ["memory", "memory", "memory", "comm", "memory"]


@BOTH
def test_streams_are_those_of_hip_or_else_queues(tmp_path: Path, kind: str) -> None:
    by_stream = analyse(written(tmp_path / "a", kind, small()), cache=False).run.activities
    assert by_stream["stream"].tolist() == [1, 2]
    process = small(streams=False)
    process.copy((None, 0), 7_000, 8_000)
    by_queue = analyse(written(tmp_path / "b", kind, process), cache=False).run.activities
    assert by_queue["stream"].nunique() == 3  # the copies have one of their own


@BOTH
def test_blocks_are_divided_by_the_units_of_the_gpu(tmp_path: Path, kind: str) -> None:
    found = analyse(written(tmp_path, kind, small()), cache=False)
    assert found.run.activities["blocks_per_sm"].tolist() == [0.5, 0.5]  # 152 blocks on 304 units
    assert found.run.traces["device_name"].tolist() == ["AMD Instinct MI300X"]


def test_variables_of_launchers_tell_ranks_in_databases(tmp_path: Path) -> None:
    pair = [small(pid, environment={"RANK": str(rank), "WORLD_SIZE": "8"}) for pid, rank in ((7, 5), (8, 1))]
    found = analyse(write_database(tmp_path / "merged.db", pair), cache=False)
    assert found.run.ranks == [1, 5]
    assert found.run.world_size == 8
    assert not any("counted" in note for note in found.run.notes)


@BOTH
@pytest.mark.parametrize("names", [("rank3_results", "rank2_results"), ("400_results", "300_results")])
def test_names_of_files_or_else_gpus_tell_ranks(tmp_path: Path, kind: str, names: tuple[str, str]) -> None:
    for name, gpu in zip(names, (0, 1), strict=True):
        process = Process(400 - 100 * gpu)
        process.kernel(GENERIC, 1_000, 2_000, gpu=gpu)
        written(tmp_path, kind, process, name=name)
    found = analyse(tmp_path, cache=False)
    assert found.run.traces[["rank", "pid"]].to_numpy().tolist() in ([[2, 300], [3, 400]], [[0, 400], [1, 300]])
    assert any("counted as ranks by host and GPU" in note for note in found.run.notes) == (names[0][0] == "4")


def test_names_tell_ranks_where_variables_repeat_one(tmp_path: Path) -> None:
    """As of processes that one task of Slurm has started."""
    for rank in (1, 0):
        process = small(7 + rank, environment={"SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
        write_database(tmp_path / f"rank{rank}_results.db", [process])
    found = analyse(tmp_path, cache=False)
    assert found.run.traces[["rank", "pid"]].to_numpy().tolist() == [[0, 7], [1, 8]]


def test_the_only_worker_of_a_merged_database_is_rank_0(tmp_path: Path) -> None:
    found = analyse(write_database(tmp_path / "merged.db", [Process(3), small(7)]), cache=False)
    assert found.run.traces[["rank", "pid"]].to_numpy().tolist() == [[0, 7]]


def test_a_rank_that_did_not_communicate_meanwhile_is_one(tmp_path: Path) -> None:
    quiet = Process(8, environment={"RANK": "1", "WORLD_SIZE": "2"})
    quiet.kernel("gemm", 1_000, 2_000)
    helper = Process(9, environment={"RANK": "0", "WORLD_SIZE": "2"})
    helper.kernel("gemm", 1_000, 2_000)
    busy = small(7, environment={"RANK": "0", "WORLD_SIZE": "2"})
    found = analyse(write_database(tmp_path / "merged.db", [busy, quiet, helper]), cache=False)
    assert found.run.traces[["rank", "pid"]].to_numpy().tolist() == [[0, 7], [1, 8]]


@pytest.mark.usefixtures("made")
def test_what_is_only_named_like_it_is_no_file_of_rocprof(tmp_path: Path) -> None:
    documents("plain", tmp_path)
    first = sorted(tmp_path.glob("*.json*"))[0]
    before = analyse(tmp_path, cache=False).run.ranks
    first.rename(first.with_name("rank0_results.json" + (".gz" if first.suffix == ".gz" else "")))
    for other in sorted(tmp_path.glob("*.pt.trace.json*")):
        other.rename(other.with_name(other.name.replace(".pt.trace", "_trace")))
    assert analyse(tmp_path, cache=False).run.ranks == before


@BOTH
def test_a_launcher_is_no_rank(tmp_path: Path, kind: str) -> None:
    written(tmp_path, kind, Process(3), name="3_results")
    written(tmp_path, kind, small(7), name="7_results")
    found = analyse(tmp_path, cache=False)
    assert found.run.ranks == [0]
    assert any("left out what did not communicate" in note and "process 3" in note for note in found.run.notes)


@BOTH
def test_files_of_different_runs_are_not_taken_for_ranks(tmp_path: Path, kind: str) -> None:
    written(tmp_path, kind, small(), name="7_results")
    later = Process(8)
    later.kernel(GENERIC, 10**10, 10**10 + 50)
    written(tmp_path, kind, later, name="8_results")
    with pytest.raises(MixedJobs, match="captured one after the other"):
        analyse(tmp_path, cache=False)


def test_json_without_a_host_is_not_compared_in_time(tmp_path: Path) -> None:
    write_json(tmp_path / "7_results.json", [small()], node=False)
    later = Process(8)
    later.kernel(GENERIC, 10**10, 10**10 + 50)
    write_json(tmp_path / "8_results.json", [later], node=False)
    assert analyse(tmp_path, cache=False).run.ranks == [0, 1]


def test_of_both_formats_databases_are_read(tmp_path: Path) -> None:
    for kind in WRITERS:
        written(tmp_path, kind, small())
    (tmp_path / "9_results.pftrace").write_bytes(b"")
    found = analyse(tmp_path, cache=False)
    assert found.run.traces["trace"].str.startswith("9_results.db").all()


@BOTH
def test_traces_of_torch_say_more(tmp_path: Path, kind: str, made: Any) -> None:
    traced, _ = made
    documents("plain", tmp_path)
    written(tmp_path, kind, *processes_of(export_of(traced)))
    found = analyse(tmp_path, cache=False)
    assert found.run.traces["trace"].str.contains("pt.trace.json").all()
    assert any("of rocprofv3 beside traces, which say more" in note for note in found.run.notes)


@pytest.mark.parametrize("name", ["merged.db", "report.sqlite", "anything"])
def test_a_database_may_have_any_name(tmp_path: Path, name: str) -> None:
    assert analyse(write_database(tmp_path / name, [small()]), cache=False).run.ranks == [0]


@BOTH
def test_what_no_gpu_did_is_said(tmp_path: Path, kind: str) -> None:
    with pytest.raises(NotATrace, match="shows nothing that a GPU did; capture with rocprofv3 --runtime-trace"):
        analyse(written(tmp_path, kind, Process(7)), cache=False)


@BOTH
def test_without_calls_of_rccl_the_collective_is_not_known(tmp_path: Path, kind: str) -> None:
    process = Process(7)
    process.kernel(GENERIC, 1_000, 2_000)
    found = analyse(written(tmp_path, kind, process), cache=False)
    assert found.calls["collective"].isna().all()
    assert any("has no calls of RCCL" in note for note in found.run.notes)


@pytest.mark.slow
@BOTH
def test_a_rank_in_a_file_can_be_named_and_packed(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, kind, small(7), small(8))
    assert main(["breakdown", f"{path}/rank1-pid8", "-f", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("1,0,")
    assert main(["pack", "-o", str(tmp_path / "packed"), str(path)]) == 0
    assert_same(analyse(tmp_path / "packed"), analyse(path), "breakdown", "kernels")
