"""torch records Python's garbage collection where it is asked to, under the name that the analysis looks for."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from capturing import three
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from commtrace.analysis.core.markers import PYTHON_GC
from commtrace.analysis.results.opening import analyse


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
    check_collections(tmp_path)


@pytest.mark.slow
def test_captures_with_stacks_record_it(tmp_path: Path) -> None:
    if "record_python_gc_info" not in str(_ExperimentalConfig.__init__.__doc__):
        pytest.skip("this torch does not record garbage collection; 2.9 does")
    with three(tmp_path, with_stack=True, device="cpu") as session:
        for _ in range(5):
            gc.collect()
            session.step()
    check_collections(tmp_path)


def check_collections(folder: Path) -> None:
    """At least three, each of which took time."""
    annotations = analyse(folder, details=True).run.annotations
    collected = annotations[annotations["name"] == PYTHON_GC]
    assert len(collected) >= 3
    assert (collected["dur_ns"] > 0).all()
