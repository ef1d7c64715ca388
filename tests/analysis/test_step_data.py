"""What the page holds of every step: calls as in the tables to the ns, and what late ranks did before."""

import itertools
import json
from pathlib import Path

import pandas as pd
import pytest
from builders import MS, Collective, analysed, traces_of

from commtrace import analyse
from commtrace.analysis.core.schema import records
from commtrace.analysis.report.steps import steps_data

DATA = Path(__file__).parent.parent / "data"


def held(run, first=None):
    made = steps_data(run, first)
    assert made is not None
    return json.loads(made.json), made


@pytest.mark.quick_cases("gloo-training")
@pytest.mark.parametrize("name", ["nccl-straggler", "nccl-two-hosts", "nccl-pipeline", "gloo-training"])
def test_every_call_is_there_with_its_wait_and_length(name) -> None:
    run = analyse(DATA / name, details=True)
    data, _ = held(run)
    step_of = run.calls.set_index("call_id")["step"]
    expected = [
        (step_of[row["call_id"]], row["rank"], row["collective_id"], row["dur_ns"], row["wait_ns"])
        for row in records(run.participation)
        if pd.notna(step_of[row["call_id"]])
    ]
    found = [
        (step["step"], rank["rank"], of, dur, None if wait < 0 else wait)
        for step in data["steps"]
        for rank in step["ranks"]
        for of, dur, wait in zip(rank["of"], rank["dur"], rank["wait"], strict=True)
    ]
    key = lambda row: tuple(-1 if value is None else value for value in row)  # noqa: E731
    assert sorted(found, key=key) == sorted(expected, key=key)
    # Between ranks, arrivals are as far apart as in the table.
    arrived = run.participation.set_index(["collective_id", "rank"])["arrived_ns"]
    for step in data["steps"]:
        at = {
            (of, rank["rank"]): start
            for rank in step["ranks"]
            for of, start in zip(rank["of"], itertools.accumulate(rank["start"]), strict=True)
        }
        first = min(at, key=lambda call: at[call])
        assert all(at[call] - at[first] == arrived[call] - arrived[first] for call in at if arrived.index.is_unique)


def test_compute_is_where_the_device_computes(tmp_path) -> None:
    traces = traces_of(2, [Collective((10 * MS, 12 * MS), 5 * MS, elems=10**6)])
    for trace in traces:
        trace.step(0, 0, 40 * MS).kernel("gemm", 1 * MS, 4 * MS).kernel("gemm", 6 * MS, 3 * MS)
    data, _ = held(analysed(tmp_path, *traces))
    [step] = data["steps"]
    assert [rank["compute"] for rank in step["ranks"]] == [[0, 4 * MS, 1 * MS, 3 * MS]] * 2


def late_on_cpu(folder):
    """Rank 1 launches its work 20 ms late, while its CPU is in an operator."""
    traces = traces_of(2, [Collective((10 * MS, 30 * MS), 5 * MS, elems=10**7)])
    for trace in traces:
        trace.step(0, 0, 60 * MS).kernel("gemm", 2 * MS, 3 * MS)
        if trace.rank == 1:
            trace.event("cpu_op", "aten::nonzero", 12 * MS, 16 * MS)
    return analysed(folder, *traces)


def test_what_the_late_rank_did_is_there(tmp_path) -> None:
    late_on_cpu(tmp_path)
    run = analyse(tmp_path, details=True)
    data, _ = held(run)
    [late] = records(run.lateness)
    number = str(late["collective_id"])
    assert data["steps"][0]["late"][number][:3] == [1, late["late_ns"], late["caused_wait_ns"]]
    behind = data["behind"][number]
    assert [rank["rank"] for rank in behind["ranks"]] == [1, 0]
    [(name, _, dur, depth)] = [
        event for event in behind["ranks"][0]["cpu"] if data["names"][event[0]] == "aten::nonzero"
    ]
    assert (data["names"][name], dur) == ("aten::nonzero", 16 * MS)
    assert depth in (0, 1)
    assert behind["at"] - behind["arrived"] == 20 * MS


def test_without_details_nothing_is_read_again(tmp_path) -> None:
    late_on_cpu(tmp_path)
    data, _ = held(analyse(tmp_path, details=False))
    assert data["behind"] == {}
    assert data["steps"][0]["late"]


@pytest.mark.slow
def test_the_step_asked_for_comes_first_and_else_the_worst() -> None:
    run = analyse(DATA / "nccl-straggler")
    worst = int(run.rank_steps.groupby("step")["exposed_wait_ns"].sum().idxmax())
    assert held(run)[1].first == worst
    other = next(step for step in run.run.steps if step != worst)
    assert held(run, other)[1].first == other


@pytest.mark.slow
def test_of_many_calls_the_steps_with_most_waiting_are_kept() -> None:
    run = analyse(DATA / "nccl-straggler")
    made = steps_data(run, most=1)
    assert made is not None
    data = json.loads(made.json)
    assert [step["step"] for step in data["steps"]] == data["all"] == [made.first]
    left_out = len(run.run.steps) - 1
    assert made.note == f"{left_out} steps with less waiting are not in this page; `commtrace serve` shows all."


@pytest.mark.slow
def test_what_devices_computed_is_merged_until_the_page_has_room(tmp_path) -> None:
    traces = traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6)])
    for trace in traces:
        trace.step(1, 0, 100 * MS)
        for n in range(500):
            trace.kernel("gemm", 40 * MS + n * 0.1 * MS, 0.05 * MS)
    run = analysed(tmp_path, *traces)
    sizes = {most: len(steps_data(run, most=most).json) for most in (4_000, 8_000, 16_000, 1_000_000)}
    assert all(size < most + 500 for most, size in sizes.items())
    assert sizes[4_000] < sizes[16_000] < sizes[1_000_000]


def test_a_run_without_steps_is_one_window(tmp_path) -> None:
    run = analysed(tmp_path, *traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6)]))
    data, made = held(run)
    assert made.first == data["whole"]
    assert [len(rank["of"]) for rank in data["steps"][0]["ranks"]] == [1, 1]


def test_a_run_without_communication_shows_what_it_computes(tmp_path) -> None:
    [trace] = traces_of(1, [])
    data, made = held(analysed(tmp_path, trace.step(3, 0, 9 * MS).kernel("gemm", 1 * MS, 5 * MS)))
    [rank] = data["steps"][0]["ranks"]
    assert (made.first, made.calls) == (3, False)
    assert (rank["compute"], rank["of"]) == ([0, 5 * MS], [])


def test_a_run_in_which_no_device_did_anything_has_none(tmp_path) -> None:
    [trace] = traces_of(1, [])
    assert steps_data(analysed(tmp_path, trace.event("cpu_op", "aten::add", 0, 1 * MS))) is None
