"""Operators that take far longer by themselves than others of their name, drawn in size, name, place and contents."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import MS, US, Trace

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse

_OPERATORS, _STEPS = 40, 4
_KERNEL, _PERIOD, _OWN, _BEFORE = 40 * US, 80 * US, 10 * US, 2 * US


def operating(
    places: dict[int, int],
    name: str = "aten::cudnn_convolution",
    inside: Callable[[Trace, int, int], object] = lambda trace, start, dur: None,
    *,
    steps: int = 0,
    others: str = "",
    kernel_ns: int = _KERNEL,
) -> Trace:
    """Operators within another, each launching a kernel; those at `places` first take so much longer.

    `inside` fills the second half of that time. `others` is the name of all operators that are not long.
    """
    trace, now = Trace(), 0
    for number in range(_OPERATORS):
        if steps and number % (_OPERATORS // steps) == 0:
            begun = now
        longer = places.get(number, 0)
        trace.op("aten::conv2d", now, longer + _OWN + 10 * US)
        trace.op(name if longer or not others else others, now + 2 * US, longer + _OWN)
        if longer:
            inside(trace, now + 2 * US + longer // 2, longer // 2)
        launch = now + 2 * US + longer + _BEFORE
        trace.kernel("gemm", launch + 6 * US + number * (kernel_ns - _KERNEL), kernel_ns, launch=launch)
        now += longer + _PERIOD
        if steps and (number + 1) % (_OPERATORS // steps) == 0:
            trace.step(number // (_OPERATORS // steps), begun, now)
    return trace


def found(folder: Path, trace: Trace) -> Analysis:
    trace.write(folder)
    return analyse(folder, details=True)


def long_ones(analysis: Analysis) -> list[Row]:
    return [row for row in records(analysis.syncs_steps) if row["kind"] == "long"]


def ran_ns(analysis: Analysis) -> int:
    """From the first activity of the device to the end of the last."""
    activities = analysis.run.activities
    return int((activities["start_ns"] + activities["dur_ns"]).max() - activities["start_ns"].min())


def calls(name: str) -> Callable[[Trace, int, int], object]:
    return lambda trace, start, dur: trace.event("cuda_runtime", name, start, dur, tid=4242)


def whole(trace: Trace, start: int, dur: int) -> tuple[Trace, int, int]:
    """All of the time of which this is the second half."""
    return trace, start - dur, 2 * dur


def collected(trace: Trace, start: int, dur: int) -> None:
    trace.annotation("Python GC", start, dur)


def nested(trace: Trace, start: int, dur: int) -> None:
    trace.op("aten::sort", start, dur)


_LISTED_ELSEWHERE = {
    **{name: calls(name) for name in ("cudaStreamSynchronize", "cudaMalloc", "cuModuleLoadData", "cudaMemcpyAsync")},
    "nested": nested,
    "gc": collected,
    "compile": lambda trace, start, dur: trace.annotation("backend_compile (dynamo_timed)", start, dur),
    "batch": lambda trace, start, dur: trace.annotation("enumerate(DataLoader)#_Iter.__next__", start, dur),
}


@pytest.mark.quick_cases("1")
@pytest.mark.parametrize("seed", range(6))
def test_a_long_operator_is_listed_with_what_it_costs_named_and_priced(tmp_path, seed):
    draw = random.Random(seed)
    name = draw.choice(["aten::cudnn_convolution", "aten::mm", "triton_poi_fused_add_0", "Torch-Compiled Region: 0/0"])
    place, long_ns = draw.choice([1, _OPERATORS - 1, draw.randrange(1, _OPERATORS)]), draw.randrange(2, 1_000) * MS
    analysis = found(tmp_path, operating({place: long_ns}, name, steps=draw.choice([0, _STEPS])))
    [row] = long_ones(analysis)
    assert (row["name"], row["operator"], row["calls"], row["total_ns"]) == (name, "aten::conv2d", 1, long_ns + _OWN)
    # The device is idle from the end of the kernel before: what is left without the excess is as usual.
    (tmp_path / "usual").mkdir()
    assert ran_ns(analysis) - ran_ns(found(tmp_path / "usual", operating({}, name))) == long_ns
    assert long_ns - _KERNEL <= row["lost_ns"] <= long_ns + _BEFORE
    verdict = records(analysis.verdicts)[0]
    if row["step"] is None:
        gain = analysis.remedies.set_index("remedy")["gain_ns"]["no_long_calls"]
        assert gain == pytest.approx(long_ns, rel=0.01)
        assert f"one {name} in aten::conv2d takes" in verdict["because"]
        assert f": one {name} takes" in verdict["headline"]
    else:
        assert f"1 {name} take" in verdict["because"]


@pytest.mark.parametrize("what", _LISTED_ELSEWHERE)
def test_the_time_of_what_is_listed_by_itself_is_not_counted_twice(tmp_path, what):
    analysis = found(tmp_path, operating({20: 40 * MS}, inside=_LISTED_ELSEWHERE[what]))
    rows = [row for row in long_ones(analysis) if row["name"] == "aten::cudnn_convolution"]
    assert [row["total_ns"] for row in rows] == [20 * MS + _OWN]
    assert 20 * MS - _KERNEL <= rows[0]["lost_ns"] <= 20 * MS + _BEFORE
    everything = sum(row["lost_ns"] for row in records(analysis.syncs))
    assert everything <= analysis.idle["starved_ns"].iloc[0]


@pytest.mark.quick_cases("seldom")
@pytest.mark.parametrize(
    "trace",
    [
        operating({}),
        operating({7: 900 * US}),  # under 1 ms
        operating({7: 40 * MS}, "aten::copy_"),  # as long as its size demands
        operating({7: 40 * MS}, "_c10d_functional::wait_tensor"),
        operating({7: 40 * MS, 8: 30 * MS}, "aten::sort", others="aten::mm"),  # seen too seldom
        operating({3: 40 * MS, 13: 40 * MS, 23: 40 * MS}, steps=_STEPS),  # part of most steps
        operating({7: 20 * MS}, kernel_ns=20 * MS),  # the device has work
        operating({7: 40 * MS}, inside=lambda *half: calls("cudaDeviceSynchronize")(*whole(*half))),
        operating({7: 40 * MS}, inside=lambda *half: calls("cudaHostAlloc")(*whole(*half))),
    ],
    ids=["alike", "short", "copy", "collective", "seldom", "each-step", "busy", "sync", "alloc"],
)  # fmt: skip
def test_other_operators_are_not_long(tmp_path, trace):
    analysis = found(tmp_path, trace)
    assert long_ones(analysis) == []
    assert "times as long as usual" not in analysis.verdicts["because"].iloc[0]
    assert "no_long_calls" not in set(analysis.remedies["remedy"])


def test_an_operator_of_another_thread_delays_no_launch(tmp_path):
    trace = operating({})
    for number in range(_OPERATORS):
        trace.op("aten::stack", number * _PERIOD, 40 * MS if number == 30 else US, thread=77)
    trace.event("cuda_runtime", "cudaEventQuery", 0, US, tid=77)
    assert long_ones(found(tmp_path, trace)) == []
