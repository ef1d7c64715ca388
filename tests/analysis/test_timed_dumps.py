"""Dumps with durations as a run: calls, collectives, waiting without clocks, bandwidth."""

from __future__ import annotations

import csv
import json
import pickle
import random
from io import StringIO
from pathlib import Path

import pytest
from hanging_jobs import Job, Op, Writing, data_parallel, dumps_of, three_dimensional

from commtrace import cli
from commtrace.analysis.errors import DamagedTrace, NothingMeasured
from commtrace.analysis.timed_dumps.analysis import TimedDumps, timed_dumps

TRANSFER_MS = {"all_reduce": 2.0, "_all_gather_base": 1.0}
ROWS = {"calls": 32, "collectives": 8, "participation": 32, "bandwidth": 2}
BYTES = {"all_reduce": 1000 * 4, "_all_gather_base": 64 * 4 * 4}


def written(folder: Path, job: Job, late_ms: dict[tuple[int, int], float]) -> Path:
    """The dumps of a job that ended; `late_ms` is when a rank came to a call, by rank and place in its program.

    Everybody leaves a call at once, and the last one to come takes the transfer.
    """
    folder.mkdir(exist_ok=True)
    for rank, dump in dumps_of(job.run(), Writing()).items():
        for at, entry in enumerate(dump["entries"]):
            op = job.programs[rank][at]
            if op.peer is not None:
                continue
            members = job.groups[op.group][1]
            last = max(late_ms.get((member, at), 0.0) for member in members)
            entry["duration_ms"] = last - late_ms.get((rank, at), 0.0) + TRANSFER_MS[op.kind]
        (folder / f"dump_{rank}").write_bytes(pickle.dumps(dump, 2))
    return folder


@pytest.fixture
def late() -> dict[tuple[int, int], float]:
    choice = random.Random(5)
    return {(rank, at): round(choice.random() * 5, 3) for rank in range(4) for at in range(8)}


@pytest.fixture
def run(tmp_path: Path, late: dict[tuple[int, int], float]) -> Path:
    return written(tmp_path / "dumps", data_parallel(4), late)


def analysed(folder: Path) -> TimedDumps:
    found = timed_dumps([folder], workers=1)
    assert found is not None
    return found


def test_waiting_and_transfer_are_what_they_were(run: Path, late: dict[tuple[int, int], float]) -> None:
    dumps = analysed(run)
    calls = dumps.participation.merge(dumps.calls[["call_id", "seq"]], on="call_id")
    assert len(calls) == 32
    for row in calls.to_dict("records"):
        at = row["seq"] - 1
        last = max(late[rank, at] for rank in range(4))
        assert row["wait_ns"] == pytest.approx((last - late[row["rank"], at]) * 1e6, abs=2)
        assert row["wait_ns"] + row["transfer_ns"] == row["dur_ns"]
    assert calls[["late_ns", "exposed_wait_ns", "exposed_transfer_ns", "waited_for"]].isna().all().all()


def test_bandwidth_is_that_of_the_transfer(run: Path) -> None:
    table = analysed(run).bandwidth.set_index("collective")
    for kind, factor in (("all_reduce", 2 * 3 / 4), ("all_gather", 3 / 4)):
        recorded = "_all_gather_base" if kind == "all_gather" else kind
        row = table.loc[kind]
        assert row["size_bytes"] == BYTES[recorded]
        assert row["calls"] == 4
        assert row["time_us_median"] == TRANSFER_MS[recorded] * 1000
        assert row["busbw_gb_per_s"] == pytest.approx(factor * BYTES[recorded] / TRANSFER_MS[recorded] / 1e6)


def test_collectives_have_no_times_that_need_clocks(run: Path) -> None:
    table = analysed(run).collectives
    assert len(table) == 8
    assert table["complete"].all()
    assert (table["matched_by"] == "seq").all()
    assert table[["arrival_skew_ns", "last_rank", "end_skew_ns", "transfer_high_ns"]].isna().all().all()
    assert set(table["transfer_ns"]) == {1_000_000, 2_000_000}


def test_where_a_rank_is_missing_nothing_is_split(run: Path) -> None:
    (run / "dump_2").unlink()
    dumps = analysed(run)
    assert dumps.participation["wait_ns"].isna().all()
    assert dumps.collectives["transfer_ns"].isna().all()
    assert set(dumps.collectives["note"]) == {"not seen on rank 2"}
    assert dumps.bandwidth["busbw_gb_per_s"].isna().all()


def test_groups_are_kept_apart(tmp_path: Path) -> None:
    late = {(rank, at): float(rank) for rank in range(4) for at in range(40)}
    job = three_dimensional(2, 1, 2)
    table = analysed(written(tmp_path / "dumps", job, late)).collectives
    assert set(table["ranks"]) == {"0 1", "2 3", "0 2", "1 3", "0 1 2 3"}


def test_the_root_of_a_broadcast_does_not_tell_how_long_it_took(tmp_path: Path) -> None:
    job = Job({"0": ("default_pg", [0, 1])}, {rank: [Op("0", "all_reduce")] for rank in range(2)})
    folder = written(tmp_path / "dumps", job, {})
    for rank in range(2):
        dump = pickle.loads((folder / f"dump_{rank}").read_bytes())
        dump["entries"][0] |= {"profiling_name": "nccl:broadcast", "duration_ms": 1.0 + rank}
        (folder / f"dump_{rank}").write_bytes(pickle.dumps(dump, 2))
    assert analysed(folder).participation["wait_ns"].isna().all()


@pytest.mark.slow_cases("bandwidth")
@pytest.mark.parametrize("name", ROWS)
def test_the_commands_take_dumps(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in ([str(run)], sorted(map(str, run.iterdir()))):
        assert cli.main(["table", name, "--format", "csv", *given]) == 0
        out, err = capsys.readouterr()
        assert len(list(csv.DictReader(StringIO(out)))) == ROWS[name]
        assert "start is when a call was issued" in err


@pytest.mark.parametrize(
    "command", ["breakdown", "summary", "table lateness", "table kernels", "table verdicts", "timeline"]
)
def test_what_dumps_cannot_tell_is_said(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command.split(), str(run)]) == 1
    assert "not when they ran, nor what was computed; of tables there are calls" in capsys.readouterr().err


def test_dumps_without_durations_say_how_to_get_them(tmp_path: Path) -> None:
    for rank, dump in dumps_of(data_parallel(2).run()).items():
        (tmp_path / f"dump_{rank}").write_text(json.dumps(dump))
    with pytest.raises(NothingMeasured, match="record with TORCH_NCCL_ENABLE_TIMING=1"):
        timed_dumps([tmp_path])


def test_damaged_dumps_are_left_out_on_request(run: Path) -> None:
    (run / "dump_1").write_bytes((run / "dump_1").read_bytes()[:700])
    with pytest.raises(DamagedTrace, match="dump_1: is a pickle that ends early"):
        timed_dumps([run])
    found = timed_dumps([run], keep_going=True)
    assert found is not None
    assert len(found.failed) == 1
    assert sorted(found.dumps) == [0, 2, 3]


def test_traces_are_no_dumps() -> None:
    root = Path(__file__).resolve().parents[2]
    assert timed_dumps([root / "traces/resnet18-ddp-w2"]) is None
    assert timed_dumps([root / "gone"]) is None
