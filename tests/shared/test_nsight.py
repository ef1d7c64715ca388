"""A real export of Nsight Systems, against what SQL and plain arithmetic say of it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from beside_checkout import SHARED

from commtrace import analyse
from commtrace.analysis.results.analysis import Analysis

EXPORT = SHARED / "nsight" / "mfu_2gpu_before.sqlite"
PROCESSES = {0: 144, 1: 145}
"""Rank -> its process: the first uses GPU 0."""

pytestmark = pytest.mark.skipif(not EXPORT.is_file(), reason="no export of Nsight Systems beside the checkout")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, beside which something may be written."""
    return Path(shutil.copy(EXPORT, tmp_path_factory.mktemp("nsight")))


@pytest.fixture(scope="module")
def found(path: Path) -> Analysis:
    return analyse(path, details=True)


@pytest.fixture
def database(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


def test_each_process_is_a_rank_with_its_gpu(found: Analysis) -> None:
    traces, activities = found.run.traces, found.run.activities
    assert dict(zip(traces["rank"], traces["pid"], strict=True)) == PROCESSES
    assert traces["host"].tolist() == ["modal", "modal"]
    assert activities.groupby("rank")["device"].unique().map(list).tolist() == [["0"], ["1"]]
    assert (activities["kind"].isin(["compute", "comm"])).sum() == 4_010


def test_what_one_rank_takes_longer_is_waiting(found: Analysis) -> None:
    took = found.calls.groupby("rank")["dur_ns"].agg(["size", "sum"])
    assert took["size"].tolist() == [33, 33]
    assert [round(ns / 1e6, 2) for ns in took["sum"]] == [17.17, 8.23]
    assert found.collectives["ranks"].tolist() == ["0 1"] * 33
    assert found.collectives["certain"].all()
    split = found.participation.dropna(subset="wait_ns")
    assert len(split) == 2 * 32  # of the first, the launch is before the window, so it is not known what it is
    by_rank = split.groupby("rank")[["dur_ns", "wait_ns", "transfer_ns"]].sum()
    assert (by_rank["wait_ns"] + by_rank["transfer_ns"] == by_rank["dur_ns"]).all()
    more_ns, waited_ns, moved_ns = (by_rank[column][0] - by_rank[column][1] for column in by_rank)
    assert more_ns == waited_ns + moved_ns
    # Raw clocks of one host; one of its GPUs ends 22 us earlier in each call, which is stated as their uncertainty.
    uncertain_ns = int(found.clocks["bent_uncertainty_ns"].max())
    assert abs(moved_ns) < len(split) / 2 * uncertain_ns < 0.1 * more_ns


UNIONS = """
WITH activities AS (
    SELECT "start", "end", s.value LIKE 'nccl%' AS comm, 0 AS copy FROM CUPTI_ACTIVITY_KIND_KERNEL
    JOIN StringIds s ON s.id = shortName WHERE globalPid / 16777216 % 16777216 = :pid
    UNION ALL SELECT "start", "end", 0, 1 FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE globalPid / 16777216 % 16777216 = :pid
    UNION ALL SELECT "start", "end", 0, 1 FROM CUPTI_ACTIVITY_KIND_MEMSET WHERE globalPid / 16777216 % 16777216 = :pid
),
chosen AS (SELECT "start", "end" FROM activities WHERE {condition}),
reached AS (
    SELECT "start", "end", max("end") OVER (ORDER BY "start", "end" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    AS before FROM chosen
)
SELECT sum(max("end" - max("start", coalesce(before, "start")), 0)), min("start"), max("end") FROM reached
"""
"""How long something ran: of each activity, in order of starts, what reaches beyond all before it."""


@pytest.mark.parametrize("rank", PROCESSES)
def test_the_breakdown_is_what_sql_adds_up(found: Analysis, database: sqlite3.Connection, rank: int) -> None:
    def ran(condition: str) -> tuple[int, int, int]:
        row = database.execute(UNIONS.format(condition=condition), {"pid": PROCESSES[rank]}).fetchone()
        return int(row[0]), int(row[1]), int(row[2])

    kernels, everything = ran("NOT copy"), ran("1")
    compute_ns, comm_ns, window_ns = ran("NOT copy AND NOT comm")[0], ran("comm")[0], everything[2] - everything[1]
    (row,) = found.breakdown[found.breakdown["rank"] == rank].to_dict("records")
    assert row["compute_ns"] == compute_ns
    assert row["comm_ns"] == comm_ns
    assert row["window_ns"] == window_ns
    assert row["overlap_ns"] == compute_ns + comm_ns - kernels[0]
    assert row["exposed_comm_ns"] == kernels[0] - compute_ns
    assert row["exposed_memory_ns"] == everything[0] - kernels[0]
    assert row["idle_ns"] == window_ns - everything[0]


def test_every_stream_wait_names_its_event(found: Analysis) -> None:
    waits, calls = found.run.stream_waits, found.run.runtime_calls
    assert len(waits) == 200
    by_call = calls.set_index(["rank", "correlation"])
    waiting, recording = (
        by_call.loc[list(zip(waits["rank"], waits[column], strict=True))] for column in ("correlation", "recorded")
    )
    assert set(waiting["name"]) == {"cudaStreamWaitEvent"}
    assert set(recording["name"]) == {"cudaEventRecord", "cudaEventRecordWithFlags"}
    assert (recording["start_ns"].to_numpy() < waiting["start_ns"].to_numpy()).all()
    assert waits.groupby("rank")["device"].unique().map(list).tolist() == [["0"], ["1"]]


def test_it_can_be_played_again(found: Analysis) -> None:
    (row,) = found.replay_steps.to_dict("records")
    assert row["with_delays_ns"] == row["measured_ns"]
    assert abs(row["error_frac"]) < 0.02


@pytest.mark.slow
def test_each_process_in_a_file_of_its_own_gives_the_same(found: Analysis, path: Path, tmp_path: Path) -> None:
    for rank, pid in PROCESSES.items():
        own = Path(shutil.copy(path, tmp_path / f"report_rank{rank}.sqlite"))
        with sqlite3.connect(own) as connection:
            for kind in ("KERNEL", "MEMCPY", "MEMSET"):
                connection.execute(
                    f"DELETE FROM CUPTI_ACTIVITY_KIND_{kind} WHERE globalPid / 16777216 % 16777216 != {pid}"
                )
        connection.close()
    apart = analyse(tmp_path)
    assert apart.run.traces["rank_from"].tolist() == ["file name"] * 2
    columns = ["rank", "exposed_wait_ns", "exposed_transfer_ns", "idle_ns"]
    assert apart.breakdown[columns].equals(found.breakdown[columns])
