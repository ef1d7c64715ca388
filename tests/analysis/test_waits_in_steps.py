"""Steps for which the devices waited for their host: the wait belongs to the step it was for."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from builders import MS, US, Trace, analysed

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

BUSY, EVERY = 100 * US, 200 * US


def loop(waits: list[int], *, behind: int = 0, loader: bool = True, world: int = 1, rank: int = 0) -> Trace:
    """A step for each wait in ns: its host waits, then launches ten kernels one after the other.

    Devices run `behind` their host by as much, and are busy until then.
    """
    trace, now, free = Trace(rank, world), 0, 0
    for number, wait in enumerate(waits, start=2):
        end = now + wait + 10 * EVERY
        trace.step(number, now, end)
        if loader:
            trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", now + 10 * US, wait)
        for k in range(10):
            launch = now + wait + 20 * US + k * EVERY
            start = max(launch + 10 * US + behind, free)
            trace.op("aten::mm", launch - 3 * US, 8 * US).kernel("gemm", start, BUSY, launch=launch)
            free = start + BUSY
        now = end
    return trace


def drawn(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randint(0, 60) * MS // rng.choice((1, 1, 4)) for _ in range(rng.randint(3, 7))]


@pytest.mark.parametrize("loader", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_windows_are_as_long_as_the_steps_of_the_host(tmp_path: Path, seed: int, loader: bool) -> None:
    waits = drawn(seed)
    found = analysed(tmp_path, loop(waits, loader=loader))
    rows = records(found.breakdown_steps)
    true = [wait + 10 * EVERY for wait in waits]
    # A window begins once the devices have nothing left, and the last one ends with its last kernel.
    assert np.abs(np.array([row["window_ns"] for row in rows]) - true).max() <= EVERY
    assert all(row["compute_ns"] + row["idle_ns"] == row["window_ns"] for row in rows)
    longest = max(range(len(waits)), key=lambda nth: waits[nth])
    assert max(rows, key=lambda row: row["window_ns"])["step"] == longest + 2
    counted = found.steps["left_out"].isna()
    if counted.all():
        period = found.typical_step.parts["window_ns"]
        assert period == pytest.approx(sum(true) / len(true), abs=EVERY)
    assert found.idle_steps["idle_ns"].tolist() == [row["idle_ns"] for row in rows]


@pytest.mark.parametrize("seed", range(6))
def test_devices_behind_their_host_begin_with_their_first_kernel(tmp_path: Path, seed: int) -> None:
    """Work is always there: nobody waits, and boundaries are where the first kernels begin."""
    waits = [random.Random(seed).randint(0, 300) * US for _ in range(5)]
    trace = loop(waits, behind=20 * MS)
    found = analysed(tmp_path, trace)
    ran = found.run.activities
    assert ran["idle_since_ns"].isna().all()
    begins = ran.groupby("step")["start_ns"].min().tolist()
    assert found.breakdown_steps["window_ns"].tolist()[:-1] == np.diff(begins).tolist()


def test_a_wait_while_the_devices_still_work_counts_from_their_end(tmp_path: Path) -> None:
    trace = loop([0, 30 * MS, 0], behind=5 * MS)
    found = analysed(tmp_path, trace)
    first, second, _ = (row["window_ns"] for row in records(found.breakdown_steps))
    assert second > 24 * MS > 8 * MS > first


def test_what_the_host_waited_for_before_the_trace_is_no_wait(tmp_path: Path) -> None:
    """A single step, in which the first kernel begins long after the mark: it is not known that the device was idle."""
    trace = Trace(world=1).step(1, 0, 60 * MS)
    for k in range(5):
        trace.kernel("gemm", 50 * MS + k * MS, MS, launch=50 * MS + k * MS - 10 * US)
    assert analysed(tmp_path, trace).breakdown_steps["window_ns"].tolist() == [5 * MS]


@pytest.mark.slow
def test_replay_table_and_screen_have_the_same_steps(tmp_path: Path) -> None:
    waits = [2 * MS, 17 * MS, 43 * MS, 9 * MS]
    loop(waits).write(tmp_path)
    found = analyse(tmp_path, details=True)
    measured = found.replay_steps.set_index("step")["measured_ns"]
    assert measured.tolist() == found.steps.set_index("step")["window_ns"].tolist()
    assert found.prices is not None
    assert found.prices.gains["no_data_wait"].ns == pytest.approx(sum(waits) / len(waits), rel=0.15)


@pytest.mark.slow
def test_two_runs_differ_by_what_their_loaders_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, wait in (("fast", 5 * MS), ("slow", 27 * MS + 200 * US)):
        (tmp_path / name).mkdir()
        loop([wait] * 5).write(tmp_path / name)
    code = main(["compare", str(tmp_path / "fast"), "--against", str(tmp_path / "slow"), "--format", "json"])
    assert code == 0
    assert "22.2" in capsys.readouterr().out.replace("22200000", "22.2")


@pytest.mark.parametrize("seed", range(6))
def test_devices_of_one_process_share_its_steps(tmp_path: Path, seed: int) -> None:
    rng, devices = random.Random(seed), 3
    trace, now, wait = Trace(world=1), 0, 5 * MS
    busy = [rng.randint(1, 9) * MS for _ in range(devices)]
    for number in range(4):
        trace.step(number, now, now + wait + 10 * MS)
        for device in range(devices):
            launch = now + wait + device * 10 * US
            trace.kernel("gemm", launch + 5 * US, busy[device], launch=launch, device=device)
        now += wait + 10 * MS
    found = analysed(tmp_path, trace)
    windows = found.breakdown_steps.groupby("step")["window_ns"]
    assert (windows.nunique() == 1).all()
    assert (windows.size() == devices).all()
    idle = found.breakdown_steps["window_ns"] - found.breakdown_steps["compute_ns"]
    assert found.breakdown_steps["idle_ns"].tolist() == idle.tolist()
    assert found.idle_steps["idle_ns"].tolist() == idle.tolist()
    said = found.summary()
    assert (f"Device {busy.index(max(busy))} computes for" in said) == (min(busy) < max(busy) / 2)
