"""A GPU whose activities end before the program does, as where Kineto's buffers were full, or begin after it."""

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


def job(folder, *, lost_until: int, lost_rank: int = 2, slow: int = 0) -> None:
    """Four ranks, five steps of 20 ms; rank 2 lacks what its GPU did until some time, and computes `slow` longer."""
    for rank in range(4):
        trace = Trace(rank, 4, groups={"0": range(4)}, host="node", pid=1000 + rank)
        for step in range(5):
            begin = step * 20 * MS
            longer = slow if rank == lost_rank else 0
            trace.step(step, begin, begin + 20 * MS)
            for number in range(12):
                at = begin + 2 * MS + number * MS
                trace.kernel("gemm", at + number * longer, MS - 20 * US + longer, launch=begin + MS + number * 20 * US)
            late = begin + 14 * MS + 12 * longer
            end = begin + 15 * MS + 12 * slow
            trace.nccl("all_reduce", late, end - late, launch=begin + 3 * MS, ranks=range(4), Seq=step + 1)
        if rank == lost_rank:
            trace.events = [e for e in trace.events if e["cat"] != "kernel" or e["ts"] >= lost_until / 1000]
        trace.write(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("lost_until", "lost", "steps"), [(6 * MS, 4, [0]), (31 * MS, 22, [0, 1])])
def test_a_rank_whose_first_kernels_are_lost_is_not_late(tmp_path, lost_until, lost, steps) -> None:
    job(tmp_path, lost_until=lost_until)
    found = analyse(tmp_path, details=True)
    (note,) = found.run.notes
    because = "kernels and copies that were launched are not in it: its GPU side begins late"
    assert note == f"node_2.0001.pt.trace.json.gz: the first {lost} {because}"
    left_out = found.steps[found.steps["left_out"] == "unshown"]
    assert left_out["step"].tolist() == steps
    assert set(left_out["note"]) == {"the trace of rank 2 lacks what was launched in it"}
    assert found.prices is not None
    assert found.prices.late is None
    assert "no_straggler" not in set(found.remedies["remedy"])
    assert "ank 2" not in found.verdicts["because"].iloc[0]


@pytest.mark.slow
def test_waiting_for_a_rank_is_still_measured_but_what_it_costs_is_not(tmp_path) -> None:
    job(tmp_path, lost_until=6 * MS, slow=MS // 4)
    found = analyse(tmp_path, details=True)
    assert found.ranks["times_last"].tolist() == [0, 0, 4, 0]
    assert found.prices is not None
    assert found.prices.late is None
    assert "no_straggler" not in found.prices.gains


@pytest.mark.parametrize("idle", [0, 3])
@pytest.mark.parametrize("lost", [1, 2, 3, 25])
def test_a_few_missing_at_the_beginning_prove_nothing(tmp_path, idle, lost) -> None:
    trace = steps_of(3, idle=idle)
    kernels = sorted(e["ts"] for e in trace.events if e["cat"] == "kernel")
    trace.events = [e for e in trace.events if e["cat"] != "kernel" or e["ts"] >= kernels[lost]]
    trace.write(tmp_path)
    said = [note for note in analyse(tmp_path).run.notes if "begins late" in note]
    assert len(said) == (lost > 2)
    assert all(f"{'at least ' if idle else ''}the first {lost} kernels" in note for note in said)


@pytest.mark.parametrize(
    ("call_ms", "first_ms", "said"),
    [
        (
            300,
            400,
            "its CPU had worked for 400.0 ms before a device's first activity, 300.0 ms of it in one cudaMalloc",
        ),
        (100, 400, "its CPU had worked for 400.0 ms before a device's first activity"),
        (5, 9, None),  # too short to matter
        (70, 80, None),  # a small part of the window
    ],
)
def test_what_lies_before_the_first_activity_is_said(tmp_path, call_ms, first_ms, said) -> None:
    """Such as the loading of modules in the first iteration; here beside a window of 900 ms."""
    trace = Trace()
    trace.event("cpu_op", "aten::mm", 0, first_ms * MS // 3)
    trace.event("cuda_runtime", "cudaMalloc", 1_000, call_ms * MS)
    for begin in (first_ms * MS, (first_ms + 899) * MS):
        trace.kernel("gemm", begin, MS, launch=begin - 10 * US)
    trace.write(tmp_path)
    notes = [note for note in analyse(tmp_path, details=True).run.notes if "its CPU had worked" in note]
    assert [said in note for note in notes] == ([] if said is None else [True])
