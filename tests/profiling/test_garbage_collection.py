"""torch records Python's garbage collection where it is asked to, under the name that the analysis looks for."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from analysis.core.markers import PYTHON_GC
from analysis.results.opening import analyse


def test_garbage_collection_is_found(tmp_path: Path) -> None:
    try:
        recording = _ExperimentalConfig(record_python_gc_info=True)
    except TypeError:
        pytest.skip("this torch does not record garbage collection; 2.9 does")
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, with_stack=True, experimental_config=recording) as profiler:
        for _ in range(3):
            gc.collect()
    profiler.export_chrome_trace(str(tmp_path / "rank0.json"))
    annotations = analyse(tmp_path, details=True).run.annotations
    collected = annotations[annotations["name"] == PYTHON_GC]
    assert len(collected) >= 3
    assert (collected["dur_ns"] > 0).all()
