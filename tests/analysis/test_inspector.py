"""Logs of NCCL Inspector as runs: what is read of them, whatever happened to them, and what they cannot tell."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from builders import MS, Collective, write_run
from inspector_logs import BEGIN_US, Comm, Log
from samples import with_slow

from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import AnalysisError, DamagedTrace, NotATrace
from commtrace.analysis.formats.inspector.log import InspectorLog
from commtrace.analysis.formats.registry import format_of
from commtrace.analysis.results.opening import analyse, load_run
from commtrace.cli import main

VERSIONS = ("v4.0", "v4.1", "v4.2", "v4.3")
WORLD = "0xa110"


def logs(ranks: int = 4, calls: int = 12, late: int = 2) -> list[Log]:
    """All ranks end each all_reduce together after 300 us of transfer; one rank arrives 100 us after the others."""
    made = []
    for rank in range(ranks):
        log = Log(f"node{rank // 2:02d}", 4000 + rank)
        for sn in range(calls):
            took = 300 if rank == late else 400 + rank
            log.call(Comm(WORLD, rank, ranks), "all_reduce", sn, took, written_us=BEGIN_US + 1000 * sn)
        made.append(log)
    return made


def written(folder: Path, version: str = "v4.0", **truth: int) -> list[Path]:
    return [log.write(folder, version) for log in logs(**truth)]


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_waits_and_bandwidth_need_no_clocks(tmp_path, version):
    written(tmp_path, version)
    found = analyse(tmp_path)
    assert found.run.ranks == [0, 1, 2, 3]
    assert set(found.run.traces["rank_from"]) == {"communicator"}
    assert found.run.hosts == {0: "node00", 1: "node00", 2: "node01", 3: "node01"}
    waits = found.participation.groupby("rank")["wait_ns"].unique()
    assert {rank: values.tolist() for rank, values in waits.items()} == {
        0: [100_000], 1: [101_000], 2: [0], 3: [103_000],
    }  # fmt: skip
    assert set(found.participation["waited_for"].dropna()) == {2}
    (row,) = records(found.bandwidth)
    assert row["calls"] == 12
    assert row["time_us_median"] == 300
    assert row["busbw_gb_per_s"] == pytest.approx((1 << 20) * 1.5 / 300_000)
    assert row["busbw_high_gb_per_s"] == pytest.approx((1 << 20) * 1.5 / 300_000)
    assert row["busbw_low_gb_per_s"] == pytest.approx((1 << 20) * 1.5 / 403_000)
    (culprit,) = records(found.ranks[found.ranks["rank"] == 2])
    assert (culprit["times_last"], culprit["caused_wait_frac"]) == (12, 1)
    assert "100% of it for rank 2" in found.verdict


@pytest.mark.slow
def test_what_the_log_cannot_tell_is_missing_and_commands_say_why(tmp_path, capsys):
    written(tmp_path)
    found = analyse(tmp_path)
    assert found.participation[["exposed_wait_ns", "exposed_transfer_ns"]].isna().all(axis=None)
    assert found.collectives[["end_skew_ns", "last_arrival_to_last_end_ns"]].isna().all(axis=None)
    assert found.lateness["because"].isna().all()
    assert found.ranks["wire_gb_per_s"].isna().all()
    assert found.kernels["hidden_share_frac"].isna().all()
    assert found.verdicts[["exposed_ns", "hidden_frac"]].isna().all(axis=None)
    for command in ("breakdown", "table gpus", "hang", "table remedies", "timeline", "table replay"):
        assert main([*command.split(), str(tmp_path)]) == 1
        assert "neither when they began nor what else ran" in capsys.readouterr().err, command


@pytest.mark.slow
def test_the_commands_that_need_no_more_work(tmp_path, capsys):
    written(tmp_path, "v4.3")
    for command in (
        "summary",
        "table calls",
        "table participation",
        "bandwidth",
        "table fits",
        "ranks",
        "table verdicts",
    ):
        assert main([*command.split(), str(tmp_path)]) == 0, command
        assert capsys.readouterr().out


@pytest.mark.slow
def test_reports_recordings_and_single_logs(tmp_path, capsys):
    paths = written(tmp_path / "logs")
    assert main(["report", "--output", str(tmp_path / "page.html"), str(tmp_path / "logs")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "for rank 2" in page
    assert "no collective hangs" not in page
    assert main(["pack", "--output", str(tmp_path / "packed"), str(tmp_path / "logs")]) == 0
    pd.testing.assert_frame_equal(analyse(tmp_path / "packed").participation, analyse(tmp_path / "logs").participation)
    capsys.readouterr()
    assert main(["breakdown", str(paths[0])]) == 1
    assert "neither when they began nor what else ran" in capsys.readouterr().err


def test_more_calls_than_fit_into_memory_are_refused_unread(tmp_path, capsys):
    written(tmp_path)
    assert main(["table", "calls", "--memory", "0.0001", str(tmp_path)]) == 1
    assert "`commtrace bandwidth --by time` reads logs of any size" in capsys.readouterr().err
    assert main(["bandwidth", "--by", "time", "--memory", "0.0001", str(tmp_path)]) == 0


def test_sizes_are_those_of_nccl_tests(tmp_path):
    for rank in range(4):
        log = Log(pid=rank + 1)
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"):
            log.call(Comm(WORLD, rank, 4), kind, 0, 50 + rank, size_bytes=4 << 20)
        log.write(tmp_path)
    result = analyse(tmp_path)
    found = result.collectives.set_index("collective")
    assert found["size_bytes"].drop("all_to_all").tolist() == [4 << 20] * 5
    # What NCCL logs as the size of an all_to_all is not documented.
    assert pd.isna(found.loc["all_to_all", "size_bytes"])
    # Ranks may leave a broadcast or reduce before others arrive.
    assert found.loc[["broadcast", "reduce"], "transfer_ns"].isna().all()
    assert "their durations do not tell who waited in them" in result.verdicts["because"].iloc[0]
    assert found.loc[["all_gather", "all_to_all"], "transfer_ns"].tolist() == [50_000, 50_000]


def test_kinds_are_numbered_apart(tmp_path):
    for rank in range(2):
        log = Log(pid=rank + 1)
        log.call(Comm(WORLD, rank, 2), "all_reduce", 7, 100).call(Comm(WORLD, rank, 2), "all_gather", 7, 60)
        log.write(tmp_path)
    found = analyse(tmp_path).collectives
    assert sorted(zip(found["collective"], found["ranks"], strict=True)) == [
        ("all_gather", "0 1"),
        ("all_reduce", "0 1"),
    ]


def test_lines_as_nccl_writes_them_with_everything_turned_on(tmp_path):
    """4.3 with NCCL_INSPECTOR_DUMP_VERBOSE and NCCL_INSPECTOR_ENABLE_PROXY: a marker, then lines without a header."""
    for rank in range(2):
        stops = [BEGIN_US + 400, BEGIN_US + 390]
        events = [{"channel_id": channel, "kernel_start_ts": BEGIN_US, "kernel_stop_ts": stop, "kernel_record_ts": stop}
                  for channel, stop in enumerate(stops)]  # fmt: skip
        numbers = {"coll_start_sn": 1, "coll_stop_sn": 2, "kernel_events": []}
        times = {"coll_start_ts": BEGIN_US, "coll_stop_ts": BEGIN_US + 5, "kernel_events": events}
        comm = Comm(WORLD, rank, 2)
        log = Log("node", rank + 1).call(
            comm, "all_reduce", 3, 380 - 80 * rank, written_us=BEGIN_US + 9_000_000,
            coll_algo="RING", coll_proto="LL", event_trace_sn=numbers, event_trace_ts=times,
        )  # fmt: skip
        log.call(comm, "recv" if rank else "send", 1, 40, peer=1 - rank, written_us=BEGIN_US + 9_000_000)
        marker, *calls = map(json.loads, log.lines("v4.3"))
        marker["header"]["comm_name"] = "DP Group 0"
        marker["dump_stats"] |= {"coll_dropped_since_last_dump": 7, "proxy_records": 1, "proxy_steps_enabled": 1}
        proxy = {"proxy_trace": {"record_type": "proxy_op", "parent_sn": 3, "event_trace_sn": {"proxy_op_start_sn": 1}}}
        lines = [marker, calls[0], proxy, calls[1]]
        (tmp_path / f"node-pid{rank + 1}.log").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = analyse(tmp_path)
    assert sorted(found.calls["collective"]) == ["all_reduce", "all_reduce", "recv", "send"]
    assert sorted(found.participation["wait_ns"].dropna()) == [0, 80_000]
    ends = (found.calls["start_ns"] + found.calls["dur_ns"])[found.calls["collective"] == "all_reduce"]
    assert set(ends) == {(BEGIN_US + 400) * 1000}  # the last of its kernels, not when the line was written
    assert set(found.run.process_groups["description"]) == {"DP Group 0"}
    assert sum("7 calls dropped by the Inspector" in note for note in found.run.notes) == 2


def test_messages_are_listed_but_not_matched(tmp_path):
    Log(pid=1).call(Comm(WORLD, 0, 2), "send", 1, 90, peer=1).call(Comm(WORLD, 0, 2), "all_reduce", 1, 50).write(
        tmp_path
    )
    Log(pid=2).call(Comm(WORLD, 1, 2), "recv", 1, 30, peer=0).call(Comm(WORLD, 1, 2), "all_reduce", 1, 50).write(
        tmp_path
    )
    found = analyse(tmp_path)
    messages = found.calls[found.calls["collective"].isin(["send", "recv"])]
    assert dict(zip(messages["rank"], messages["root"], strict=True)) == {0: 1, 1: 0}
    alone = found.collectives[found.collectives["matched_by"] == "none"]
    assert set(alone["note"]) == {"each rank numbers its own sends and receives, and times say nothing"}
    assert len(alone) == 2


def test_calls_timed_by_a_cpu_are_not_compared(tmp_path):
    for rank in range(2):
        source = "kernel_cpu" if rank else "kernel_gpu"
        log = Log(pid=rank + 1).call(Comm(WORLD, rank, 2), "all_reduce", 0, 100 + rank, source=source)
        log.call(Comm(WORLD, rank, 2), "all_reduce", 1, 100 + rank).write(tmp_path)
    found = analyse(tmp_path)
    assert found.participation["wait_ns"].notna().sum() == 2
    assert any("1 call not timed by a GPU" in note for note in found.run.notes)


# --- ranks -----------------------------------------------------------------------------------------------------------


def test_ranks_of_smaller_groups_follow_from_the_largest(tmp_path):
    for rank in range(4):
        log = Log(pid=90 - rank)
        log.call(Comm("0xdata", rank // 2, 2), "all_reduce", 0, 50)
        log.call(Comm(WORLD, rank, 4), "all_reduce", 0, 50).write(tmp_path)
    found = analyse(tmp_path)
    with pytest.raises(KeyError):
        found.run.traces.set_index("rank").loc[4]
    groups = found.calls.groupby("process_group")["pg_ranks"].first()
    assert groups[WORLD] == "0 1 2 3"


def test_without_a_communicator_of_all_processes_ranks_are_only_numbers(tmp_path):
    for rank in range(4):
        log = Log(f"node{rank // 2:02d}", 4000 + rank % 2)
        log.call(Comm(f"0xt{rank // 2}", rank % 2, 2), "all_gather", 0, 50 + rank)
        log.call(Comm(f"0xd{rank % 2}", rank // 2, 2), "all_reduce", 0, 70 + rank).write(tmp_path)
    found = analyse(tmp_path)
    assert found.run.ranks == [0, 1, 2, 3]
    assert found.run.world_size is None
    assert any("which need not be the ranks of the job" in note for note in found.run.notes)
    assert dict(zip(found.collectives["process_group"], found.collectives["pg_ranks"], strict=True)) == {
        "0xt0": "0 1", "0xt1": "2 3", "0xd0": "0 2", "0xd1": "1 3",
    }  # fmt: skip
    assert found.participation["wait_ns"].notna().all()


def test_a_process_with_several_gpus_is_one_rank(tmp_path):
    log = Log()
    for sn in range(3):
        for place in range(4):
            log.call(Comm(WORLD, place, 4), "all_reduce", sn, 100 + 10 * place)
    log.write(tmp_path)
    found = analyse(tmp_path)
    assert found.run.ranks == [0]
    assert sorted(found.participation["wait_ns"].unique().tolist()) == [0, 10_000, 20_000, 30_000]
    assert sorted(found.participation["device"].unique()) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("one_file", [True, False], ids=["appended", "another file"])
def test_a_restarted_job_goes_on_in_new_communicators(tmp_path, one_file):
    for rank in range(2):
        first, second = (Log(pid=10 * (rank + 1) + again) for again in (0, 1))
        for log, id_, at in ((first, "0xold", 0), (second, "0xnew", 60_000_000)):
            for sn in range(3):
                log.call(Comm(id_, rank, 2), "all_reduce", sn, 100 + 20 * rank, written_us=BEGIN_US + at + sn)
        path = first.write(tmp_path)
        if one_file:
            path.write_text(path.read_text() + "\n".join(second.lines("v4.0")) + "\n")
        else:
            second.write(tmp_path)
    found = analyse(tmp_path)
    assert found.run.ranks == [0, 1]
    assert found.run.world_size == 2
    assert sorted(found.collectives["process_group"]) == ["0xnew"] * 3 + ["0xold"] * 3
    assert found.participation["wait_ns"].sum() == 6 * 20_000
    assert found.run.traces["cycle"].max() == (0 if one_file else 1)


def test_the_same_log_twice_is_an_error_that_names_both(tmp_path):
    paths = written(tmp_path)
    (tmp_path / "copy-pid1.log").write_bytes(paths[0].read_bytes())
    with pytest.raises(AnalysisError, match=r"copy-pid1\.log and node00-pid4000\.log both claim rank 0"):
        load_run([tmp_path])


def test_a_missing_rank_leaves_lower_bounds(tmp_path):
    paths = written(tmp_path)
    paths[2].unlink()  # the one that came last
    found = analyse(tmp_path)
    assert found.run.missing_ranks == [2]
    assert not found.collectives["complete"].any()
    assert found.bandwidth["busbw_gb_per_s"].isna().all()
    assert found.participation["wait_ns"].isna().all()
    low = found.participation.groupby("rank")["wait_low_ns"].first().to_dict()
    assert low == {0: 0, 1: 1_000, 3: 3_000}


# --- what happens to logs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", with_slow([1, 40, 300], range(1, 700, 23)))
@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
def test_a_log_cut_anywhere_has_the_calls_before_the_cut(tmp_path, version, gone):
    path = written(tmp_path, version, ranks=1, late=0)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-gone])
    left = whole[:-gone]
    complete = [json.loads(line) for line in left.split(b"\n")[:-1]]
    last = left.split(b"\n")[-1]
    complete += [json.loads(last)] if last.endswith(b"}}") and last.count(b"{") == last.count(b"}") else []
    found = load_run([path])
    assert len(found.activities) == sum("coll_perf" in line for line in complete)
    cut = bool(last) and not (last.endswith(b"}}") and last.count(b"{") == last.count(b"}"))
    assert any("last line cut, and left out" in note for note in found.notes) == cut
    assert found.failed == ()


def test_a_broken_line_is_an_error_that_names_it_unless_asked_to_go_on(tmp_path, capsys):
    paths = written(tmp_path)
    lines = paths[1].read_bytes().splitlines(keepends=True)
    lines[4] = lines[4][:200] + b"\n"
    paths[1].write_bytes(b"".join(lines))
    with pytest.raises(DamagedTrace, match=r"node00-pid4001\.log: 1 line cannot be read, line 5: "):
        load_run([tmp_path])
    assert main(["table", "calls", "--keep-going", "--no-cache", "-f", "csv", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 + 4 * 12 - 1
    assert "line 5" in err
    found = analyse(tmp_path, keep_going=True)
    assert found.run.partial_ranks == [1]
    assert found.collectives["complete"].tolist().count(False) == 1


@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
def test_half_a_line_before_that_of_another_writer_costs_only_itself(tmp_path, version):
    path = written(tmp_path, version, ranks=1, late=0)[0]
    lines = path.read_bytes().splitlines(keepends=True)
    marker = next(i for i, line in enumerate(lines) if i > 2 and b'"header"' in line)
    lines[marker] = lines[1][:70] + lines[marker]
    path.write_bytes(b"".join(lines))
    with pytest.raises(DamagedTrace, match="1 line cannot be read"):
        load_run([path])
    assert len(load_run([path], keep_going=True).activities) == 12


def test_lines_never_go_to_the_communicator_of_a_broken_marker(tmp_path):
    log = Log()
    for sn in range(4):
        log.call(Comm("0xone", 0, 1), "all_reduce", sn, 10)
    for sn in range(4):
        log.call(Comm("0xtwo", 0, 1), "all_gather", sn, 10)
    path = log.write(tmp_path, "v4.3")
    text = path.read_text()
    path.write_text(text.replace('"id":"0xtwo"', '"id":0xtwo'))
    found = load_run([path], keep_going=True)
    assert len(found.activities) == 4
    why = "4 calls left out, because no marker before them names their communicator"
    assert any(why in note for note in found.notes)


@pytest.mark.slow
def test_repeated_lines_count_once(tmp_path):
    paths = written(tmp_path)
    before = analyse(tmp_path).bandwidth
    paths[0].write_bytes(paths[0].read_bytes() * 2)
    pd.testing.assert_frame_equal(analyse(tmp_path).bandwidth, before)


def test_numbers_that_are_none_and_unknown_fields_are_taken(tmp_path):
    log = Log()
    log.call(Comm(WORLD, 0, 1), "all_reduce", 0, 10, coll_new={"a": [1, "}"]}, event_trace_sn={"coll_start_sn": 1})
    path = log.write(tmp_path)
    text = path.read_text()
    busbw = text.partition('"coll_busbw_gbs":')[2].partition(",")[0]
    path.write_text(
        text.replace(f'"coll_busbw_gbs":{busbw}', '"coll_busbw_gbs":-nan') + text.replace("}\n", ',"x":1}\n')
    )
    assert len(load_run([path]).activities) == 1
    log_read = InspectorLog(path)
    assert [len(block.sn) for block in log_read.blocks()] == [2]
    assert log_read.broken_lines == 0


@pytest.mark.parametrize(("version", "read"), [("v4.9", True), ("v5.0", True), ("of no version", True)])
def test_another_version_is_read_for_what_it_shares_and_named(tmp_path, version, read):
    written(tmp_path, "v4.0")
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace("v4.0", version))
    found = load_run([tmp_path])
    assert len(found.activities) == 48
    assert any(f": of version {version}, not known here" in note for note in found.notes) == read


def test_a_version_without_the_fields_is_refused_by_name(tmp_path):
    path = written(tmp_path, "v4.0", ranks=1, late=0)[0]
    path.write_text(path.read_text().replace("v4.0", "v7.0").replace("coll_exec_time_us", "coll_exec_ns"))
    with pytest.raises(
        NotATrace, match=r"holds no call that can be read .*\(no version is named; versions v4\.0 to v4\.3"
    ):
        load_run([path])


def test_packed_logs_are_read(tmp_path):
    for path in written(tmp_path, "v4.3"):
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert len(analyse(tmp_path).collectives) == 12


def test_clocks_of_hosts_may_differ_by_anything(tmp_path):
    for rank, log in enumerate(logs()):
        log.calls = [(comm, us + rank * 3_600_000_000, body) for comm, us, body in log.calls]
        log.write(tmp_path)
    found = analyse(tmp_path)
    assert found.participation["wait_ns"].notna().all()
    assert found.participation["wait_ns"].sum() == 12 * (100_000 + 101_000 + 103_000)


# --- which files -----------------------------------------------------------------------------------------------------


def test_a_log_of_any_name_is_told_by_its_first_line(tmp_path):
    path = written(tmp_path, "v4.3", ranks=1, late=0)[0].rename(tmp_path / "whatever.txt")
    assert format_of(path).name == "NCCL Inspector"
    assert load_run([path]).ranks == [0]


def test_logs_beside_traces_are_left_out_with_a_note(tmp_path):
    write_run(tmp_path, 2, [Collective((0, 1 * MS))])
    written(tmp_path)
    found = load_run([tmp_path])
    assert len(found.traces) == 2
    assert any("left out 4 logs of NCCL Inspector beside traces" in note for note in found.notes)


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"coll_perf":', b'{"coll_perf":{}}\n'], ids=str)
def test_a_log_without_calls_is_an_error_in_one_line(tmp_path, capsys, content):
    path = tmp_path / "h-pid1.log"
    path.write_bytes(content)
    assert main(["table", "calls", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert str(path) in err
    assert err.count("\n") == 1


# --- proxies ---------------------------------------------------------------------------------------------------------


def proxies(folder, *logs, version="v4.3"):
    for log in logs:
        log.write(folder, version)
    found = analyse(folder, cache=False)
    return found.proxies, " ".join(found.run.notes)


@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
def test_steps_of_proxies_are_summed_by_collective_and_direction(tmp_path, version):
    comm = Comm(WORLD, 0, 2)
    log = Log(pid=1).call(comm, "all_reduce", 1, 90).call(comm, "all_gather", 2, 50).call(comm, "send", 1, 20, peer=1)
    log.step(comm, "send", 1, (1, 2, 3)).step(comm, "send", 1, (10, 20, 30)).step(comm, "recv", 1, (5, 0, 7))
    log.step(comm, "send", 2, (4, 5, 6), size_bytes=100).step(comm, "send", 1, (8, 8, 8), parent="p2p")
    found, notes = proxies(tmp_path, log, version=version)
    columns = ["collective", "direction", "calls", "steps", "moved_bytes", "gpu_ns", "peer_ns", "wire_ns", "flush_ns"]
    assert found[columns].astype(object).where(found[columns].notna(), None).to_numpy().tolist() == [
        ["all_gather", "send", 1, 1, 100, 4_000, 5_000, 6_000, None],
        ["all_reduce", "recv", 1, 1, 1 << 20, 7_000, None, 5_000, 0],
        ["all_reduce", "send", 1, 2, 2 << 20, 11_000, 22_000, 33_000, None],
        ["send", "send", 1, 1, 1 << 20, 8_000, 8_000, 8_000, None],
    ]
    assert "proxies" not in notes


def test_newer_lines_have_the_steps_of_an_operation_in_one(tmp_path):
    comm = Comm(WORLD, 0, 2)
    log = Log(pid=1).call(comm, "all_reduce", 1, 90).step(comm, "send", 1, (1, 2, 3)).step(comm, "send", 1, (3, 2, 1))
    steps = [body["proxy_trace"] for _, _, body in log.calls[1:]]
    inside = [{key: step[key] for key in ("trans_size_bytes", "event_trace_ts")} for step in steps]
    operation = steps[0] | {"record_type": "proxy_op", "steps": inside, "trans_size_bytes": 2 << 20}
    log.calls[1:] = [(comm, log.calls[0][1], {"proxy_trace": operation})]
    found, _ = proxies(tmp_path, log)
    assert found[["steps", "moved_bytes", "gpu_ns", "peer_ns", "wire_ns"]].to_numpy().tolist() == [
        [2, 2 << 20, 4_000, 4_000, 4_000]
    ]


def test_which_call_a_proxy_worked_for_may_not_be_clear(tmp_path):
    """A line has the number of the call, and NCCL counts the calls of each kind."""
    comm = Comm(WORLD, 0, 2)
    log = Log(pid=1).call(comm, "all_reduce", 1, 90).call(comm, "all_gather", 1, 50)
    log.step(comm, "send", 1, (1, 2, 3)).step(comm, "send", 9, (1, 2, 3)).step(comm, "recv", 9, (1, 2, 3), parent="x")
    found, notes = proxies(tmp_path, log)
    assert not len(found)
    assert "which call proxies worked for is not clear 3 times" in notes


def test_phases_whose_times_are_missing_or_run_backwards_are_not_known(tmp_path):
    comm = Comm(WORLD, 0, 2)
    log = Log(pid=1).call(comm, "all_reduce", 1, 90).step(comm, "send", 1, (1, 2, 3))
    times = log.calls[1][2]["proxy_trace"]["event_trace_ts"]
    times["send_peer_wait_ts"] = 0
    times["proxy_step_stop_ts"] = times["send_wait_ts"] - 1
    found, _ = proxies(tmp_path, log)
    assert found["steps"].tolist() == [1]
    assert found[["gpu_ns", "peer_ns", "wire_ns", "gpu_frac"]].isna().all(axis=None)


def test_dropped_records_of_proxies_are_said(tmp_path):
    comm = Comm(WORLD, 0, 2)
    marker, *lines = Log(pid=1).call(comm, "all_reduce", 1, 90).step(comm, "send", 1, (1, 2, 3)).lines("v4.3")
    told = json.loads(marker)
    told["dump_stats"] |= {"proxy_dropped_since_last_dump": 4, "proxy_ops_dropped_since_last_dump": 1}
    (tmp_path / "node-pid1.log").write_text("".join(f"{line}\n" for line in (json.dumps(told), *lines)))
    assert "5 steps or operations of proxies dropped by the Inspector" in " ".join(
        analyse(tmp_path, cache=False).run.notes
    )
    assert analyse(tmp_path, cache=False).proxies["steps"].tolist() == [1]


@pytest.mark.parametrize("field", ["parent_sn", "trans_size_bytes", "direction", "steps", "event_trace_ts"])
@pytest.mark.parametrize("value", [-1, 2**70, "x", [1], None, {"send_wait_ts": -5}])
def test_odd_values_of_proxies_are_an_error_or_nothing(tmp_path, field, value):
    comm = Comm(WORLD, 0, 2)
    log = Log(pid=1).call(comm, "all_reduce", 1, 90).step(comm, "send", 1, (1, 2, 3))
    log.calls[1][2]["proxy_trace"][field] = value
    log.write(tmp_path, "v4.3")
    with contextlib.suppress(DamagedTrace):
        assert len(analyse(tmp_path, cache=False).proxies) <= 1
    assert len(analyse(tmp_path, cache=False, keep_going=True).calls) == 1


def test_runs_without_proxies_have_no_rows(tmp_path, capsys):
    Log(pid=1).call(Comm(WORLD, 0, 2), "all_reduce", 1, 90).write(tmp_path)
    assert main(["table", "proxies", str(tmp_path)]) == 0
    assert "no log of NCCL Inspector has steps of proxies" in "".join(capsys.readouterr())


@pytest.mark.slow
def test_packed_logs_keep_what_proxies_did(tmp_path):
    comm = Comm(WORLD, 0, 2)
    log = Log(pid=1).call(comm, "all_reduce", 1, 90).step(comm, "send", 1, (1, 2, 3))
    path = log.write(tmp_path / "logs", "v4.3")
    assert main(["pack", "-o", str(tmp_path / "packed"), str(path)]) == 0
    pd.testing.assert_frame_equal(analyse(tmp_path / "packed").proxies, analyse(path, cache=False).proxies)
