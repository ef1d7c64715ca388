"""Bandwidth and waiting by time: from logs of any size in bounded memory, and from tables, by the same sums."""

from __future__ import annotations

import random

import pandas as pd
import pytest
from builders import MS, Collective, write_run
from fuzz_inspector import fuzz
from inspector_logs import BEGIN_US, Comm, Log, write_logs
from samples import with_slow
from simulator import PRESETS, simulate

from commtrace.analysis.errors import DamagedTrace
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.streaming.logs import LogsOverTime
from commtrace.analysis.tables.bandwidth_times import bandwidth_over_time
from commtrace.cli import main

MINUTE_NS = 60_000_000_000
_LOGGED = ["busbw_logged_gb_per_s", "begin", "begin_ns"]


def streamed(folder, every_ns: int = MINUTE_NS, **options):
    """The table of all logs of a folder, and what was said about them."""
    logs = LogsOverTime(sorted(folder.iterdir()), every_ns, **options)
    logs.read()
    return logs.table(), logs


def hours(folder, *, ranks: int = 4, minutes: int = 6, per_minute: int = 20, version: str = "v4.0", apart_us: int = 0):
    """Rank 1 is late in the first half, and the links are half as fast in the last minute."""
    for rank in range(ranks):
        log = Log(pid=100 + rank)
        for sn in range(minutes * per_minute):
            minute = sn // per_minute
            transfer = 600 if minute == minutes - 1 else 300
            late = 200 if minute < minutes // 2 else 0
            took = transfer + (0 if rank == 1 else late)
            written_us = BEGIN_US // 60_000_000 * 60_000_000 + minute * 60_000_000 + sn % per_minute * 1_000_000
            log.call(Comm("0xa", rank, ranks), "all_reduce", sn, took, written_us=written_us + rank * apart_us)
            log.call(Comm("0xb", rank, ranks), "all_gather", sn, 50, size_bytes=4 << 20, written_us=written_us)
        log.write(folder, version)


@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
def test_a_row_for_every_minute_tells_who_was_waited_for_and_when_links_were_slow(tmp_path, version):
    hours(tmp_path, version=version)
    found, logs = streamed(tmp_path)
    assert logs.notes == []
    rows = found[found["collective"] == "all_reduce"]
    assert rows["calls"].tolist() == [20] * 6
    assert rows["split_calls"].tolist() == [20] * 6
    waits = [3 * 200 / (3 * 500 + 300)] * 3 + [0.0] * 3
    assert rows["wait_frac"].tolist() == pytest.approx(waits)
    assert rows["straggler_rank"].tolist() == [1, 1, 1, pd.NA, pd.NA, pd.NA]
    assert rows["straggler_frac"].dropna().tolist() == [1.0] * 3
    true = (1 << 20) * 1.5 / 300_000
    assert rows["busbw_gb_per_s"].tolist() == pytest.approx([true] * 5 + [true / 2])
    assert rows["busbw_min_gb_per_s"].tolist() == pytest.approx([true] * 5 + [true / 2])
    assert rows["busbw_median_gb_per_s"].tolist() == pytest.approx([true] * 5 + [true / 2], rel=0.0014)
    # NCCL's own figure sees no difference between a late rank and a slow link.
    logged = (3 * true * 300 / 500 + true) / 4
    assert rows["busbw_logged_gb_per_s"].tolist() == pytest.approx([logged] * 3 + [true] * 2 + [true / 2], rel=1e-5)
    assert rows["size_from_bytes"].tolist() == [1 << 20] * 6
    assert rows["begin"].is_monotonic_increasing


@pytest.mark.slow_cases("straggler-v4.3")
@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
@pytest.mark.parametrize("world", with_slow(["straggler"], ["plain", "two hosts", "pipeline", "rooted", "cross"]))
def test_logs_in_one_pass_and_as_tables_give_the_same(tmp_path, world, version):
    write_logs(simulate(PRESETS[world]), tmp_path, version)
    every_ns = 1 << 62  # one interval: calls are placed by their start here, and by when they were written there
    of_logs, _ = streamed(tmp_path, every_ns)
    run = analyse(tmp_path)
    of_tables = bandwidth_over_time(run.collectives, run.participation, every_ns)
    keys = ["process_group", "collective", "size_from_bytes"]
    messages = of_logs["collective"].isin(["send", "recv"])
    # Which of several ranks is the one that was waited for longest may be a tie.
    pd.testing.assert_frame_equal(
        of_logs[~messages].drop(columns=[*_LOGGED, "partial"]).sort_values(keys, ignore_index=True),
        of_tables[~of_tables["collective"].isin(["send", "recv"])]
        .drop(columns=[*_LOGGED, "partial"])
        .sort_values(keys, ignore_index=True),
        check_exact=False,
        rtol=1e-9,
    )


