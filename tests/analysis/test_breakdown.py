"""Where a device's time went: exact, conserved, per device and cycle."""

from dataclasses import replace

import pandas as pd
import pytest
from builders import MS, US, Collective, Trace, activities_table, analysed, traces_of
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.analysis.core.schema import records
from commtrace.analysis.core.tables.communication import MEMBERS
from commtrace.analysis.metrics.device.breakdown import Devices, devices_of
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import load_run
from commtrace.analysis.tables.breakdown import breakdown_steps, recorded_breakdown

NOTHING = MEMBERS.empty()
TIMES = ["window_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns"]

ACTIVITY = st.fixed_dictionaries({
    "rank": st.integers(0, 1),
    "cycle": st.integers(0, 1),
    "device": st.sampled_from(["0", "1"]),
    "stream": st.integers(7, 9),
    "kind": st.sampled_from(["compute", "comm", "memory"]),
    "start_ns": st.integers(0, 60),
    "dur_ns": st.integers(0, 20),
    "step": st.one_of(st.none(), st.integers(1, 4)),
})  # fmt: skip
ACTIVITIES_LIST = st.lists(ACTIVITY, min_size=1, max_size=14)


def devices(activities: pd.DataFrame) -> Devices:
    """What devices did, without any call."""
    return devices_of(activities, {})


def assert_conserved(table: pd.DataFrame) -> None:
    parts = table["compute_ns"] + table["exposed_comm_ns"] + table["exposed_memory_ns"] + table["idle_ns"]
    assert (parts == table["window_ns"]).all()
    assert (table["comm_ns"] == table["overlap_ns"] + table["exposed_comm_ns"]).all()
    assert (table[TIMES] >= 0).to_numpy().all()
    split = table[table["exposed_wait_ns"].notna()]
    exposed = split["exposed_wait_ns"] + split["exposed_transfer_ns"] + split["exposed_unsplit_ns"]
    assert (exposed == split["exposed_comm_ns"]).all()
    unsplit = table[table["exposed_wait_ns"].isna()]
    assert unsplit["exposed_transfer_ns"].isna().all()
    assert (unsplit["exposed_unsplit_ns"] == unsplit["exposed_comm_ns"]).all()


def by_cells(rows: list[dict], start: int, end: int) -> dict[str, int]:
    """The same by counting unit cells of [start, end)."""
    seen = {kind: set() for kind in ("compute", "comm", "memory")}
    for row in rows:
        seen[row["kind"]] |= set(range(max(start, row["start_ns"]), min(end, row["start_ns"] + row["dur_ns"])))
    compute, comm, memory = seen["compute"], seen["comm"], seen["memory"]
    return {
        "window_ns": end - start,
        "compute_ns": len(compute),
        "comm_ns": len(comm),
        "overlap_ns": len(compute & comm),
        "exposed_comm_ns": len(comm - compute),
        "exposed_memory_ns": len(memory - comm - compute),
        "idle_ns": end - start - len(compute | comm | memory),
    }


@settings(max_examples=12)
@given(ACTIVITIES_LIST)
def test_time_is_conserved_over_the_whole_window(rows):
    assert_conserved(recorded_breakdown(devices(activities_table(rows)), NOTHING))


@settings(max_examples=12)
@given(ACTIVITIES_LIST)
def test_time_is_conserved_in_every_step(rows):
    assert_conserved(breakdown_steps(devices(activities_table(rows)), NOTHING))


@settings(max_examples=12)
@given(st.lists(ACTIVITY.map(lambda r: r | {"rank": 0, "cycle": 0, "device": "0"}), min_size=1, max_size=14))
def test_every_number_is_that_of_a_brute_force_count(rows):
    (found,) = records(recorded_breakdown(devices(activities_table(rows)), NOTHING))
    start, end = min(r["start_ns"] for r in rows), max(r["start_ns"] + r["dur_ns"] for r in rows)
    assert {key: found[key] for key in TIMES} == by_cells(rows, start, end)


@settings(max_examples=12)
@given(st.lists(ACTIVITY.map(lambda r: r | {"rank": 0, "cycle": 0, "device": "0"}), min_size=1, max_size=14))
def test_every_step_is_that_of_a_brute_force_count(rows):
    with_step = [r for r in rows if r["step"] is not None]
    wanted = []
    for step in sorted({r["step"] for r in with_step}):
        start = min(r["start_ns"] for r in with_step if r["step"] >= step)
        later = [r["start_ns"] for r in with_step if r["step"] > step]
        end = min(later) if later else max(r["start_ns"] + r["dur_ns"] for r in with_step)
        wanted.append({"step": step, **by_cells(rows, start, end)})
    found = breakdown_steps(devices(activities_table(rows)), NOTHING)
    assert [{key: row[key] for key in ("step", *TIMES)} for row in records(found)] == wanted


