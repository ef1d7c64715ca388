"""Launches, queues and copies as HolisticTraceAnalysis has them, and as our tables do: on one stream, the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from host_bound import AFTER_NS, trace
from second_opinion import to_the_ns, trace_analysis

from commtrace import Analysis, analyse

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(params=(1, 20), ids=("host-bound", "gpu-bound"))
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Analysis, Any]:
    run = tmp_path / "run"
    trace(request.param, AFTER_NS).write(run)
    with to_the_ns():
        return analyse(run, details=True, cache=False, whole=True), trace_analysis(run, tmp_path / "copy")


def test_calls_and_delays(both: tuple[Analysis, Any]) -> None:
    ours, theirs = both[0].launches, both[1].get_cuda_kernel_launch_stats(visualize=False)[0]
    assert ours["launches"].sum() == len(theirs)
    assert ours["call_ns"].sum() == pytest.approx(1000 * theirs["cpu_duration"].sum(), rel=1e-6)
    assert ours["ran_ns"].sum() == pytest.approx(1000 * theirs["gpu_duration"].sum(), rel=1e-6)
    assert (ours["delay_mean_us"] * ours["launches"]).sum() == pytest.approx(theirs["launch_delay"].sum(), rel=1e-6)
    assert ours["delay_max_us"].max() == pytest.approx(theirs["launch_delay"].max(), rel=1e-6)
    assert ours["short_kernels"].sum() == (theirs["gpu_duration"] < theirs["cpu_duration"]).sum()
    assert ours["long_delays"].sum() == (theirs["launch_delay"] > 100).sum()


def test_queues(both: tuple[Analysis, Any]) -> None:
    (ours,) = both[0].queue.to_dict("records")
    theirs = both[1].get_queue_length_time_series()[0].sort_values("ts", kind="stable")
    begins = theirs["ts"].to_numpy() * 1000
    start_ns = begins[theirs["queue_length"].to_numpy() == 0][0]  # the first launch is over: the window begins
    ends = np.append(begins[1:], start_ns + ours["window_ns"])
    length = np.clip(ends, start_ns, start_ns + ours["window_ns"]) - np.maximum(begins, start_ns)
    depth = theirs["queue_length"].to_numpy()
    assert ours["max_depth"] == depth.max()
    assert ours["mean_depth"] == pytest.approx((depth * length.clip(0)).sum() / ours["window_ns"], rel=1e-4)
    assert ours["empty_ns"] == pytest.approx(length[depth == 0].sum(), rel=1e-3)


def test_copies(both: tuple[Analysis, Any]) -> None:
    ours, theirs = both[0].copies, both[1].get_memory_bw_summary()["memory_bw_gbps"]
    assert len(ours) == len(theirs) == 3
    for row in ours.to_dict("records"):
        name = "Memset" if row["direction"] == "memset" else f"Memcpy {row['direction']}"
        assert row["copies"] == theirs.loc[(0, name), "count"]
        assert row["bandwidth_gb_per_s"] == pytest.approx(theirs.loc[(0, name), "mean"], rel=1e-6)


def test_annotations(both: tuple[Analysis, Any]) -> None:
    """HTA drops the last range of the optimizer: on the GPU it begins when the CPU is done with all steps."""
    ours = both[0].annotation_times.set_index("annotation")["total_ns"]
    kernels: pd.DataFrame = both[1].get_gpu_kernels_with_user_annotations(0)
    theirs = 1000 * kernels.groupby("s_user_annotation")["dur"].sum()
    assert ours["forward"] == pytest.approx(theirs["forward"], rel=1e-6)
    assert ours["optimizer"] == pytest.approx(theirs["optimizer"] * 3 / 2, rel=1e-6)
