"""A folder becomes a run: which file is which rank, what belongs together, and what does not."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from builders import BASE_NS, MS, US, Trace, traces_table, write_bytes

import commtrace
from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import (
    AnalysisError,
    DamagedTrace,
    DuplicateRank,
    MixedJobs,
    NoTraces,
    TraceError,
    UnreadableFile,
)
from commtrace.analysis.results.opening import load_run
from commtrace.cli import main


def small(rank: int | None = 0, world: int | None = 1, **more) -> Trace:
    return Trace(rank, world, **more).kernel("gemm", 0, 1 * MS)


def ranks_from(folder: Path) -> list[tuple[int, str]]:
    return [(row["rank"], row["rank_from"]) for row in records(load_run([folder]).traces)]


# --- which rank ------------------------------------------------------------------------------------------------------


def test_the_trace_says_its_rank_whatever_its_name(tmp_path):
    small(3, 8).write(tmp_path, "rank5.json")
    assert ranks_from(tmp_path) == [(3, "trace")]


def test_else_the_side_file_says_it(tmp_path):
    for rank in (0, 1):
        small(None, None).write(tmp_path, f"node_{rank}.0001.pt.trace.json.gz")
        write_bytes(
            tmp_path / f"node_{rank}.meta.json", json.dumps({"rank": rank, "world_size": 2, "host": "node"}).encode()
        )
    run = load_run([tmp_path])
    assert ranks_from(tmp_path) == [(0, "side file"), (1, "side file")]
    assert (run.world_size, run.traces["host"].tolist()) == (2, ["node", "node"])


@pytest.mark.parametrize(
    "name", ["rank{}.json", "my run - rank{}-chrome-trace.json.gz", "trace_Rank_{}.json", "rank-{}.x.json"]
)
def test_else_the_file_name_says_it(tmp_path, name):
    for rank in (0, 11):
        small(None, None).write(tmp_path, name.format(rank), gz=name.endswith("gz"))
    assert ranks_from(tmp_path) == [(0, "file name"), (11, "file name")]


def test_else_a_lone_file_is_rank_0_with_a_note(tmp_path):
    small(None, None).write(tmp_path, "trace.json")
    assert ranks_from(tmp_path) == [(0, "only file")]
    assert load_run([tmp_path]).notes == (
        "trace.json does not say which rank it is; being alone it is taken as rank 0",
    )


def test_else_it_is_an_error(tmp_path):
    for name in ("a.json", "b.json"):
        small(None, None).write(tmp_path, name)
    with pytest.raises(MixedJobs, match=r"a\.json: does not say which rank it is"):
        load_run([tmp_path])


def test_ranks_stand_in_order(tmp_path):
    for rank in (10, 9, 0):
        small(rank, 16).write(tmp_path)
    run = load_run([tmp_path])
    assert run.ranks == run.traces["rank"].tolist() == [0, 9, 10]
    assert run.missing_ranks == [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15]


# --- what belongs together -------------------------------------------------------------------------------------------


def test_two_files_of_one_rank_are_an_error_that_names_both(tmp_path):
    small(1, 2).write(tmp_path, "a.json")
    small(1, 2).write(tmp_path, "b.json")
    with pytest.raises(DuplicateRank, match=r"a\.json and b\.json both claim rank 1"):
        load_run([tmp_path])


def test_two_jobs_of_other_sizes_are_an_error_that_names_them(tmp_path):
    small(0, 2).write(tmp_path, "a.json")
    small(1, 4).write(tmp_path, "b.json")
    with pytest.raises(MixedJobs, match=r"a\.json has world size 2, b\.json has 4"):
        load_run([tmp_path])


def test_two_processes_under_one_workers_name_are_two_jobs(tmp_path):
    small(0, 1, pid=10).op("aten::mm", 0, 1).write(tmp_path, "node_0.0001.pt.trace.json.gz")
    small(0, 1, pid=11).op("aten::mm", 0, 1).write(tmp_path, "node_0.0002.pt.trace.json.gz")
    with pytest.raises(MixedJobs, match=r"process 10.*process 11"):
        load_run([tmp_path])


def test_a_cycle_that_does_not_say_its_process_is_of_the_same_job(tmp_path):
    small(0, 1).op("aten::mm", 0, 1).write(tmp_path, "node_0.0001.pt.trace.json.gz")
    Trace().write(tmp_path, "node_0.0002.pt.trace.json.gz")
    assert load_run([tmp_path]).traces["cycle"].tolist() == [0, 1]


def test_a_rank_beyond_its_world_is_an_error(tmp_path):
    small(4, 4).write(tmp_path)
    with pytest.raises(MixedJobs, match="is rank 4 of a world of 4"):
        load_run([tmp_path])


def test_cycles_of_one_process_are_one_run_in_order_of_their_digits(tmp_path):
    for cycle, start in ((10, 3), (9, 2), (2, 1)):
        Trace().kernel(f"cycle {cycle}", start, 1).write(tmp_path, f"node_0.{cycle}.pt.trace.json.gz")
    run = load_run([tmp_path])
    assert run.traces["cycle"].tolist() == [0, 1, 2]
    assert run.activities["name"].tolist() == ["cycle 2", "cycle 9", "cycle 10"]
    assert run.ranks == [0]


# --- which files -----------------------------------------------------------------------------------------------------


def test_side_files_are_no_traces(tmp_path):
    small().write(tmp_path)
    write_bytes(tmp_path / "run.json", b'{"model": "resnet18"}')
    write_bytes(tmp_path / "node_0.meta.json", b"{}")
    run = load_run([tmp_path])
    assert len(run.traces) == 1
    assert run.config == {"model": "resnet18"}


def test_other_json_beside_traces_named_by_torch_is_left_out_with_a_note(tmp_path):
    small().write(tmp_path)
    write_bytes(tmp_path / "results.json", b"[1, 2]")
    assert load_run([tmp_path]).notes == (
        f"{tmp_path.name}: left out 1 JSON files not named like torch's traces: results.json",
    )


def test_half_written_and_hidden_files_are_left_alone(tmp_path):
    small().write(tmp_path)
    write_bytes(tmp_path / ".node_1.0001.4711.tmp", b"half")
    write_bytes(tmp_path / "node_1.0001.pt.trace.json.gz.part", b"half")
    assert load_run([tmp_path]).ranks == [0]


def test_hidden_json_is_no_trace(tmp_path):
    small(None, None).write(tmp_path, "rank0.json")
    write_bytes(tmp_path / "._rank0.json", b"\x00\x05\x16\x07Mac OS X")
    assert load_run([tmp_path]).ranks == [0]


def test_files_may_be_given_one_by_one_and_twice(tmp_path):
    one, two = small(0, 2).write(tmp_path), small(1, 2).write(tmp_path)
    run = load_run([two, one, two, tmp_path])
    assert run.ranks == [0, 1]
    assert run.name == tmp_path.name


def test_names_with_blanks_and_brackets(tmp_path):
    folder = tmp_path / "my run [v2] (final)"
    small(0).write(folder, "a trace of mine [rank0].json")
    assert load_run([folder]).name == "my run [v2] (final)"


def test_a_trace_may_come_through_a_pipe(tmp_path):
    content = small(2, 4).write(tmp_path / "elsewhere").read_bytes()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    run = load_run([pipe])
    writer.join()
    assert run.ranks == [2]


def test_a_symbolic_link_is_followed(tmp_path):
    target = small(1, 2).write(tmp_path / "store")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank1.json.gz").symlink_to(target)
    assert load_run([tmp_path / "run"]).ranks == [1]


def test_no_such_folder(tmp_path):
    with pytest.raises(NoTraces, match="nowhere: no such file or directory"):
        load_run([tmp_path / "nowhere"])


def test_a_folder_without_traces_names_the_folders_in_it(tmp_path):
    small().write(tmp_path / "run-a")
    with pytest.raises(NoTraces, match=r"holds no Kineto trace.*did you mean one of its folders \(run-a\)"):
        load_run([tmp_path])


def test_a_folder_named_like_a_trace_is_an_error_that_names_it(tmp_path):
    (tmp_path / "rank0.json").mkdir()
    with pytest.raises(AnalysisError, match=r"rank0\.json: cannot be read: Is a directory"):
        load_run([tmp_path])


def test_a_link_to_nowhere_is_an_error_that_names_it(tmp_path):
    (tmp_path / "rank0.json").symlink_to(tmp_path / "gone")
    with pytest.raises(UnreadableFile, match=r"rank0\.json: cannot be read: No such file"):
        load_run([tmp_path])


# --- keeping going ---------------------------------------------------------------------------------------------------


def test_one_bad_file_fails_the_run(tmp_path):
    small(0, 2).write(tmp_path)
    write_bytes(tmp_path / "node_1.0001.pt.trace.json.gz", b"")
    with pytest.raises(TraceError, match=r"node_1\.0001\.pt\.trace\.json\.gz: is empty"):
        load_run([tmp_path])


def test_the_others_come_when_asked_for(tmp_path):
    small(0, 2).write(tmp_path)
    write_bytes(tmp_path / "node_1.0001.pt.trace.json.gz", b"")
    run = load_run([tmp_path], keep_going=True)
    assert run.ranks == [0]
    assert run.missing_ranks == [1]
    assert len(run.failed) == 1
    assert "node_1.0001.pt.trace.json.gz: is empty" in run.failed[0]


def test_with_no_good_file_there_is_no_run(tmp_path):
    for rank in (0, 1):
        write_bytes(tmp_path / f"node_{rank}.0001.pt.trace.json.gz", b"")
    with pytest.raises(NoTraces, match="none of the 2 files could be used"):
        load_run([tmp_path], keep_going=True)


# --- side files ------------------------------------------------------------------------------------------------------


def test_what_a_capture_that_ended_early_says(tmp_path):
    small(0, 1).write(tmp_path)
    write_bytes(
        tmp_path / "node_0.meta.json",
        json.dumps({"rank": 0, "complete": False, "reason": "SIGTERM in step 7"}).encode(),
    )
    run = load_run([tmp_path])
    assert run.traces[["complete", "incomplete_reason"]].to_numpy().tolist() == [[False, "SIGTERM in step 7"]]
    assert "rank 0: the capture ended early: SIGTERM in step 7" in run.notes


def test_a_capture_without_a_trace_says_why(tmp_path):
    for rank, why in enumerate(["too short", "too short", "\x1b[2Jodd"]):
        side = {"rank": rank, "complete": False, "reason": why}
        write_bytes(tmp_path / f"node_{rank}.meta.json", json.dumps(side).encode())
    write_bytes(tmp_path / "node_3.meta.json", b"[")
    write_bytes(tmp_path / "node_4.meta.json", b"[]")
    with pytest.raises(NoTraces) as raised:
        load_run([tmp_path])
    assert str(raised.value) == (
        f"{tmp_path}: the capture ended without a trace: rank 0-1: too short; rank 2: \\x1b[2Jodd"
    )


def test_ranks_that_took_no_part_are_named(tmp_path):
    small(0, 8).write(tmp_path)
    write_bytes(tmp_path / "node_0.meta.json", json.dumps({"rank": 0, "absent_ranks": [1, 2, 3, 7]}).encode())
    assert any(note.startswith("rank 1-3, 7 took no part in the capture: start") for note in load_run([tmp_path]).notes)


def test_process_groups_of_the_side_file_where_the_trace_has_none(tmp_path):
    small(0, 2).write(tmp_path)
    groups = [{"name": "0", "desc": "default_pg", "backend": "gloo", "ranks": [1, 0]}]
    write_bytes(tmp_path / "node_0.meta.json", json.dumps({"process_groups": groups}).encode())
    assert records(load_run([tmp_path]).process_groups) == [
        {"rank": 0, "process_group": "0", "description": "default_pg", "backend": "gloo", "pg_ranks": "0 1"}
    ]


def test_a_broken_side_file_is_an_error_that_names_it(tmp_path):
    small(0, 2).write(tmp_path)
    write_bytes(tmp_path / "node_0.meta.json", b'{"rank": 0')
    with pytest.raises(UnreadableFile, match=r"node_0\.meta\.json: side file cannot be read"):
        load_run([tmp_path])


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"device": "cpu"},
        {"versions": "2.13"},
        {"process_groups": ["0"]},
        {"process_groups": {"0": [0, 1]}},
        {"host": 7, "reason": 5, "complete": "yes"},
        {"world_size": "two", "rank": "zero"},
    ],
    ids=str,
)
def test_a_side_file_of_other_shape_is_no_crash(tmp_path, content):
    small(0, 2, device_names=()).write(tmp_path)
    write_bytes(tmp_path / "node_0.meta.json", json.dumps(content).encode())
    try:
        assert load_run([tmp_path]).ranks == [0]
    except AnalysisError as err:
        assert "node_0.meta.json" in str(err)  # noqa: PT017


def test_versions_and_devices(tmp_path):
    trace = small(0, 1, device=1, device_names=("NVIDIA H100", "NVIDIA H200"), more={"cuda_runtime_version": 12060})
    trace.write(tmp_path)
    write_bytes(tmp_path / "node_0.meta.json", json.dumps({"versions": {"torch": "2.13.0"}}).encode())
    (row,) = records(load_run([tmp_path]).traces)
    assert (row["device_name"], row["versions"]) == ("NVIDIA H200", "torch 2.13.0, CUDA 12.6")


@pytest.mark.parametrize(
    ("listed", "name"),
    [
        (("NVIDIA H200",), "NVIDIA H200"),
        (("NVIDIA H200",) * 8, "NVIDIA H200"),
        (("", "AMD Instinct MI300X"), "AMD Instinct MI300X"),
        (("NVIDIA H100", "NVIDIA H200"), None),
        (("", ""), None),
    ],
    ids=str,
)
def test_a_device_that_kernels_number_as_the_host_does(tmp_path, listed, name):
    small(0, 1, device=11, device_names=listed).write(tmp_path)
    (row,) = records(load_run([tmp_path]).traces)
    assert row["device_name"] == name


def test_a_run_on_cpus_has_no_gpu_although_one_is_listed(tmp_path):
    Trace(0, 1, backend="gloo", device_names=("NVIDIA H200",)).op("aten::mm", 0, 5).write(tmp_path)
    (row,) = records(load_run([tmp_path]).traces)
    assert row["device_name"] is None


def test_a_device_that_no_header_lists(tmp_path):
    for names in ((), ("",)):
        Trace(device_names=names).event("kernel", "k", 0, 5, pid="GPU 0", tid="stream 7").write(tmp_path)
        (row,) = records(load_run([tmp_path]).traces)
        assert row["device_name"] is None


# --- the package -----------------------------------------------------------------------------------------------------


def test_the_package_offers_the_analysis_in_one_call(tmp_path):
    small().write(tmp_path)
    found = commtrace.analyse(str(tmp_path))
    assert found.breakdown["compute_ns"].tolist() == [1 * MS]
    assert isinstance(found, commtrace.Analysis)
    assert commtrace.load_run([tmp_path]).activities["start_ns"].tolist() == [BASE_NS]
    assert issubclass(NoTraces, commtrace.AnalysisError)


def test_what_the_package_does_not_have():
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        _ = commtrace.magic


@pytest.mark.slow
def test_an_analysis_never_changes_its_run(tmp_path):
    small(0, 2).nccl("all_reduce", 2 * MS, 1 * MS).write(tmp_path)
    run = load_run([tmp_path])
    before = {
        name: getattr(run, name).copy() for name in ("activities", "launches", "annotations", "comm_args", "traces")
    }
    found = commtrace.Analysis(run)
    for name in ("breakdown", "breakdown_steps", "calls", "collectives", "participation", "bandwidth", "ranks"):
        first = getattr(found, name)
        assert first.equals(getattr(commtrace.Analysis(run), name))
    for name, table in before.items():
        assert table.equals(getattr(run, name)), name


def test_a_table_of_traces_is_what_the_clock_needs():
    assert traces_table(["a", None])["host"].isna().tolist() == [False, True]


# --- times that are longer than anything -----------------------------------------------------------------------------

LONGEST_NS = 2**53  # 104 days


def with_long_kernels(rank: int, count: int) -> Trace:
    trace = Trace(rank, 2)
    for stream in range(count):
        trace.kernel("gemm", 0, LONGEST_NS, stream=stream)
    return trace


@pytest.mark.parametrize("counts", [(254, 255), (510, 0)])
def test_long_times_are_added_up(tmp_path, counts):
    for rank, count in enumerate(counts):
        with_long_kernels(rank, count).kernel("gemm", 0, 5).write(tmp_path)
    (row,) = records(commtrace.analyse(tmp_path, workers=1).kernels)
    assert row["total_ns"] == sum(counts) * LONGEST_NS + 10


@pytest.mark.parametrize("counts", [(300, 300), (1, 1024)])
def test_times_that_64_bits_cannot_add_up_are_an_error(tmp_path, capsys, counts):
    paths = [with_long_kernels(rank, count).write(tmp_path) for rank, count in enumerate(counts)]
    assert main(["table", "kernels", str(tmp_path), "-f", "csv"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    years = round((counts[1] + 1) * LONGEST_NS / 365.25 / 86_400e9)
    assert captured.err.startswith(f"error: {paths[1]} (rank 1): its times add up to {years} years, with those of")
    assert main(["table", "kernels", str(tmp_path), "-f", "csv", "--keep-going"]) == 1
    assert f",{counts[0] * LONGEST_NS}," in capsys.readouterr().out


def test_windows_longer_than_64_bits_add_up_to_are_an_error(tmp_path):
    for cycle in range(3):
        trace = Trace(base_ns=None)
        for place in range(101):  # of a pause of a year, only one side would stay
            trace.kernel("gemm", 2**61 // 100 * place + 5 * US, 5)
        trace.write(tmp_path, f"node_1.{cycle}.pt.trace.json")
    with pytest.raises(DamagedTrace, match=r"_1\.1\.pt\.trace\.json \(rank 0\): its times add up to 73 years"):
        load_run([tmp_path])


def test_a_negative_duration_counts_as_0_and_is_said(tmp_path):
    trace = small().annotation("ProfilerStep#1", 0, 5)
    for event in trace.events:
        event["dur"] = -1.0
    run = load_run([trace.write(tmp_path)])
    assert (run.activities["dur_ns"].tolist(), run.annotations["dur_ns"].tolist()) == ([0], [0])
    assert run.notes == ("node_0.0001.pt.trace.json.gz: 2 events have a negative duration, which counts as 0",)


# --- ranks that only collectives tell, as in files of dynolog --------------------------------------------------------


def of_dynolog(folder: Path, name: str, *records: tuple[str, dict[str, Any]]) -> None:
    trace = Trace(None, None, backend=None).kernel("gemm", 0, 1 * MS)
    for number, (collective, more) in enumerate(records):
        trace.record(collective, number * 100, external_id=number + 1, **more)
    trace.write(folder, name)


def test_collectives_say_the_rank_before_the_file_name(tmp_path):
    for rank in (0, 1):
        of_dynolog(tmp_path, f"dynolog_{rank}_rank{5 + rank}.json", ("all_reduce", {"Rank": rank}))
    assert ranks_from(tmp_path) == [(0, "collectives"), (1, "collectives")]


def test_a_place_in_a_group_is_that_of_its_list(tmp_path):
    of_dynolog(tmp_path, "a.json", ("all_gather", {"Rank": 1, "group": "7", "ranks": (2, 6)}))
    of_dynolog(tmp_path, "b.json", ("all_reduce", {"Rank": 2, "ranks": tuple(range(64))}))  # its list is cut
    assert ranks_from(tmp_path) == [(2, "collectives"), (6, "collectives")]


def test_roots_and_peers_are_no_ranks(tmp_path):
    more = {"Rank": 1, "elems": 8}
    of_dynolog(tmp_path, "a.json", *((name, more) for name in ("broadcast", "reduce", "gather", "send", "recv")))
    assert ranks_from(tmp_path) == [(0, "only file")]


@pytest.mark.parametrize(
    "records",
    [
        [("all_reduce", {"Rank": 0}), ("all_reduce", {"Rank": 1})],
        [("all_reduce", {"Rank": 1, "group": None})],
        [("all_reduce", {"Rank": 40, "group": "5", "ranks": tuple(range(64))})],
        [("all_reduce", {"Rank": 9})],
    ],
    ids=["contradicting", "of a group without a name", "of a cut list", "beyond its group"],
)
def test_a_rank_that_is_not_certain_is_none(tmp_path, records):
    of_dynolog(tmp_path, "a.json", *records)
    assert ranks_from(tmp_path) == [(0, "only file")]


def test_two_engines_in_one_folder_are_an_error_that_says_so(tmp_path):
    for engine in ("a", "b"):
        of_dynolog(tmp_path, f"{engine}.json", ("all_reduce", {"Rank": 0}))
    with pytest.raises(DuplicateRank, match=r"a\.json and b\.json both claim rank 0: .* engines .* folder of its own"):
        load_run([tmp_path])