@pytest.mark.slow
@settings(max_examples=15)
@given(ACTIVITIES_LIST, st.integers(-(10**15), 10**18))
def test_another_clock_changes_no_duration(rows, offset):
    plain = activities_table(rows)
    shifted = plain.assign(start_ns=plain["start_ns"] + offset * (plain["rank"] == 1))
    for table in (recorded_breakdown, breakdown_steps):
        pd.testing.assert_frame_equal(table(devices(plain), NOTHING), table(devices(shifted), NOTHING))


def test_a_case_by_hand():
    table = recorded_breakdown(
        devices(activities_table([
            {"kind": "compute", "start_ns": 100, "dur_ns": 50},
            {"kind": "compute", "start_ns": 120, "dur_ns": 60, "stream": 8},  # until 180: union 80
            {"kind": "comm", "start_ns": 160, "dur_ns": 100},  # until 260: 20 hidden, 80 exposed
            {"kind": "memory", "start_ns": 250, "dur_ns": 30},  # until 280: 20 under neither
            {"kind": "memory", "start_ns": 300, "dur_ns": 10},  # idle from 280 to 300
        ])),
        NOTHING,
    )  # fmt: skip
    (row,) = records(table)
    assert {key: row[key] for key in TIMES} == {
        "window_ns": 210,
        "compute_ns": 80,
        "comm_ns": 100,
        "overlap_ns": 20,
        "exposed_comm_ns": 80,
        "exposed_memory_ns": 30,
        "idle_ns": 20,
    }
    assert (row["n_compute"], row["n_comm"], row["n_memory"], row["n_no_step"]) == (2, 1, 2, 5)
    assert row["exposed_comm_frac"] == 80 / 210
    assert row["hidden_comm_frac"] == 20 / 100


def test_without_communication_the_hidden_part_is_not_known():
    (row,) = records(
        recorded_breakdown(devices(activities_table([{"kind": "compute", "start_ns": 0, "dur_ns": 5}])), NOTHING)
    )
    assert row["hidden_comm_frac"] is None
    assert row["exposed_comm_frac"] == 0
    assert (row["exposed_wait_ns"], row["exposed_transfer_ns"]) == (0, 0)


def test_activities_without_launch_take_time_all_the_same(tmp_path):
    trace = Trace().step(1, 5 * MS, 20 * MS).kernel("late", 10 * MS, 4 * MS)
    trace.kernel("ncclDevKernel_Generic", 8 * MS, 3 * MS, launch=None)
    found = analysed(tmp_path, trace)
    (row,) = records(replace(found, whole=True).breakdown)
    assert (row["comm_ns"], row["overlap_ns"], row["n_no_step"], row["window_ns"]) == (3 * MS, 1 * MS, 1, 6 * MS)
    (row,) = records(found.breakdown)
    assert (row["comm_ns"], row["overlap_ns"], row["n_no_step"], row["window_ns"]) == (1 * MS, 1 * MS, 1, 4 * MS)
    (step,) = records(found.breakdown_steps)
    assert (step["step"], step["window_ns"], step["comm_ns"], step["overlap_ns"]) == (1, 4 * MS, 1 * MS, 1 * MS)


def test_devices_of_one_process_are_never_merged(tmp_path):
    trace = Trace(world=1).kernel("a", 0, 10 * MS, device=0).kernel("b", 0, 3 * MS, device=1)
    found = analysed(tmp_path, trace).breakdown
    assert found[["rank", "device", "window_ns", "compute_ns"]].to_numpy().tolist() == [
        [0, "0", 10 * MS, 10 * MS],
        [0, "1", 3 * MS, 3 * MS],
    ]


