"""Launches of real runs, as HolisticTraceAnalysis has them: the same where all launches are of calls that it knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from beside_checkout import TRACES, needs_shared
from second_opinion import to_the_ns, trace_analysis

from commtrace import analyse

pytestmark = [needs_shared, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(("name", "rank"), [("ddp-a100-r0of2", 0), ("ddp-v100-r1of2", 1), ("dlrm-v100-w8", 5)])
def test_calls_and_delays(name: str, rank: int, tmp_path: Path) -> None:
    ours = analyse(TRACES / name, details=True, cache=False, whole=True).launches.query(f"rank == {rank}")
    with to_the_ns():
        theirs = trace_analysis(TRACES / name, tmp_path / "copy").get_cuda_kernel_launch_stats([rank], visualize=False)
    launch = theirs[rank]
    assert ours["launches"].sum() == len(launch)
    assert ours["call_ns"].sum() == pytest.approx(1000 * launch["cpu_duration"].sum(), rel=1e-6)
    assert ours["ran_ns"].sum() == pytest.approx(1000 * launch["gpu_duration"].sum(), rel=1e-6)
    assert (ours["delay_mean_us"] * ours["launches"]).sum() == pytest.approx(launch["launch_delay"].sum(), rel=1e-6)
    assert ours["short_kernels"].sum() == (launch["gpu_duration"] < launch["cpu_duration"]).sum()
    assert ours["long_delays"].sum() == (launch["launch_delay"] > 100).sum()
