"""Long calls of functions of the user's code: read from every layout, in parts, and from recordings."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd
import pytest
from builders import LAYOUTS, MS, US, Trace

from commtrace import analyse
from commtrace.analysis.core.markers import LONG_CALL_US, is_of_user
from commtrace.analysis.formats.kineto.joining import Joining
from commtrace.analysis.formats.kineto.reader import joined_trace, read_kineto, read_part
from commtrace.analysis.formats.recordings.content import TraceSource, packed
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.run.file_tables import trace_file

DETAILED = ReadOptions(details=True)
OF_USER = ("train.py(31): load_batch", "nets/resnet.py(7): forward", "/home/me/job/train.py(3): <module>")
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
        if name in OF_USER and took >= LONG_CALL_US * US:
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
    assert len(analyse(drawn(1)[0].write(tmp_path), cache=False).run.functions) == 0


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