def test_cycles_are_summed_without_the_gap_between_them(tmp_path):
    Trace().step(3, 0, 9 * MS).kernel("a", 1 * MS, 2 * MS).write(tmp_path, "node_0.0003.pt.trace.json.gz")
    later = Trace().step(103, 900 * MS, 950 * MS).kernel("a", 910 * MS, 3 * MS).kernel("b", 920 * MS, 1 * MS)
    later.write(tmp_path, "node_0.0004.pt.trace.json.gz")
    found = Analysis(load_run([tmp_path]))
    (row,) = records(found.breakdown)
    assert (row["cycles"], row["window_ns"], row["compute_ns"], row["idle_ns"]) == (2, 13 * MS, 6 * MS, 7 * MS)
    assert found.breakdown_steps[["step", "window_ns"]].to_numpy().tolist() == [[3, 2 * MS], [103, 11 * MS]]


def test_activities_of_no_length_count_but_take_no_time():
    (row,) = records(
        recorded_breakdown(devices(activities_table([{"kind": "comm", "start_ns": 5, "dur_ns": 0}])), NOTHING)
    )
    assert (row["n_comm"], row["comm_ns"], row["window_ns"]) == (1, 0, 0)
    assert row["exposed_comm_frac"] is None


# --- exposed wait and transfer ---------------------------------------------------------------------------------------


def test_exposed_time_splits_into_wait_and_transfer(tmp_path):
    # Rank 0 arrives at 0, rank 1 at 6 ms, data moves for 4 ms; rank 0 computes from 5 to 7 ms.
    first, second = traces_of(2, [Collective((0, 6 * MS), 4 * MS)])
    first.kernel("gemm", 5 * MS, 2 * MS)
    rows = records(analysed(tmp_path, first, second).breakdown)
    assert [(r["exposed_comm_ns"], r["exposed_wait_ns"], r["exposed_transfer_ns"]) for r in rows] == [
        (8 * MS, 5 * MS, 3 * MS),
        (4 * MS, 0, 4 * MS),
    ]
    assert [r["exposed_unsplit_ns"] for r in rows] == [0, 0]


def test_exposed_time_of_calls_that_cannot_be_split_stands_apart(tmp_path):
    first, second = traces_of(2, [Collective((0, 6 * MS), 4 * MS)])
    first.kernel("ncclDevKernel_Generic", 20 * MS, 3 * MS)
    rows = records(analysed(tmp_path, first, second).breakdown)
    assert (rows[0]["exposed_wait_ns"], rows[0]["exposed_transfer_ns"], rows[0]["exposed_unsplit_ns"]) == (
        6 * MS,
        4 * MS,
        3 * MS,
    )


def test_with_no_call_split_wait_and_transfer_are_not_known(tmp_path):
    rows = records(analysed(tmp_path, Trace(world=2).nccl("all_reduce", 0, 3 * MS)).breakdown)
    assert [(r["exposed_wait_ns"], r["exposed_transfer_ns"], r["exposed_unsplit_ns"]) for r in rows] == [
        (None, None, 3 * MS)
    ]


RUN = st.lists(
    st.tuples(st.lists(st.integers(0, 40), min_size=3, max_size=3), st.integers(1, 20), st.booleans()),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@settings(max_examples=12)
@given(run=RUN, compute=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200), st.integers(1, 60)), max_size=6))
def test_exposed_wait_transfer_and_unsplit_add_up(tmp_path_factory, run, compute):
    # Collectives follow each other; where the flag is down, rank 2 has no record of it.
    collectives, at = [], 0
    for arrivals, transfer, whole in run:
        shifted = {rank: (at + late) * US for rank, late in enumerate(arrivals)}
        seen = shifted if whole else {rank: t for rank, t in shifted.items() if rank < 2}
        args = {"Process Group Ranks": "[0, 1, 2]", "Group size": 3}
        collectives.append(Collective(seen, transfer * US, args=args))
        at += max(arrivals) + transfer
    traces = traces_of(3, collectives)
    for rank, start, length in compute:
        traces[rank].kernel("gemm", start * US, length * US)
    found = analysed(tmp_path_factory.mktemp("run"), *traces)
    assert_conserved(found.breakdown)
    assert_conserved(found.breakdown_steps)


@pytest.mark.parametrize("offset", [0, 3 * MS])
def test_a_clock_that_is_ahead_changes_no_whole_duration(tmp_path, offset):
    collectives = [Collective((0, 6 * MS), 4 * MS), Collective((20 * MS, 21 * MS), 4 * MS)]
    traces = traces_of(2, collectives, offsets=(0, offset))
    table = analysed(tmp_path, *traces).breakdown
    assert table[["window_ns", "comm_ns", "exposed_comm_ns"]].to_numpy().tolist() == [
        [25 * MS, 15 * MS, 15 * MS],
        [19 * MS, 8 * MS, 8 * MS],
    ]
