"""Shapes of operators, and what joins backward ones to forward ones: from every layout, in parts, from recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import LAYOUTS, US, Trace

from commtrace import analyse
from commtrace.analysis.formats.kineto.joining import Joining
from commtrace.analysis.formats.kineto.reader import joined_trace, read_kineto, read_part
from commtrace.analysis.formats.recordings.content import TraceSource, packed
from commtrace.analysis.formats.recordings.reader import recorded_in
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes

DETAILED = ReadOptions(details=True, memory_gb=1)
MATRICES = {"Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
SCALED = {"Input Dims": [[8, 16], []], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", "0.125"]}
CONVOLVED = {"Input Dims": [[1, 3, 8, 8], [4, 3, 3, 3], []], "Input type": ["float", "float", ""],
             "Concrete Inputs": ["", "", "[1, 1]"]}  # fmt: skip


def trace(count: int = 2, *, gpu: bool = True) -> Trace:
    made = Trace(0, 1)
    for number in range(count):
        at = number * 100 * US
        if gpu:
            made.kernel("gemm", at, 20 * US)
        for name, args in (
            ("aten::mm", MATRICES | {"Sequence number": 7 + number, "Fwd thread id": 0}),
            ("aten::mul", SCALED),
            ("aten::convolution", CONVOLVED),
            ("MmBackward0", {"Sequence number": 7 + number, "Fwd thread id": 3}),
            ("aten::item", {}),
        ):
            made.event("cpu_op", name, at, 5 * US, **args)
            at += 10 * US
    return made


def rows(run: Any) -> list[list[Any]]:
    calls = run.operator_calls[["name", "inputs", "sequence", "forward_thread"]].astype(object)
    return calls.where(calls.notna(), None).to_numpy().tolist()


EXPECTED = [
    ["aten::mm", '[[[8,16],[16,4]],["float","float"],[]]', 7, 0],  # of its values no formula needs any
    ["aten::mul", '[[[8,16],[]],["float","Scalar"],[]]', None, None],
    ["aten::convolution", '[[[1,3,8,8],[4,3,3,3],[]],["float","float",""],["","","[1, 1]"]]', None, None],
    ["MmBackward0", None, 7, 3],
]


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_every_layout_tells_them(tmp_path: Path, layout: str, gpu: bool) -> None:
    path = trace(1, gpu=gpu).write(tmp_path, layout=layout)
    assert rows(analyse(path, details=True).run) == EXPECTED


def test_they_are_details(tmp_path: Path) -> None:
    for gpu in (True, False):
        path = trace(gpu=gpu).write(tmp_path / str(gpu))
        assert rows(analyse(path, details=False).run) == []
        assert read_kineto(path, ReadOptions(memory_gb=1)).inputs == []


def test_parts_join_to_the_whole(tmp_path: Path) -> None:
    options = ReadOptions(details=True, sizes=ReadSizes(chunk_bytes=2_000))
    path = trace(40).write(tmp_path, layout="kineto", gz=False)
    joining = Joining()
    for part in range(3):
        joining.add(read_part(path, options, part, 3))
    assert joined_trace(path, joining, options) == read_kineto(path, options)


@pytest.mark.parametrize("gpu", [True, False])
def test_recordings_hold_them(tmp_path: Path, gpu: bool) -> None:
    read = read_kineto(trace(gpu=gpu).write(tmp_path), DETAILED)
    recording = packed(read, TraceSource("t", "Kineto", 0), [])
    assert recorded_in(tmp_path, recording, DETAILED).trace == read
    without = recorded_in(tmp_path, recording, ReadOptions(memory_gb=1)).trace
    assert without == read_kineto(tmp_path / next(tmp_path.iterdir()).name, ReadOptions(memory_gb=1))


def test_what_a_writer_may_write_harms_nothing(tmp_path: Path) -> None:
    made = Trace(0, 1).kernel("gemm", 0, 20 * US)
    odd: list[dict[str, Any]] = [
        {"Input Dims": None}, {"Input Dims": "x", "Input type": {"a": 1}}, {"Sequence number": "7"},
        {"Sequence number": -1, "Fwd thread id": 2**70}, {"Sequence number": 1.5}, {"Sequence number": True},
    ]  # fmt: skip
    for number, args in enumerate(odd):
        made.event("cpu_op", "aten::odd", number * 10 * US, 5 * US, **args)
    run = analyse(made.write(tmp_path), details=True).run
    assert rows(run) == [
        ["aten::odd", "[null,[],[]]", None, None],
        ["aten::odd", '["x",{"a":1},[]]', None, None],
    ]
    assert run.operator_calls["sequence"].dtype == pd.Int64Dtype()
