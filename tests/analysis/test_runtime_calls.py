"""Calls of the CUDA runtime, read with details: also those that launch nothing, but order what runs."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from builders import LAYOUTS, Trace, write_bytes

from commtrace import analyse

DATA = Path(__file__).parent.parent / "data"
CALLS = [
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventRecord", "pid": 1, "tid": 7, "ts": 10.5, "dur": 1.25,
     "args": {"correlation": 91}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamWaitEvent", "pid": 1, "tid": 7, "ts": 12, "dur": 0.5,
     "args": {"correlation": 92}},
    {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernel", "pid": 1, "tid": 8, "ts": 13, "dur": 2,
     "args": {"correlation": 93}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 1, "tid": 7, "ts": 14, "dur": 30.125},
]  # fmt: skip
EXPECTED = [
    ("cudaEventRecord", 7, 91, 10_500, 1_250),
    ("cudaStreamWaitEvent", 7, 92, 12_000, 500),
    ("cuLaunchKernel", 8, 93, 13_000, 2_000),
    ("cudaStreamSynchronize", 7, None, 14_000, 30_125),
]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_every_call_is_there_with_its_name_and_duration(tmp_path: Path, layout: str) -> None:
    document = Trace(0, 1).kernel("gemm", 100_000, 5).document()
    document["traceEvents"] += CALLS
    path = write_bytes(tmp_path / "node_0.0001.pt.trace.json", LAYOUTS[layout](document))
    run = analyse(tmp_path, details=True, cache=False).run
    base = int(run.activities["start_ns"].min()) - 100_000
    calls = run.runtime_calls.assign(start_ns=run.runtime_calls["start_ns"] - base)
    columns = ["name", "thread", "correlation", "start_ns", "dur_ns"]
    rows = [tuple(None if cell is pd.NA else cell for cell in row) for row in calls[columns].astype(object).to_numpy()]
    found = [row for row in rows if row[0] != "cudaLaunchKernel"]
    assert found == EXPECTED
    assert path.exists()
    assert len(analyse(tmp_path, details=False, cache=False).run.runtime_calls) == 0


@pytest.mark.parametrize("path", sorted(DATA.glob("nccl-*/node00_4000.*.json.gz")), ids=lambda path: path.parent.name)
def test_recorded_files(path: Path) -> None:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    calls = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cuda_runtime", "cuda_driver")]
    found = analyse(path, details=True, cache=False).run.runtime_calls
    assert len(found) == len(calls)
    assert found["dur_ns"].sum() == round(sum(e.get("dur", 0) for e in calls) * 1000)