@pytest.mark.slow_cases("one clock")
@pytest.mark.parametrize("apart_us", [0, 3_600_000_000], ids=["one clock", "clocks hours apart"])
def test_little_memory_does(tmp_path, apart_us):
    hours(tmp_path, apart_us=apart_us)
    whole, _ = streamed(tmp_path)
    little, logs = streamed(tmp_path, most_waiting=64, blocks_bytes=8_000, least_block_bytes=2_000)
    assert logs.notes == []
    pd.testing.assert_frame_equal(little, whole)


@pytest.mark.slow
def test_logs_of_very_different_length_are_read_as_others_need_them(tmp_path):
    hours(tmp_path)
    long = sorted(tmp_path.iterdir())[2]
    more = Log(pid=102)
    for sn in range(3_000):
        more.call(Comm("0xc", 0, 1), "all_reduce", sn, 10)
    text = "\n".join(more.lines("v4.0")) + "\n"
    long.write_text(text + long.read_text())  # what others wait for comes last
    whole, _ = streamed(tmp_path)
    little, logs = streamed(tmp_path, most_waiting=400, blocks_bytes=8_000, least_block_bytes=2_000)
    assert logs.notes == []
    pd.testing.assert_frame_equal(little, whole)


@pytest.mark.slow
def test_what_is_given_up_is_told_and_counted_once(tmp_path):
    for rank in range(2):
        log, numbers = Log(pid=rank), list(range(400))
        random.Random(rank).shuffle(numbers)  # no log is in this disorder
        for sn in numbers:
            log.call(Comm("0xa", rank, 2), "all_reduce", sn, 100)
        log.write(tmp_path)
    found, logs = streamed(tmp_path, most_waiting=64, blocks_bytes=4_000, least_block_bytes=2_000)
    assert found["calls"].sum() == 400
    assert found["split_calls"].sum() < 400
    assert any("left out: they stand so much later" in note for note in logs.notes)


def test_a_missing_rank_leaves_the_least_of_waiting(tmp_path):
    hours(tmp_path)
    next(tmp_path.glob("*-pid101.log")).unlink()
    found, logs = streamed(tmp_path)
    rows = found[found["collective"] == "all_reduce"]
    assert rows["calls"].tolist() == [20] * 6
    assert rows["split_calls"].tolist() == [0] * 6
    assert rows[["busbw_gb_per_s", "wait_frac", "straggler_rank"]].isna().all(axis=None)
    assert rows["wait_low_frac"].tolist() == [0.0] * 6
    assert rows["busbw_logged_gb_per_s"].notna().all()
    assert any("2 of 2 communicators have a rank without a log" in note for note in logs.notes)


def test_only_the_last_call_of_each_dump_is_in_old_logs(tmp_path):
    # v4.0 of NCCL 2.28 keeps the latest call only, and ranks do not write at the same time.
    for rank in range(2):
        log = Log(pid=rank)
        for sn in range(rank, 300, 3 + 2 * rank):
            log.call(Comm("0xa", rank, 2), "all_reduce", sn, 100 + 10 * rank)
        log.write(tmp_path)
    found, _ = streamed(tmp_path)
    seen = [set(range(rank, 300, 3 + 2 * rank)) for rank in range(2)]
    assert found["calls"].tolist() == [len(seen[0] | seen[1])]
    assert found["split_calls"].tolist() == [len(seen[0] & seen[1])]


