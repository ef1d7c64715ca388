"""Modules and sizes of copies: read from every layout, in parts, and from recordings."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from builders import LAYOUTS, US, Trace

from commtrace import analyse
from commtrace.analysis.formats.kineto.joining import Joining
from commtrace.analysis.formats.kineto.reader import joined_trace, read_kineto, read_part
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes

DETAILED = ReadOptions(details=True)


def trace(count: int = 3) -> Trace:
    made = Trace(0, 1)
    for number in range(count):
        start = number * 100 * US
        made.kernel("gemm", start, 20 * US).memcpy("DtoD", start + 30 * US, 5 * US, nbytes=1_000 + number)
        made.event("python_function", f"nn.Module: Linear_{number % 7}", start, 15_250, **{"Python id": number})
        made.event("python_function", "train.py(7): nn.Module: not_one", start, 90 * US)
        made.op("aten::mm", start, 10 * US).op("nn.Module: an_operator", start, 5 * US)
    return made


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_modules_and_sizes_in_every_layout(tmp_path: Path, layout: str) -> None:
    path = trace().write(tmp_path, layout=layout)
    run = analyse(path, details=True, cache=False).run
    base = int(run.activities["start_ns"].min())
    modules = run.modules.assign(start_ns=run.modules["start_ns"] - base)
    assert modules[["thread", "name", "start_ns", "dur_ns"]].to_numpy().tolist() == [
        [4242, f"nn.Module: Linear_{number}", number * 100 * US, 15_250] for number in range(3)
    ]
    sizes = dict(zip(run.activities["name"], run.activities["size_bytes"], strict=True))
    assert sizes["gemm"] is pd.NA
    assert sizes["Memcpy DtoD (Device -> Device)"] == 1_002
    assert "nn.Module: an_operator" in set(run.cpu_operators["name"])


def test_modules_are_details_and_sizes_are_not(tmp_path: Path) -> None:
    run = analyse(trace().write(tmp_path), details=False, cache=False).run
    assert len(run.modules) == 0
    assert run.activities["size_bytes"].sum() == 1_000 + 1_001 + 1_002


@pytest.mark.parametrize("details", [True, False])
def test_parts_join_to_the_whole(tmp_path: Path, details: bool) -> None:
    options = ReadOptions(details=details, sizes=ReadSizes(chunk_bytes=2_000))
    path = trace(40).write(tmp_path, layout="kineto", gz=False)
    joining = Joining()
    for part in range(3):
        joining.add(read_part(path, options, part, 3))
    assert joined_trace(path, joining, options) == read_kineto(path, options)
