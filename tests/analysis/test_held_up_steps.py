"""Steps whose work waited for work from before the trace: that time is not known, and no part of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builders import MS, US, Trace, analysed

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.opening import analyse

BUSY = 3 * MS


def served(waits: int, rng: random.Random, *, steps: int = 1, more: int = 0, by_copy: bool = False) -> Trace:
    """Decode steps of ten kernels, the first held up for `waits` ns after `more` kernels that nothing held up.

    The work is queued, or a blocking copy is, for which the host waits before it launches the rest.
    """
    trace, now = Trace(world=1), 0
    for number in range(steps):
        held = waits if number == 0 else 0
        requests = rng.randint(1, 64)
        begin = now + held + 200 * US
        for k in range(more if number == 0 else 0):
            trace.kernel("arange", now + 20 * US * (k + 1), 3 * US, stream=9, launch=now + 20 * US * (k + 1) - 4 * US)
        if by_copy:
            trace.memcpy("HtoD", begin, 5 * US, launch=now + 150 * US)
        for k in range(10):
            queued = now + 160 * US + k * US if not by_copy else begin + 10 * US + k * US
            trace.kernel("gemm", begin + 20 * US + k * BUSY, BUSY, launch=queued)
        end = begin + 20 * US + 10 * BUSY
        trace.annotation(f"step[DECODE bs={requests}]", now, end - now)
        now = end
    return trace


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("by_copy", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_step_is_as_long_as_its_work(tmp_path: Path, seed: int, by_copy: bool, details: bool) -> None:
    rng = random.Random(seed)
    wait = rng.randint(20, 2000) * MS
    served(wait, rng, more=rng.randint(1, 4), by_copy=by_copy).write(tmp_path)
    found = analyse(tmp_path, details=details)
    [step], [row] = records(found.steps), records(found.serving)
    assert 10 * BUSY <= step["window_ns"] <= 10 * BUSY + 30 * US
    assert step["unseen_ns"] == pytest.approx(wait, abs=200 * US)
    assert row["tokens_per_s"] == pytest.approx(row["requests"] / step["window_ns"] * 1e9)
    assert f"step 0 without the {step['unseen_ns'] / 1e6:,.1f} ms in which it waited for work from" in row["note"]
    assert found.verdict.startswith("Compute fills 30.0 of 30.0 ms in a decode step")
    assert f"For {step['unseen_ns'] / 1e6:,.1f} ms step 0 waited" in found.verdicts["not_known"].iloc[0]


@pytest.mark.parametrize("seed", range(6))
def test_among_others_the_step_is_like_them(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    steps = rng.randint(3, 6)
    found = analysed(tmp_path, served(rng.randint(40, 900) * MS, rng, steps=steps, more=2))
    assert found.steps["window_ns"].max() <= 10 * BUSY + 300 * US
    assert found.steps["unseen_ns"].notna().tolist() == [True] + [False] * (steps - 1)


@pytest.mark.parametrize("seed", range(6))
def test_devices_that_are_always_slow_to_begin_wait_for_nothing_unseen(tmp_path: Path, seed: int) -> None:
    """A host that is far ahead in every step, of a device that does nothing for as long each time."""
    rng, trace, now = random.Random(seed), Trace(world=1), 0
    slow = rng.randint(5, 50) * MS
    for number in range(4):
        trace.step(number, now, now + slow + 10 * BUSY)
        trace.kernel("arange", now + 20 * US, 3 * US, launch=now + 10 * US)
        for k in range(10):
            trace.kernel("gemm", now + slow + k * BUSY, BUSY, launch=now + 160 * US + k * US)
        now += slow + 10 * BUSY
    found = analysed(tmp_path, trace)
    assert found.steps["unseen_ns"].isna().all()
    assert (found.breakdown_steps["idle_ns"] >= slow - 100 * US).all()


def test_a_launch_that_takes_long_is_no_wait(tmp_path: Path) -> None:
    """The first launch of a kernel may load its code: nothing is queued meanwhile."""
    trace = Trace(world=1).step(0, 0, 400 * MS).kernel("arange", 20 * US, 3 * US, launch=10 * US)
    trace.event("cuda_runtime", "cudaLaunchKernel", 100 * US, 300 * MS, correlation=77)
    trace.event("kernel", "gemm", 301 * MS, BUSY, pid=0, tid=7, device=0, stream=7, correlation=77)
    trace.kernel("gemm", 305 * MS, BUSY, launch=304 * MS)
    found = analysed(tmp_path, trace)
    assert found.steps["unseen_ns"].isna().all()
    assert found.steps["window_ns"].tolist() == [308 * MS - 20 * US]


@pytest.mark.parametrize("waits", [0, 100 * US])
def test_a_host_that_comes_late_leaves_a_device_idle(tmp_path: Path, waits: int) -> None:
    """The device has nothing to do until the host launches the rest."""
    trace = Trace(world=1).annotation("step[DECODE bs=3]", 0, 100 * MS).kernel("arange", 20 * US, 3 * US)
    for k in range(10):
        trace.kernel("gemm", 50 * MS + waits + k * BUSY, BUSY, launch=50 * MS - 50 * US + k * US)
    found = analysed(tmp_path, trace)
    assert found.steps["unseen_ns"].isna().all()
    assert found.steps["window_ns"].tolist() == [50 * MS + waits + 10 * BUSY - 20 * US]
