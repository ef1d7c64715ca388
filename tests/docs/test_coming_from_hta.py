"""docs/coming-from-hta.md shows what both libraries print, leaves out no call of HTA, and says of it what is so."""

import inspect
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from builders import US, Trace
from hta_page import PAGE, page_as_printed
from second_opinion import hta, to_the_ns, trace_analysis

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_outputs_are_what_both_print() -> None:
    hta()
    page = PAGE.read_text(encoding="utf-8")
    assert page_as_printed(page) == page


def test_every_call_is_there() -> None:
    of = {hta().TraceAnalysis, hta("hta.trace_diff").TraceDiff, hta("hta.memory_analysis").MemoryAnalysis}
    calls = {name for each in of for name, _ in inspect.getmembers(each, inspect.isroutine) if name[0] != "_"}
    page = PAGE.read_text(encoding="utf-8")
    assert {name for name in calls if name not in page} == {"get_queue_length_summary_from_time_series"}


# What the page says that HTA gets wrong, each on the smallest trace that shows it.


def step() -> Trace:
    return Trace(0, 1).op("aten::mm", 0, 1 * US).step(1, 2 * US, 200 * US)


def analysed(trace: Trace, folder: Path) -> Any:
    trace.write(folder / "run")
    return trace_analysis(folder / "run", folder / "copy")


def test_rounding_makes_a_kernel_negative(tmp_path: Path) -> None:
    trace = step().kernel("short", 10_200, 700, launch=5_000).kernel("long", 20_000, 2_000, launch=15_000)
    theirs = analysed(trace, tmp_path).get_gpu_kernel_breakdown(visualize=False)[1]
    assert dict(zip(theirs["name"], theirs["sum (us)"], strict=True)) == {"short": -1, "long": 2}


def test_events_that_name_a_stream_count_as_device_work(tmp_path: Path) -> None:
    trace = step().kernel("a", 10 * US, 5 * US, launch=5 * US).kernel("b", 80 * US, 5 * US, launch=70 * US)
    trace.event("cuda_sync", "Stream Synchronize", 20 * US, 40 * US, pid=0, tid=7, stream=7, correlation=99)
    with to_the_ns():
        (row,) = analysed(trace, tmp_path).get_temporal_breakdown(visualize=False).to_dict("records")
    assert (row["idle_time(us)"], row["kernel_time(us)"]) == (25, 75)


def test_a_kernel_without_a_launch_gets_the_first_event(tmp_path: Path) -> None:
    trace = step().kernel("a", 10 * US, 5 * US, launch=5 * US).kernel("b", 90 * US, 5 * US, launch=None)
    with to_the_ns():
        theirs = analysed(trace, tmp_path)
        idle = theirs.get_idle_time_breakdown(visualize=False)[0].set_index("idle_category")["idle_time"]
    assert theirs.t.get_trace(0).query("stream >= 0")["index_correlation"].tolist()[-1] == 0
    assert idle["other"] == 75


def test_the_operator_may_be_that_of_another_thread(tmp_path: Path) -> None:
    trace = step().op("aten::bmm", 5 * US, 40 * US, thread=77).op("aten::sum", 8 * US, 30 * US)
    trace.kernel("gemm", 30 * US, 5 * US, launch=10 * US, thread=77)
    with to_the_ns(), patch("plotly.basedatatypes.BaseFigure.show"):
        theirs = analysed(trace, tmp_path).get_aten_op_kernels_and_delay()[0]
    assert theirs["aten_op_name"].tolist() == ["aten::sum"]


def test_launches_of_the_driver_are_left_out(tmp_path: Path) -> None:
    trace = step().kernel("gemm", 30 * US, 5 * US, launch=10 * US).kernel("triton", 60 * US, 5 * US, launch=50 * US)
    (launch,) = [e for e in trace.events if e["cat"] == "cuda_runtime" and e["ts"] == 50]
    launch |= {"cat": "cuda_driver", "name": "cuLaunchKernel"}
    assert len(analysed(trace, tmp_path).get_cuda_kernel_launch_stats(visualize=False)[0]) == 1


def test_a_full_queue_is_shown_of_one_stream(tmp_path: Path) -> None:
    trace = step()
    for stream in (7, 8):
        for number in range(2):
            trace.kernel(f"{stream} {number}", 50 * US * (1 + number), 5 * US, launch=10 * US + number, stream=stream)
    theirs = analysed(trace, tmp_path)
    full = theirs.get_time_spent_blocked_on_full_queue(theirs.get_queue_length_time_series(), 2)
    assert full["stream"].tolist() == [8]
