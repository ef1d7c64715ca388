"""Runtime calls that take far longer than others of their name, drawn in size, name and place."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from builders import MS, US, Trace

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse

_CALLS = 40
_KERNEL, _PERIOD, _CALL = 40 * US, 60 * US, 5 * US


def launching(
    place: int | None, name: str, long_ns: int, *, rank: int = 0, ranks: int = 1, every: int = _CALL
) -> Trace:
    """A rank with `_CALLS` launches of kernels of one length, that at `place` in a call of `long_ns`."""
    trace, now = Trace(rank, ranks), 0
    for number in range(_CALLS):
        took = long_ns if number == place else every
        trace.op("aten::mm", now, took + 2 * US)
        trace.event("cuda_runtime", name, now + US, took, tid=4242, correlation=1 + number)
        own = {"device": 0, "stream": 7, "correlation": 1 + number}
        trace.event("kernel", "gemm", now + US + took, _KERNEL, pid=0, tid=7, **own)
        now += took + _PERIOD
    return trace


def found(folder: Path, *traces: Trace) -> Analysis:
    for trace in traces:
        trace.write(folder)
    return analyse(folder, details=True)


def long_calls(analysis: Analysis) -> list[Row]:
    return [row for row in records(analysis.syncs) if row["kind"] == "long"]


@pytest.mark.quick_cases("7")
@pytest.mark.parametrize("seed", range(8))
def test_a_long_call_is_listed_with_what_it_costs_and_named_first(tmp_path, seed):
    draw = random.Random(seed)
    name = draw.choice(["cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "hipLaunchKernel"])
    place = draw.choice([1, _CALLS // 2, _CALLS - 1, draw.randrange(1, _CALLS)])
    long_ns = draw.randrange(2, 2_000) * MS
    ranks = draw.choice([1, 1, 2, 3])
    slow = {draw.randrange(ranks)} if draw.random() < 0.5 else set(range(ranks))
    traces = [
        launching(place if rank in slow else None, name, long_ns, rank=rank, ranks=ranks) for rank in range(ranks)
    ]
    analysis = found(tmp_path, *traces)
    rows = long_calls(analysis)
    assert [(r["rank"], r["name"], r["operator"], r["calls"], r["total_ns"]) for r in rows] == [
        (rank, name, "aten::mm", 1, long_ns) for rank in sorted(slow)
    ]
    # The device is idle from the end of the kernel before until the long call returns: what is left is as usual.
    usual = launching(None, name, long_ns)
    (tmp_path / "usual").mkdir()
    window = found(tmp_path / "usual", usual).idle["window_ns"].iloc[0]
    windows = analysis.idle.set_index("rank")["window_ns"]
    for row in rows:
        assert windows[row["rank"]] - window == long_ns - _CALL
        assert long_ns - _KERNEL <= row["lost_ns"] <= long_ns
    verdict = records(analysis.verdicts)[0]
    assert f"one {name} in aten::mm takes" in verdict["because"]
    assert "at least 100 times as long as usual" in verdict["because"]
    if ranks == 1 and analysis.prices is not None:
        gain = analysis.remedies.set_index("remedy")["gain_ns"]["no_long_calls"]
        assert gain == pytest.approx(long_ns - _CALL, rel=0.01)
    if slow == set(range(ranks)):
        assert f": one {name} takes" in verdict["headline"]


def full_queue() -> Trace:
    """One launch waits until a queue of long kernels has room."""
    trace = Trace().op("aten::mm", 0, US)
    for number in range(_CALLS):
        last = number == _CALLS - 1
        trace.event(
            "cuda_runtime", "cudaLaunchKernel", number * 10 * US, 30 * MS if last else _CALL, tid=4242,
            correlation=1 + number,
        )  # fmt: skip
        own = {"device": 0, "stream": 7, "correlation": 1 + number}
        trace.event("kernel", "gemm", number * MS + 5 * US, MS, pid=0, tid=7, **own)
    return trace


def with_call(name: str) -> Trace:
    """A call of this name, once in 1 us and once in 50 ms, while the device is idle."""
    trace = launching(None, "cudaLaunchKernel", 0)
    end = _CALLS * (_CALL + _PERIOD)
    for number in range(3):
        trace.event("cuda_runtime", name, end + number * 2 * US, US, tid=4242)
    trace.event("cuda_runtime", name, end + 10 * US, 50 * MS, tid=4242)
    own = {"device": 0, "stream": 7, "correlation": 999}
    trace.event("cuda_runtime", "cudaLaunchKernel", end + 51 * MS, _CALL, tid=4242, correlation=999)
    trace.event("kernel", "gemm", end + 52 * MS, _KERNEL, pid=0, tid=7, **own)
    return trace


@pytest.mark.parametrize(
    "trace",
    [
        launching(None, "cudaLaunchKernel", 0, every=5 * MS),  # all alike
        launching(7, "cudaLaunchKernel", 900 * US),  # under 1 ms
        launching(7, "cudaLaunchKernel", 90 * MS, every=MS),  # under 100 times the median
        full_queue(),
        *map(with_call, ("cudaDeviceSynchronize", "cudaMalloc", "cudaMemcpyAsync", "cudaFree", "cudaEventSynchronize")),
    ],
    ids=["alike", "short", "few-times", "full-queue", "sync", "malloc", "copy", "free", "event"],
)
def test_other_calls_are_not_long(tmp_path, trace):
    analysis = found(tmp_path, trace)
    assert long_calls(analysis) == []
    assert "times as long as usual" not in analysis.verdicts["because"].iloc[0]


def test_a_call_without_others_of_its_name_is_long_beside_all_calls(tmp_path):
    """Such as loading a module; but not one that launches: a graph may take that long in each step."""
    trace = launching(None, "cudaLaunchKernel", 0)
    end = _CALLS * (_CALL + _PERIOD)
    for number, name in enumerate(["cuModuleLoadData", "cudaGraphLaunch"]):
        begin = end + number * 100 * MS
        trace.event("cuda_driver", name, begin, 50 * MS, tid=4242)
        trace.event("cuda_runtime", "cudaLaunchKernel", begin + 51 * MS, _CALL, tid=4242, correlation=990 + number)
        own = {"device": 0, "stream": 7, "correlation": 990 + number}
        trace.event("kernel", "gemm", begin + 52 * MS, _KERNEL, pid=0, tid=7, **own)
    analysis = found(tmp_path, trace)
    assert [(row["name"], row["total_ns"]) for row in long_calls(analysis)] == [("cuModuleLoadData", 50 * MS)]
    gains = analysis.remedies.set_index("remedy")["gain_ns"]
    assert gains["no_long_calls"] == pytest.approx(50 * MS, rel=0.01)


@pytest.mark.parametrize("pause", ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", None])
def test_a_wait_for_a_batch_or_a_sleep_is_no_call(tmp_path, pause):
    trace = launching(None, "cudaLaunchKernel", 0)
    end = _CALLS * (_CALL + _PERIOD)
    if pause is not None:
        trace.event("user_annotation", pause, end, 50 * MS, tid=4242)
    own = {"device": 0, "stream": 7, "correlation": 999}
    trace.event("cuda_runtime", "cudaLaunchKernel", end + 51 * MS, _CALL, tid=4242, correlation=999)
    trace.event("kernel", "gemm", end + 52 * MS, _KERNEL, pid=0, tid=7, **own)
    assert long_calls(found(tmp_path, trace)) == []


def test_a_call_that_is_usually_short_is_found_outside_of_launches(tmp_path):
    rows = long_calls(found(tmp_path, with_call("cudaFuncGetAttributes")))
    assert [(r["name"], r["operator"], r["calls"], r["lost_ns"]) for r in rows] == [
        ("cudaFuncGetAttributes", None, 1, 50 * MS)
    ]


@pytest.mark.parametrize(("name", "kind"), [("cudaStreamSynchronize", "sync"), ("cuModuleLoadData", "long")])
@pytest.mark.parametrize("seed", range(3))
def test_a_call_before_the_first_kernel_of_a_step_costs_what_idle_time_has(tmp_path, name, kind, seed):
    """The first window begins with the step, before anything ran; all that was recorded, with the first kernel."""
    draw, trace = random.Random(seed), Trace()
    waits = draw.randrange(2 * MS, 9 * MS)
    for step in range(3):
        begin = step * 20 * MS
        first = begin + MS + (waits if step == 0 else 0)
        trace.step(step, begin, begin + 20 * MS).op("aten::mm", begin, 19 * MS)
        if step == 0:
            trace.event("cuda_runtime", name, begin + 100 * US, waits, tid=4242)
        for number in range(4):
            trace.kernel("gemm", first + number * 2 * MS, MS, launch=first - 100 * US + number * US)
    analysis = found(tmp_path, trace)
    (row,) = [row for row in records(analysis.syncs_steps) if row["kind"] == kind]
    idle = records(analysis.idle_steps)[0]
    assert (idle["step"], row["step"], row["lost_ns"]) == (0, 0, waits)
    assert kind == "long" or idle["sync_ns"] == waits
    whole = replace(analysis, whole=True)
    assert [row["lost_ns"] for row in records(whole.syncs) if row["kind"] == kind] == [0]
    assert kind == "long" or whole.idle["sync_ns"].tolist() == [0]
