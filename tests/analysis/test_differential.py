"""Three ways to read a file agree: picking from Kineto's layout, decoding any layout, and plain json."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from builders import LAYOUTS, Trace, write_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import oracle_tables
from reading_checks import (
    OWN_FILES,
    assert_same_tables,
    assert_three_readings_agree,
    share_picked,
    tables,
    without_fast_path,
)

from commtrace.analysis.errors import NotATrace
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes


@pytest.mark.slow_cases("resnet18-ddp-w2/vm_1.0000.pt.trace.json.gz")
@pytest.mark.parametrize("path", OWN_FILES, ids=lambda p: f"{p.parent.name}/{p.name[-32:]}")
def test_recorded_files(tmp_path, monkeypatch, path):
    assert_three_readings_agree(path, tmp_path, monkeypatch)


def test_from_kinetos_own_files_events_are_picked():
    assert OWN_FILES
    assert all(share_picked(path) > 0.99 for path in OWN_FILES)


def test_from_compact_files_events_are_picked(tmp_path):
    for path in OWN_FILES:
        document = json.loads(gzip.decompress(path.read_bytes()))
        compact = write_bytes(tmp_path / "compact.json", json.dumps(document, separators=(",", ":")).encode())
        assert share_picked(compact) > 0.99


# --- generated files -------------------------------------------------------------------------------------------------

IDS = st.integers(0, 9)
TEXTS = st.one_of(
    st.sampled_from(["aten::mm", "ncclDevKernel_AllReduce", "Memcpy PtoP (Device -> Device)", "},{", "} , {", '"ph"',
                     '\\"},{\\"ph', "ends in \\", "ProfilerStep#7", "ProfilerStep#", "nccl:all_reduce", "gloo:send",
                     "c10d::allreduce_", "record_param_comms", "thread_name", "enumerate(DataLoader)#_It.__next__",
                     "Record Window End", "naïve 核 🚀", "", "]}", "NaN"]),
    st.text(max_size=8).filter(lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text)),
)  # fmt: skip
TIMES_NS = st.integers(0, 2**42) | st.integers(0, 50_000)
CATEGORIES = st.sampled_from(
    ["kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "Runtime", "cpu_op",
     "Operator", "user_annotation", "gpu_user_annotation", "python_function", "ac2g", "overhead", "nonsense"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "correlation": IDS, "External id": IDS, "external id": IDS, "device": IDS, "stream": IDS, "bytes": IDS,
        "Collective name": st.sampled_from(["allreduce", "wait", "send", "recv"]),
        "In msg nelems": st.integers(-1, 2**60), "Out msg size": IDS,
        "Group size": st.integers(0, 2**30), "dtype": TEXTS,
        "Comms Id": st.integers(0, 2**64 - 1) | TEXTS, "Seq": IDS, "Rank": IDS, "Src Rank": IDS, "Dst Rank": IDS,
        "Process Group Name": TEXTS, "Process Group Ranks": st.sampled_from(["[0, 1]", "[]", "[0, 1, ...]"]),
        "Input Dims": st.just([[2, 3], []]), "Input type": st.just(["float", ""]), "Concrete Inputs": st.just(["2"]),
        "anything": JSON, "ph": TEXTS,
    },
)  # fmt: skip


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    event: dict[str, Any] = {"ph": draw(st.sampled_from(["X", "X", "X", "M", "s", "f", "i"]))}
    event |= {"cat": draw(CATEGORIES), "name": draw(TEXTS)}
    event |= {"pid": draw(IDS | st.just("Spans")), "tid": draw(IDS | st.just("stream 7"))}
    event["ts"] = draw(TIMES_NS) / 1000
    if draw(st.integers(0, 9)):
        event["dur"] = draw(TIMES_NS) / 1000
    if draw(st.integers(0, 9)):
        event["args"] = draw(ARGUMENTS)
    return event


DOCUMENTS = st.builds(
    lambda rank, base, made, after: {**Trace(rank, 4, base_ns=base, groups={"0": [0, 1]}).document(),
                                     "after": after, "traceEvents": made},
    st.none() | st.integers(0, 3), st.none() | st.integers(0, 2**60), st.lists(events(), max_size=12), JSON,
)  # fmt: skip


# The same files every time; the fuzzer looks for others.
@pytest.mark.slow
@settings(
    max_examples=30,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(document=DOCUMENTS, layout=st.sampled_from(sorted(LAYOUTS)), chunk_bytes=st.sampled_from([64, 700, 1 << 19]))
def test_generated_files(tmp_path_factory, document, layout, chunk_bytes):
    content = LAYOUTS[layout](document)
    path = write_bytes(tmp_path_factory.mktemp("made") / "rank0.json", content)
    options = ReadOptions(sizes=ReadSizes(chunk_bytes=chunk_bytes))
    wanted = oracle_tables(content)
    try:
        found = tables(path, options)
    except NotATrace:  # with something of a device, but nothing that is known
        assert not wanted["activities"]
        return
    assert_same_tables(found, wanted)
    with pytest.MonkeyPatch.context() as patch:
        without_fast_path(patch)
        assert_same_tables(tables(path, options), found)


def alternating(layout: str, pairs: int) -> bytes:
    """Operators that nobody asks for, and as many kernels, in turns."""
    trace = Trace()
    for number in range(pairs):
        trace.event("python_function", f"f {number}", number, 1).kernel(f"k {number}", number * 100, 7)
    return LAYOUTS[layout](trace.document())


@pytest.mark.parametrize("layout", ["kineto", "kineto of torch 2.13"])
@pytest.mark.parametrize("separator", [b"},\n {", b"}, {", b"},{", b"}\n  ,\n  {"])
def test_events_that_somebody_inserted_in_another_layout(tmp_path, layout, separator):
    content = alternating(layout, 40)
    lines = content.replace(b"  },\n  {", b"  " + separator, 31).replace(b"  " + separator, b"  },\n  {", 27)
    path = write_bytes(tmp_path / "t.json", lines)
    assert_same_tables(tables(path), oracle_tables(lines))
    assert len(tables(path)["activities"]) == 40


@pytest.mark.parametrize("layout", ["kineto", "kineto of torch 2.13"])
@pytest.mark.parametrize("end", [b"}}", b"}\n }", b"} }", b"}\n\n  }"])
def test_events_that_end_in_another_layout(tmp_path, layout, end):
    between = b"}\n  },\n  {"
    parts = alternating(layout, 9).split(between)
    for number in range(1, len(parts)):
        changed = between.join(parts[:number]) + end + b",\n  {" + between.join(parts[number:])
        path = write_bytes(tmp_path / "t.json", changed)
        assert_same_tables(tables(path), oracle_tables(changed))


@pytest.mark.parametrize("behind", [b", 5]", b', {"a": 1}]'])
def test_elements_of_a_list_are_no_events(tmp_path, behind):
    """Though they look like some, and the list does not end as that of the events does."""
    between = b"\n  },\n  {\n    "
    ghost = b'"ph": "X", "cat": "kernel", "name": "ghost", "pid": 0, "tid": 7, "ts": 1, "dur": 9, "args": {}'
    holder = b'"ph": "s", "list": [{"a": 1' + between + ghost + b"\n  }" + behind
    first, *others = alternating("kineto", 9).split(between)
    content = between.join([first, holder, *others])
    assert b"ghost" in content
    assert_same_tables(tables(write_bytes(tmp_path / "t.json", content)), oracle_tables(content))


GHOST = {"ph": "X", "cat": "kernel", "name": "ghost", "pid": 0, "tid": 7, "ts": 1, "dur": 9, "args": {}}
HOLDERS: dict[str, dict[str, Any]] = {
    "a list of such": {"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "args": {"of": [GHOST, GHOST, GHOST]}},
    "one among others": {"ph": "s", "of": [{"a": 1}, GHOST, {"a": 2}]},
    "lists in lists": {"ph": "i", "of": [[{"a": 1}], [GHOST, {"a": [{"b": 1}, GHOST, {"b": 2}]}]]},
    "texts that end so": {"ph": "X", "cat": "kernel", "name": "a},{", "ts": 5, "dur": 1, "args": {"},{": "},{"}},
    "a key that ends so": {"ph": "i", "},{": "kernel", "b},{": ["},{", "},{", 1]},
    "escaped quotes": {"ph": "i", "name": '},{"ph":"X","cat":"kernel","name":"ghost","ts":1},{"'},
    "an empty one": {},
}


@pytest.mark.parametrize("chunk_bytes", [300, 1 << 19])
@pytest.mark.parametrize("gap", [b",", b", ", b" ,", b",\n"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_looks_like_a_place_between_events_in_a_compact_layout(tmp_path, holder, gap, chunk_bytes):
    """With gaps before others of another layout, so that numbers of events and of such places may agree."""
    trace = Trace()
    for number in range(12):
        trace.event("python_function", f"f {number}", number, 1).kernel(f"k {number}", number * 100, 7)
    document = trace.document()
    document["traceEvents"][5:5] = [HOLDERS[holder]]
    content = json.dumps(document, separators=(",", ":")).encode().replace(b'},{"ph":"X"', b"}" + gap + b'{"ph":"X"', 3)
    options = ReadOptions(sizes=ReadSizes(chunk_bytes=chunk_bytes))
    wanted = oracle_tables(content)
    assert "'ghost'" not in str(wanted["activities"])
    assert_same_tables(tables(write_bytes(tmp_path / "t.json", content), options), wanted)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_communication_kernel_without_arguments(tmp_path, layout):
    document = Trace(0, 2).nccl("all_reduce", 0, 5).document()
    del document["traceEvents"][-1]["args"]
    assert document["traceEvents"][-1]["name"].startswith("nccl")
    content = LAYOUTS[layout](document)
    assert_same_tables(tables(write_bytes(tmp_path / "rank0.json", content)), oracle_tables(content))


@pytest.mark.parametrize("chunk_bytes", [700, 1 << 19])
def test_older_and_newer_spellings_in_one_file(tmp_path, chunk_bytes):
    options = ReadOptions(sizes=ReadSizes(chunk_bytes=chunk_bytes))
    trace = Trace(0, 2)
    for number in range(12):
        trace.event("Kernel" if number % 3 == 1 else "kernel", f"gemm {number}", number * 1000, 500, tid=7)
    content = LAYOUTS["kineto"](trace.document())
    assert_same_tables(tables(write_bytes(tmp_path / "rank0.json", content), options), oracle_tables(content))
