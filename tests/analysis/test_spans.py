"""A file read in parts is what it is read as a whole, or is said not to be divisible; never something else."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from builders import LAYOUTS, US, Trace, write_bytes
from reading_checks import OWN_FILES, assert_parts_join_to_the_whole
from reading_checks import in_parts as read_in_parts

from commtrace.analysis.errors import TraceError
from commtrace.analysis.formats.kineto.joining import Joining
from commtrace.analysis.formats.kineto.part_stream import Indivisible
from commtrace.analysis.formats.kineto.reader import joined_trace, read_kineto, read_part
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import RawTrace
from commtrace.analysis.recording.sizes import ReadSizes

DIVIDED = ("kineto", "kineto of torch 2.13", "compact", "events last")
OPTIONS = ReadOptions(sizes=ReadSizes(chunk_bytes=600))


def in_parts(path: Path, count: int) -> RawTrace:
    return read_in_parts(path, count, OPTIONS)


def whole(path: Path) -> RawTrace:
    return read_kineto(path, OPTIONS)


def made(kernels: int = 60) -> Trace:
    trace = Trace(1, 4, groups={"0": [0, 1, 2, 3]}).step(1, 0, 900 * US)
    for number in range(kernels):
        trace.kernel(f"gemm {number * number % 23}", number * US, 500)
        trace.nccl(("all_reduce", "broadcast")[number % 2], number * US, 400, elems=number + 1, Seq=number)
    return trace.step(2, 900 * US, 900 * US)


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("layout", DIVIDED)
@pytest.mark.parametrize("packed", [False, True])
def test_parts_join_to_the_whole(tmp_path, layout, count, packed):
    content = LAYOUTS[layout](made().document())
    path = write_bytes(tmp_path / "rank1.json", gzip.compress(content) if packed else content)
    assert in_parts(path, count) == whole(path)


def test_the_process_does_not_depend_on_how_a_file_is_taken_apart(tmp_path):
    document = made().document()
    events = sorted(document["traceEvents"], key=lambda event: event.get("cat") == "user_annotation")
    document["traceEvents"] = [event | {"pid": number} for number, event in enumerate(events)]
    path = write_bytes(tmp_path / "rank1.json", LAYOUTS["kineto"](document))
    pids = {in_parts(path, 5).pid}
    for chunk_bytes in (200, 600, 1 << 19):
        pids.add(read_kineto(path, ReadOptions(sizes=ReadSizes(chunk_bytes=chunk_bytes))).pid)
    assert pids == {len(events) - 2}, "that of the first annotation"


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda p: f"{p.parent.name}/{p.name[-32:]}")
def test_recorded_files(tmp_path, path):
    assert_parts_join_to_the_whole(path, tmp_path)


@pytest.mark.parametrize("layout", sorted(LAYOUTS.keys() - set(DIVIDED)))
def test_other_layouts_are_not_divided(tmp_path, layout):
    path = write_bytes(tmp_path / "rank1.json", LAYOUTS[layout](made().document()))
    with pytest.raises(Indivisible):
        in_parts(path, 2)


def test_in_a_compact_layout_what_follows_the_events_may_look_like_events(tmp_path):
    ghost = {"ph": "X", "cat": "kernel", "name": "ghost", "pid": 0, "tid": 7, "ts": 1, "dur": 9, "args": {}}
    document = made().document() | {"gap": "-" * 2000, "after": [ghost] * 900}
    path = write_bytes(tmp_path / "rank1.json", LAYOUTS["compact"](document))
    assert "ghost" not in whole(path).names
    for count in (2, 3, 7):
        with pytest.raises(Indivisible):
            in_parts(path, count)


def test_what_follows_the_events_may_look_like_events(tmp_path):
    content = LAYOUTS["kineto"](made().document())
    decoys = b",\n  ".join(b'{\n    "ph": "X", "cat": "kernel", "name": "decoy", "ts": 1\n  }' for _ in range(900))
    close = content.rindex(b"}")
    path = write_bytes(
        tmp_path / "rank1.json", content[:close] + b', "gap": "%s", "after": [\n  ' % (b"-" * 2000) + decoys + b"]}"
    )
    json.loads(path.read_bytes())
    assert in_parts(path, 2) == whole(path)  # all events are in the first half
    assert "decoy" not in whole(path).names
    with pytest.raises(Indivisible):
        in_parts(path, 9)


def test_what_precedes_the_events_may_look_like_events(tmp_path):
    content = LAYOUTS["kineto"](made().document())
    decoys = b",\n  ".join(b'{\n    "ph": "X", "cat": "kernel", "name": "decoy", "ts": 1\n  }' for _ in range(900))
    path = write_bytes(tmp_path / "rank1.json", b'{"before": [\n  ' + decoys + b"]," + content.lstrip()[1:])
    json.loads(path.read_bytes())
    for count in (2, 3, 9):
        with pytest.raises(Indivisible):
            in_parts(path, count)


@pytest.mark.parametrize("behind_byte", [5_000, 20_000, 40_000])
def test_of_several_layouts_a_file_is_not_divided(tmp_path, behind_byte):
    """Nor is an event missed that hides, in another layout, behind one that is dropped: wherever it stands."""
    content = LAYOUTS["kineto"](made().document())
    idle = b'\n  {\n    "ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1,\n    "cat": "ac2g", "name": "ac2g"\n  }'
    hidden = (
        b',{"ph": "X", "cat": "kernel", "name": "hidden", "pid": 0, "tid": 7, "ts": 5.000, "dur": 1.000, "args": {}}'
    )
    at = content.index(b"},\n  {", behind_byte) + 2
    path = write_bytes(tmp_path / "rank1.json", content[:at] + idle + hidden + b"," + content[at:])
    json.loads(path.read_bytes())
    assert "hidden" in whole(path).names
    with pytest.raises(Indivisible):
        in_parts(path, 2)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_another_one_replaces_is_not_mixed_with_it(tmp_path, packed):
    """Though both are as long, and their events stand at the same places."""
    content = LAYOUTS["kineto"](made().document())
    paths = [tmp_path / "rank1.json", tmp_path / "new.json"]
    for path, text in zip(paths, (content, content.replace(b"gemm", b"gelu")), strict=True):
        write_bytes(path, gzip.compress(text) if packed else text)
    parts = Joining()
    parts.add(read_part(paths[0], OPTIONS, 0, 2))
    paths[1].replace(paths[0])
    parts.add(read_part(paths[0], OPTIONS, 1, 2))
    with pytest.raises(Indivisible):
        joined_trace(paths[0], parts, OPTIONS)


def test_several_gzip_members(tmp_path):
    content = LAYOUTS["kineto"](made().document())
    path = write_bytes(tmp_path / "rank1.json", b"".join(map(gzip.compress, (content[:9000], content[9000:]))))
    assert in_parts(path, 3) == whole(path)


def test_operators_count_only_where_no_part_has_activities(tmp_path):
    trace = Trace(0, 2)
    for number in range(50):
        trace.event("cpu_op", "aten::mm", number * US, 500)
    on_cpu = write_bytes(tmp_path / "cpu.json", LAYOUTS["kineto"](trace.document() | {"deviceProperties": []}))
    assert in_parts(on_cpu, 3) == whole(on_cpu)
    assert len(whole(on_cpu).operators["ts"]) == 50 * 8
    trace.kernel("gemm", 60 * US, 500)
    on_gpu = write_bytes(tmp_path / "gpu.json", LAYOUTS["kineto"](trace.document()))
    assert in_parts(on_gpu, 3) == whole(on_gpu)
    assert not whole(on_gpu).operators["ts"]


@pytest.mark.slow
def test_damage_anywhere_shows(tmp_path):
    """Parts that join say what a whole reading says, which then finds nothing wrong either."""
    content = LAYOUTS["kineto"](made(20).document())
    chosen = random.Random(5)
    for _ in range(150):
        at = chosen.randrange(len(content))
        damaged = chosen.choice([
            content[:at],
            content[:at] + b"\xff" + content[at + 1 :],
            content[:at] + b'"' + content[at:],
            content[:at] + content[at + chosen.randrange(1, 3000) :],
        ])  # fmt: skip
        path = write_bytes(tmp_path / "rank1.json", damaged)
        try:
            found: RawTrace | None = in_parts(path, 3)
        except TraceError:
            continue
        assert found == whole(path)