@pytest.mark.parametrize("every_us", [10_000_000, 0], ids=["every ten seconds", "at the end"])
def test_logs_that_are_written_at_the_end_tell_no_times(tmp_path, every_us):
    for rank in range(2):
        log = Log(pid=rank)
        for sn in range(100):
            log.call(Comm("0xa", rank, 2), "all_reduce", sn, 500_000, written_us=BEGIN_US + sn // 10 * every_us)
        log.write(tmp_path)
    _, logs = streamed(tmp_path)
    said = [note for note in logs.notes if note.startswith("2 logs of 2 written long after the calls")]
    assert len(said) == (0 if every_us else 1)


def test_broken_lines_end_it_unless_asked_to_go_on(tmp_path, capsys):
    hours(tmp_path)
    path = sorted(tmp_path.iterdir())[1]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:6], b'{"header":{"id":7\n', *lines[6:]]))
    with pytest.raises(DamagedTrace, match=r"pid101\.log: 1 line cannot be read, line 7"):
        streamed(tmp_path)
    found, logs = streamed(tmp_path, keep_going=True)
    assert found["split_calls"].sum() == 240
    assert found["partial"].all()
    assert main(["bandwidth", "--by", "time", "--keep-going", "-f", "csv", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out.count("\n") == 13
    assert "line 7" in err
    assert len(logs.failed) == 1


def test_logs_that_cannot_be_used_are_left_out_if_asked_for(tmp_path, capsys):
    hours(tmp_path, minutes=1)
    (tmp_path / "h-pid7.log").write_bytes(b"")
    (tmp_path / "h-pid8.log").mkdir()
    assert main(["bandwidth", "--by", "time", str(tmp_path)]) == 1
    assert "h-pid8.log: cannot be read: Is a directory" in capsys.readouterr().err
    assert main(["bandwidth", "--by", "time", "--keep-going", "-f", "csv", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out.count("\n") == 3
    assert "h-pid7.log: holds no call" in err
    assert "h-pid8.log: cannot be read" in err


def test_messages_are_counted_beside_collectives(tmp_path):
    Log(pid=1).call(Comm("0xa", 0, 2), "send", 1, 90, peer=1).write(tmp_path)
    Log(pid=2).call(Comm("0xa", 1, 2), "recv", 1, 30, peer=0).write(tmp_path)
    found, _ = streamed(tmp_path)
    assert dict(zip(found["collective"], found["calls"], strict=True)) == {"recv": 1, "send": 1}
    assert found["busbw_logged_gb_per_s"].notna().all()
    assert found["wait_frac"].isna().all()


def test_traces_have_it_by_time_too(tmp_path, capsys):
    second = 1_000 * MS
    truth = [Collective((k * second, k * second + 30 * MS, k * second), 10 * MS, elems=250_000) for k in range(4)]
    write_run(tmp_path, 3, truth)
    assert main(["bandwidth", "--by", "time", "--every", "2s", "-f", "csv", str(tmp_path)]) == 0
    found = pd.read_csv(pd.io.common.StringIO(capsys.readouterr().out))
    assert found["calls"].tolist() == [2, 2]
    assert found["straggler_rank"].tolist() == [1, 1]
    assert found["wait_frac"].tolist() == pytest.approx([2 * 30 / (2 * 40 + 10)] * 2)
    assert found["busbw_gb_per_s"].tolist() == pytest.approx([1e6 * 4 / 3 / 10e6] * 2)
    assert found["busbw_logged_gb_per_s"].isna().all()


@pytest.mark.parametrize("every", ["0s", "60", "1 week", "-5s", ""])
def test_no_length_of_time_is_a_usage_error(tmp_path, capsys, every):
    assert main(["bandwidth", "--by", "time", "--every", every, str(tmp_path)]) == 2
    assert "--every" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--ranks", "0"], ["--verify"], ["--hosts", "a"], ["--ceiling", "x"]], ids=str)
def test_options_that_do_not_go_with_it_are_usage_errors(tmp_path, capsys, option):
    hours(tmp_path, minutes=1, per_minute=1)
    assert main(["bandwidth", "--by", "time", *option, str(tmp_path)]) == 2
    assert option[0] in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("mutants", [40])
def test_mutants_are_refused_or_give_the_same_in_both_ways(mutants):
    counts = fuzz(600, mutants, seed=20)
    assert counts.total() == mutants
    assert counts["split"] > mutants / 3
