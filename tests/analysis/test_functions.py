"""Long calls of functions: read from every layout, in parts, and from recordings."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd
import pytest
from builders import LAYOUTS, MS, US, Trace

from commtrace import analyse
from commtrace.analysis.core.markers import FUNCTION, LONG_CALL_US
from commtrace.analysis.formats.kineto.joining import Joining
from commtrace.analysis.formats.kineto.reader import joined_trace, read_kineto, read_part
from commtrace.analysis.formats.recordings.content import TraceSource, packed
from commtrace.analysis.metrics.functions import is_of_user
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.run.file_tables import trace_file

DETAILED = ReadOptions(details=True)
OF_USER = ("train.py(31): load_batch", "nets/resnet.py(7): forward", "/job/train.py(3): <module>")
OF_OTHERS = (
    "torch/nn/modules/module.py(1775): _call_impl", "threading.py(1002): _bootstrap", "<string>(1): <module>",
    "/opt/env/lib/python3.11/site-packages/decord/reader.py(5): next", "multiprocessing/spawn.py(122): spawn_main",
    "<built-in function sleep>", "<frozen importlib._bootstrap>(1390): _handle_fromlist", "nn.Module: Linear_0",
)  # fmt: skip


def drawn(seed: int, count: int = 60) -> tuple[Trace, list[tuple[str, int, int]]]:
    """A trace of calls of all sorts and lengths beside kernels, and those that are to be read: name, start and ns."""
    draw, made, wanted = random.Random(seed), Trace(0, 1), []
    for place in range(count):
        start = (place + 1) * 20 * MS
        made.kernel("gemm", start, 20 * US).op("aten::mm", start, draw.choice((10 * US, 7 * MS)))
        name = draw.choice((*OF_USER, *OF_OTHERS))
        took = draw.choice((LONG_CALL_US * US, draw.randrange(1, 2 * LONG_CALL_US * US), draw.randrange(1, 19 * MS)))
        made.event("python_function", name, start + US, took, **{"Python id": place})
        made.event("overhead", "Activity Buffer Request", start + 2 * US, draw.choice((took, 3 * MS)))
        if FUNCTION.match(name) and took >= LONG_CALL_US * US:
            wanted.append((name, start + US, took))
    assert wanted
    return made, wanted


@pytest.mark.parametrize("name", OF_USER)
def test_of_the_user(name):
    assert is_of_user(name)


@pytest.mark.parametrize("name", OF_OTHERS)
def test_of_others(name):
    assert not is_of_user(name)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_long_ones_in_every_layout(tmp_path: Path, layout: str) -> None:
    trace, wanted = drawn(7)
    run = analyse(trace.write(tmp_path, layout=layout), details=True, cache=False).run
    base = int(run.activities["start_ns"].min()) - 20 * MS
    found = run.functions.assign(start_ns=run.functions["start_ns"] - base)
    assert list(map(tuple, found[["name", "start_ns", "dur_ns"]].to_numpy().tolist())) == wanted
    assert set(found["thread"]) == {4242}


def test_they_are_details(tmp_path: Path) -> None:
    assert len(analyse(drawn(1)[0].write(tmp_path), details=False, cache=False).run.functions) == 0


@pytest.mark.parametrize("seed", range(4))
def test_parts_and_small_chunks_give_the_same(tmp_path: Path, seed: int) -> None:
    trace, wanted = drawn(seed, 90)
    path = trace.write(tmp_path, layout="kineto", gz=False)
    options = ReadOptions(details=True, sizes=ReadSizes(chunk_bytes=1_000 + 997 * seed))
    joining = Joining()
    for part in range(3):
        joining.add(read_part(path, options, part, 3))
    joined = joined_trace(path, joining, options)
    assert joined == read_kineto(path, options)
    found = trace_file(path, joined, options).functions
    assert found["name"].tolist() == [name for name, _, _ in wanted]
    assert found["dur_ns"].tolist() == [took for _, _, took in wanted]


def test_a_quote_in_the_name_of_another_call_hides_none(tmp_path: Path) -> None:
    """Kineto did not escape quotes in names up to 2026."""
    trace, wanted = drawn(3)
    path = trace.event("python_function", "<built-in method x of QUOTED>", 5 * MS, US).write(
        tmp_path, layout="kineto", gz=False
    )
    path.write_bytes(path.read_bytes().replace(b"QUOTED", b'"q"'))
    assert len(read_kineto(path, DETAILED).functions["ts"]) == 8 * len(wanted)


def test_recordings_keep_them(tmp_path: Path) -> None:
    trace, wanted = drawn(5)
    path = trace.write(tmp_path)
    before = analyse(path, details=True, cache=False)
    (target := tmp_path / "a.ctrace").write_bytes(
        packed(read_kineto(path, DETAILED), TraceSource(path.name, "Kineto", 1), [])
    )
    after = analyse(target, details=True, cache=False)
    pd.testing.assert_frame_equal(after.run.functions, before.run.functions)
    assert len(after.run.functions) == len(wanted)


def gloo_run(folder: Path, late: dict[int, list[tuple[str, int, int]]], step_ms: int = 40, steps: int = 4) -> str:
    """What is said first of two ranks, of which one is late: its calls of functions, by start in a step, in ms.

    The other hands its collective over at once.
    """
    for rank in range(2):
        trace = Trace(rank, 2, groups={"0": [0, 1]}, backend="gloo", device_names=(), host="node")
        trace.event("python_function", "train.py(25): main", -2 * MS, (steps + 1) * step_ms * MS)
        for step in range(steps):
            begin = step * step_ms * MS
            at = begin + (step_ms - 8 if late.get(rank) else 5) * MS
            trace.step(step, begin, begin + step_ms * MS)
            trace.op("aten::mm", begin, 4 * MS)
            for name, since, took in late.get(rank, []):
                trace.event("python_function", name, begin + since * MS, took * MS)
            trace.op("aten::add", at - US, US)
            trace.c10d("allreduce_", at, dims=[[[1000]], [], []], types=["TensorList", "", ""])
            end = begin + (step_ms - 6) * MS
            trace.gloo("all_reduce", at + 10 * US, end - at, dims=[[1000]], types=["float"])
            trace.op("aten::mm", end + 20 * US, MS)
        trace.write(folder)
    return analyse(folder, details=True, cache=False).verdict


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("seed", range(3))
def test_a_late_rank_is_said_to_be_in_the_innermost_function_that_holds_the_time(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    rank, line, outer = draw.randrange(2), draw.randrange(2, 900), draw.choice((16, 26))
    function = f"data/load{seed}.py({line}): read"
    calls = [
        ("train.py(40): fetch", 5, outer + 1), (function, 5, outer),
        ("torch/storage.py(3): load", 5, outer), ("data/load.py(4): tiny", 6, 1),
    ]  # fmt: skip
    said = gloo_run(tmp_path, {rank: calls})
    assert f"its CPU is {'' if outer == 26 else 'mostly '}in `read` (data/load{seed}.py:{line})" in said


@pytest.mark.slow
def test_a_function_around_all_steps_has_no_line_and_the_time_in_no_other(tmp_path: Path) -> None:
    """The line in its name is where it stood when the capture began."""
    said = gloo_run(tmp_path, {1: [("torch/storage.py(3): load", 5, 2)]})
    assert "its CPU is in `main` (train.py)" in said
    assert "train.py:25" not in said


@pytest.mark.slow
def test_no_function_is_named_that_holds_less_than_half(tmp_path: Path) -> None:
    of_libraries = [(f"torch/part.py({number}): load", 5 + 7 * number, 7) for number in range(4)]
    said = gloo_run(tmp_path, {1: [*of_libraries, ("train.py(3): fetch", 5, 7), ("train.py(9): keep", 12, 7)]})
    assert "rank 1" in said.lower()
    assert "train.py" not in said


def gpu_run(folder: Path, calls: list[tuple[str, int, int]], *, loading_ms: int = 0) -> str:
    """What is said first of one GPU that works for 5 of 30 ms, between calls of functions by start in a step, in ms."""
    trace = Trace(0, 1)
    for step in range(4):
        begin = step * 30 * MS
        trace.step(step, begin, begin + 30 * MS)
        trace.op("aten::mm", begin + 23 * MS, MS)
        trace.kernel("gemm", begin + 24 * MS, 5 * MS, launch=begin + 24 * MS - 10 * US)
        if loading_ms:
            trace.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin + MS, loading_ms * MS)
        for name, since, took in calls:
            trace.event("python_function", name, begin + since * MS, took * MS)
    return analyse(trace.write(folder), details=True, cache=False).verdict


@pytest.mark.slow
def test_a_gap_outside_of_operators_is_said_to_be_in_a_function(tmp_path: Path) -> None:
    said = gpu_run(tmp_path, [("train.py(31): load_batch", 1, 20), ("logging/__init__.py(7): info", 2, 18)])
    assert "for 20.0 ms outside of operators they were in `load_batch` (train.py:31)" in said


def test_a_wait_for_a_batch_is_said_to_be_in_a_function(tmp_path: Path) -> None:
    said = gpu_run(tmp_path, [("data.py(12): __getitem__", 2, 4), ("data.py(12): __getitem__", 7, 12)], loading_ms=20)
    assert "for 16.0 ms of waiting for a batch they were in `__getitem__` (data.py:12)" in said


@pytest.mark.parametrize("took", [3, 11])
def test_no_function_is_named_where_each_holds_little(tmp_path: Path, took: int) -> None:
    said = gpu_run(tmp_path, [("a.py(1): first", 1, took), ("b.py(2): second", 1 + took, took)])
    assert "idle" in said
    assert ".py" not in said
