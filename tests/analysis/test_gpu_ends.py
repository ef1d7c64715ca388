"""A GPU whose activities end before the program does, as where Kineto's buffers were full."""

from __future__ import annotations

import pytest
from builders import MS, US, Trace

from commtrace import analyse

STEP = 10 * MS
KERNELS = 20


def steps_of(count: int, *, lasts: int = 1 << 60, calls_last: int = 1 << 60, lag: int = 0, idle: int = 0) -> Trace:
    """Steps of twenty kernels, which run `lag` after their launch; kernels and calls end at some time, in ns.

    `idle` calls that launch nothing stand before each kernel.
    """
    trace = Trace()
    for step in range(count):
        begin = step * STEP
        trace.step(step + 3, begin, begin + STEP)
        for number in range(KERNELS):
            at = begin + number * 450 * US
            if at >= calls_last:
                break
            for which in range(idle):
                trace.event("cuda_driver", "cuCtxGetCurrent", at + which, 1, correlation=10**6 + trace.next_id)
                trace.next_id += 1
            if at < lasts:
                trace.kernel("gemm", at + 100 * US + lag, 300 * US, launch=at + idle * US)
            else:
                trace.event("cuda_runtime", "cudaLaunchKernel", at, 5 * US, correlation=10**6 + trace.next_id)
                trace.next_id += 1
    return trace


def notes_of(trace: Trace, folder) -> list[str]:
    trace.write(folder)
    return [note for note in analyse(folder).run.notes if "GPU side ends early" in note]


@pytest.mark.parametrize("lag", [0, 15 * MS])
@pytest.mark.parametrize("count", [1, 3])
def test_a_whole_trace_has_no_note(tmp_path, count, lag) -> None:
    assert notes_of(steps_of(count, lag=lag), tmp_path) == []


@pytest.mark.parametrize("lag", [0, 15 * MS])
def test_launches_without_kernels_at_the_end(tmp_path, lag) -> None:
    (note,) = notes_of(steps_of(3, lag=lag, lasts=24 * MS), tmp_path)
    assert note.endswith(
        ".json.gz: the last 11 kernels and copies that were launched are not in it: its GPU side ends early; if the "
        "profiler's buffers were full, trace fewer steps"
    )


def test_launches_are_missing_too(tmp_path) -> None:
    (note,) = notes_of(steps_of(4, lasts=12 * MS, calls_last=12 * MS), tmp_path)
    assert "the GPU's last activity ends 27.8 ms before the last step, and the program goes on" in note


def test_a_few_calls_prove_nothing(tmp_path) -> None:
    assert notes_of(steps_of(3, lasts=26 * MS), tmp_path) == []


def test_calls_that_never_launch_anything_are_none_that_lost_it(tmp_path) -> None:
    trace = steps_of(3, idle=8)
    for which in range(15):
        trace.event("cuda_driver", "cuCtxGetCurrent", 30 * MS + which, 1, correlation=10**7 + which)
    assert notes_of(trace, tmp_path) == []


def test_a_program_that_stands_still_is_not_cut(tmp_path) -> None:
    """The last step is long because the program waits, and the profiler ends in it."""
    trace = steps_of(2)
    trace.step(5, 2 * STEP, 4 * STEP).kernel("gemm", 2 * STEP + MS, MS)
    assert notes_of(trace, tmp_path) == []


def test_a_collective_that_hangs_cuts_nothing(tmp_path) -> None:
    trace = steps_of(2)
    trace.event(
        "cpu_op", "record_param_comms", 2 * STEP, 9 * US, **{"External id": 999, "Collective name": "allreduce"}
    )
    for which in range(30):
        at = 2 * STEP + which * 100 * US
        trace.event(
            "cuda_runtime", "cudaLaunchKernel", at + US, US,
            **{"correlation": 10**7 + which, "External id": 999 + which},
        )  # fmt: skip
    assert notes_of(trace, tmp_path) == []


def test_what_the_profiler_opened_last_is_no_step(tmp_path) -> None:
    assert notes_of(steps_of(3).step(6, 3 * STEP, 3 * STEP + 200 * US), tmp_path) == []
