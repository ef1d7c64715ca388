"""What a verdict says of idle time: before which kernel most of it comes, and where work is not in the trace."""

from __future__ import annotations

from pathlib import Path

from builders import MS, US, Trace
from idle_runs import call, detailed

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.analysis import Analysis


def run_row(found: Analysis) -> Row:
    return records(found.verdicts)[0]


def _launching(folder: Path, slow: set[int]) -> str:
    """A hundred kernels of 100 us, 5 us apart, every tenth another one; those in `slow` are launched 2 ms later."""
    trace, at = Trace(), 0
    for number in range(100):
        at += 2 * MS if number in slow else 5 * US
        trace.kernel("norm" if number % 10 == 5 else "gemm", at, 100 * US, launch=at - 3 * US)
        trace.op("aten::mm", at - 5 * US, 10 * US)
        at += 100 * US
    return str(run_row(detailed(folder, trace))["because"])


def test_the_kernel_before_which_most_idle_time_comes(tmp_path: Path) -> None:
    assert "; 20.0 ms come before `norm`" in _launching(tmp_path, set(range(5, 100, 10)))


def test_what_most_activities_are_goes_without_saying(tmp_path: Path) -> None:
    assert "come before" not in _launching(tmp_path, set(range(4, 100, 10)))


def _beginning(folder: Path, waits_in: str, kernels: int = 10) -> Row:
    """A kernel of 4 us, nothing for 50 ms, then so many kernels of 5 ms, launched long before."""
    trace = Trace().kernel("index", 0, 4 * US)
    call(trace, waits_in, 40 * US, 50 * MS)
    for number in range(kernels):
        trace.kernel("gemm", 50 * MS + number * 5 * MS, 5 * MS, launch=5 * US + number * US)
    return run_row(detailed(folder, trace))


def test_a_gap_at_the_beginning_in_which_a_cpu_waits_is_no_loss(tmp_path: Path) -> None:
    found = _beginning(tmp_path, "hipMemcpyWithStream")
    assert found["verdict"] == "compute-bound"
    assert found["not_known"].startswith("For 50.0 ms at the beginning a CPU waited in hipMemcpyWithStream")


def test_compute_limits_no_run_of_which_it_is_the_smaller_part(tmp_path: Path) -> None:
    found = _beginning(tmp_path, "hipMemcpyWithStream", kernels=4)
    assert found["verdict"] == "inconclusive"
    assert found["headline"] == "What devices did is not in the trace for 50.0 ms of the 70.0 ms window"
    assert str(found["why"]).startswith("Compute fills 20.0 ms (29%).")


def test_where_no_cpu_waits_it_is_one(tmp_path: Path) -> None:
    found = _beginning(tmp_path, "cudaEventQuery")
    assert found["verdict"] == "idle"
    assert found["not_known"] is None
