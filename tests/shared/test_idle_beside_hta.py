"""Idle time of real runs on one stream, as HolisticTraceAnalysis divides it and as `idle` does.

tests/analysis/test_idle_beside_hta.py has both definitions. Where kernels of a stream overlap, HTA subtracts that from
the gaps. Kernels whose launch is not in the trace are launched, for HTA, by the first event of the file.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from beside_checkout import TRACES, needs_shared
from second_opinion import gaps_of_one_stream, idle_by_category, to_the_ns, trace_analysis

from commtrace import analyse

pytestmark = [needs_shared, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ALL_LAUNCHES = (
    "tracelens-bert-h100", "tracelens-falcon-mi300", "tracelens-vllm", "kineto-resnet", "vllm-b200-r0of8",
)  # fmt: skip
_CLOSE = 1e-5
"""HTA keeps times as 32-bit floats."""


@pytest.mark.parametrize("name", ALL_LAUNCHES)
def test_both_find_the_same_gaps(name: str, tmp_path: Path) -> None:
    (ours,) = analyse(TRACES / name, details=True, cache=False, whole=True).idle.to_dict("records")
    with to_the_ns():
        theirs = idle_by_category(trace_analysis(TRACES / name, tmp_path / "copy"))
    gaps, overlapped = gaps_of_one_stream(next((TRACES / name).iterdir()))
    near = _CLOSE * ours["window_ns"]
    late = sum(gap.end - gap.start for gap in gaps if gap.launch and gap.launch[0] > gap.start)
    assert ours["unknown_ns"] == 0
    assert sum(theirs.values()) + overlapped == pytest.approx(ours["idle_ns"], abs=near)
    assert theirs.get("host_wait", 0) == pytest.approx(late, abs=near)
    assert ours["starved_ns"] - near <= late <= ours["idle_ns"] + near


def test_launches_that_are_not_in_the_trace_are_unknown_and_no_event_of_chance(tmp_path: Path) -> None:
    run = TRACES / "tracelens-qwen-h100"
    (ours,) = analyse(run, details=True, cache=False, whole=True).idle.to_dict("records")
    with to_the_ns():
        theirs = trace_analysis(run, tmp_path / "copy")
    gaps, _ = gaps_of_one_stream(next(run.iterdir()))
    of_device = theirs.t.get_trace(0).query("stream >= 0")
    assert ours["unknown_ns"] == sum(gap.end - gap.start for gap in gaps if gap.launch is None) > 0
    assert (of_device["index_correlation"] == 0).sum() == 509  # the number of an event, of no launch
    assert sum(idle_by_category(theirs).values()) == pytest.approx(ours["idle_ns"], rel=_CLOSE)
