"""What torch 2.14 and later write of a GPU is read alike from its compact JSON and from its .pftrace.

torch's own writers, given what a GPU would have recorded: no GPU is needed, but cupti-python is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from reading_checks import share_picked

from commtrace import analyse
from commtrace.analysis.results.analysis import Analysis

torch = pytest.importorskip("torch")
writing = pytest.importorskip(
    "torch.profiler._cupti.monitor_trace", reason="needs torch 2.14 and cupti-python 13.3", exc_type=ImportError
)

GEMM, ALL_REDUCE = "gemm(float*)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_NOT_SAID = ("priority", "queued", "channel_type", "graph_id", "graph_node_id", "static_shared_memory",
             "dynamic_shared_memory")  # fmt: skip


def recorded_on_a_cpu(path: Path) -> dict[str, Any]:
    """A trace of two steps on the CPU, as torch exports it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        for step in range(2):
            with torch.profiler.record_function(f"train step {step}"):
                torch.mm(torch.ones(9, 9), torch.ones(9, 9))
    profiler.export_chrome_trace(str(path))
    return dict(json.loads(path.read_text(encoding="utf-8")))


def window(base_ns: int, starts_us: list[float]) -> dict[str, Any]:
    """Kernels that begin at these times, on two streams, in the columns that torch's recorder fills."""
    count = len(starts_us)
    start_ns = np.array([base_ns + round(us * 1000) for us in starts_us], dtype=np.int64)
    ones = np.ones(count, dtype=np.int64)
    columns = {
        "start_ns": start_ns, "end_ns": start_ns + 700, "device_id": 0 * ones, "context_id": ones,
        "stream_id": 7 + np.arange(count) % 2, "correlation_id": np.arange(count) + 1,
        "name": np.array([(GEMM, ALL_REDUCE)[n % 2] for n in range(count)], dtype=object),
        **{f"{what}_{axis}": ones for what in ("grid", "block") for axis in "xyz"},
        "registers_per_thread": 32 * ones, "channel": ones, **dict.fromkeys(_NOT_SAID, 0 * ones),
        "annotation": np.array([None] * count, dtype=object),
    }  # fmt: skip
    return {"columns": {"kernel": columns}}


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Analysis]:
    """The two files, read with details."""
    folder = tmp_path_factory.mktemp("torch")
    document = recorded_on_a_cpu(folder / "cpu.json")
    starts_us = [event["ts"] + 1 for event in document["traceEvents"] if event.get("name") == "aten::mm"]
    recorded = window(int(document["baseTimeNanoseconds"]), [us + more for us in starts_us for more in (0, 1, 2, 3)])
    for ending in ("json", "pftrace"):
        writing.merge_trace_window_into_chrome_trace(str(folder / "cpu.json"), str(folder / f"r.{ending}"), recorded)
    assert share_picked(folder / "r.json") > 0.9  # of a small file: the last event is never picked
    return {ending: analyse(folder / f"r.{ending}", cache=False, details=True) for ending in ("json", "pftrace")}


def test_kernels_are_there_to_the_ns(read: dict[str, Analysis]) -> None:
    for found in read.values():
        assert found.run.activities["dur_ns"].tolist() == [700] * 8
        assert found.run.activities["kind"].tolist() == ["compute", "comm"] * 4
        assert found.run.activities["registers"].tolist() == [32] * 8


@pytest.mark.parametrize("table", ["activities", "cpu_operators", "annotations", "operator_calls"])
def test_events_are_the_same(read: dict[str, Analysis], table: str) -> None:
    ours, theirs = (getattr(read[ending].run.tables.whole, table) for ending in ("pftrace", "json"))
    assert len(theirs)
    pd.testing.assert_frame_equal(ours, theirs, obj=table)


@pytest.mark.parametrize("table", ["breakdown", "kernels_devices", "calls"])
def test_tables_are_the_same(read: dict[str, Analysis], table: str) -> None:
    pd.testing.assert_frame_equal(read["pftrace"].table(table), read["json"].table(table), obj=table)
