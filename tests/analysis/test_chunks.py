"""Any layout of the same JSON gives the same events, wherever a chunk happens to end."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from builders import LAYOUTS, write_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.analysis.errors import DamagedTrace, NotATrace, UnreadableFile
from commtrace.analysis.formats.kineto.stream import EventStream
from commtrace.analysis.recording.sizes import USUAL_SIZES, ReadSizes

NASTY = [
    "plain",
    "},{",
    "} , {",
    "}\n  ]",
    "]",
    "[[[",
    '"traceEvents": [',
    'a "quoted" name',
    "back\\slash",
    "ends in a backslash\\",
    '\\"},{\\"',
    "",
    "tab\tand\nline",
    "naïve 核 🚀",
    "void f<std::vector<int>>(int*, {lambda()#1}){...}]",
]


def events_in(stream: EventStream) -> list[dict[str, Any]]:
    return [json.loads(b'{"' + text + b"}") for batch in stream for text in batch.texts]


def document(names: list[str]) -> dict[str, Any]:
    """Keys around the events hold arrays of objects, and so do the arguments of the events."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "a },{ b"}, {"id": 1, "name": "]"}],
        "traceEvents": [
            {
                "name": name, "ph": "X", "ts": number, "dur": 1.5,
                "args": {"n": number, "name": name, "nested": [{"a": [1, {"b": [name]}]}, {"c": {}}], "none": [[], {}]},
            }
            for number, name in enumerate(names)
        ],
        "distributedInfo": {"rank": 1, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "},{"}]},
        "afterwards": [{"x": 1}, {"y": [{"z": "},{"}]}],
    }  # fmt: skip


def read(path: Path, sizes: ReadSizes = USUAL_SIZES) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """Name and arguments of every event, and the document without its events."""
    stream = EventStream(path, sizes=sizes)
    events = [(e["name"], e["args"]) for e in events_in(stream)]
    return events, json.loads(stream.surrounding.before + stream.surrounding.behind)


def expected(content: dict[str, Any]) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    return [(e["name"], e["args"]) for e in content["traceEvents"]], {**content, "traceEvents": []}


def without_trace_name(surrounding: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in surrounding.items() if k != "traceName"}


@pytest.fixture(params=[64, 257, 1000, 1 << 20], ids=lambda n: f"chunks of {n}")
def sizes(request) -> ReadSizes:
    return ReadSizes(chunk_bytes=request.param)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gz", [False, True], ids=["plain", "gz"])
def test_every_layout_gives_the_same_events(tmp_path, layout, gz, sizes):
    content = document(NASTY * 3)
    path = write_bytes(tmp_path / "trace.json", LAYOUTS[layout](content), gz=gz)
    events, surrounding = read(path, sizes)
    wanted, around = expected(content)
    assert events == wanted
    assert without_trace_name(surrounding) == around


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_place_where_a_chunk_can_end(tmp_path, layout):
    content = document(["},{", '\\"]', "x"])
    path = write_bytes(tmp_path / "trace.json", LAYOUTS[layout](content))
    wanted, _ = expected(content)
    for size in range(1, 150, 3):
        assert read(path, ReadSizes(chunk_bytes=size))[0] == wanted, f"chunks of {size} bytes"


@pytest.mark.slow
@settings(max_examples=80)
@given(
    names=st.lists(st.text(alphabet='{}[],":\\ an\n', max_size=12), max_size=6),
    size=st.integers(1, 150),
    layout=st.sampled_from(sorted(LAYOUTS)),
)
def test_names_made_of_brackets_and_quotes(tmp_path_factory, names, size, layout):
    content = document(names)
    path = write_bytes(tmp_path_factory.mktemp("chunks") / "trace.json", LAYOUTS[layout](content))
    assert read(path, ReadSizes(chunk_bytes=size))[0] == expected(content)[0]


def test_one_event_larger_than_a_chunk(tmp_path):
    content = document(["small", "x" * 300_000 + "},{", "small again"])
    path = write_bytes(tmp_path / "trace.json", LAYOUTS["compact"](content))
    assert read(path, ReadSizes(chunk_bytes=1000))[0] == expected(content)[0]


@pytest.mark.parametrize("content", ["[]", ' \n[{"name": "a"}, {"name": "b"}]\n', '[{"name": "},{"}]'])
def test_a_bare_array_of_events(tmp_path, content, sizes):
    path = write_bytes(tmp_path / "trace.json", content.encode())
    assert events_in(EventStream(path, sizes=sizes)) == json.loads(content)


def test_no_events_at_all(tmp_path, sizes):
    path = write_bytes(tmp_path / "trace.json", b'{"traceEvents": [\n  ],\n "after": [{"a": 1}, {"b": 2}]}')
    assert read(path, sizes) == ([], {"traceEvents": [], "after": [{"a": 1}, {"b": 2}]})


def test_the_content_decides_whether_it_is_gzip(tmp_path):
    content = LAYOUTS["compact"](document(["a"]))
    misnamed = write_bytes(tmp_path / "trace.json", content, gz=True)
    plain = write_bytes(tmp_path / "trace.json.gz", content)
    assert read(misnamed) == read(plain)


def test_gzip_of_several_members(tmp_path):
    content = LAYOUTS["indented"](document(NASTY))
    parts = gzip.compress(content[:700]) + gzip.compress(content[700:])
    assert read(write_bytes(tmp_path / "trace.json.gz", parts)) == expected(document(NASTY))


def test_it_counts_what_it_read(tmp_path):
    content = LAYOUTS["compact"](document(NASTY))
    stream = EventStream(write_bytes(tmp_path / "trace.json", content))
    assert len(events_in(stream)) == stream.events_read == len(NASTY)
    assert stream.bytes_read == len(content)


@pytest.mark.parametrize("layout", ["kineto", "compact", "indented"])
def test_a_file_cut_off_among_its_events_is_damaged(tmp_path, layout, sizes):
    content = LAYOUTS[layout](document(["one", "two", "three"]))
    first, last = content.index(b'"one"'), content.index(b'"three"')
    for length in range(first, last, 37):
        path = write_bytes(tmp_path / "trace.json", content[:length])
        with pytest.raises(DamagedTrace, match=r"trace\.json: .*events?, all good"):
            read(path, sizes)


def test_gzip_cut_off_anywhere_is_damaged(tmp_path):
    packed = gzip.compress(LAYOUTS["compact"](document(NASTY)))
    for length in range(11, len(packed), 29):
        path = write_bytes(tmp_path / "trace.json.gz", packed[:length])
        with pytest.raises((DamagedTrace, NotATrace), match=r"trace\.json\.gz: "):
            read(path)


def test_gzip_with_a_flipped_byte_is_damaged(tmp_path):
    packed = bytearray(gzip.compress(LAYOUTS["compact"](document(NASTY))))
    packed[len(packed) // 2] ^= 0xFF
    path = write_bytes(tmp_path / "trace.json.gz", bytes(packed))
    with pytest.raises((DamagedTrace, NotATrace), match=r"trace\.json\.gz: "):
        read(path)


def test_malformed_events_are_damaged(tmp_path):
    path = write_bytes(
        tmp_path / "trace.json", b'{"traceEvents": [{"name": "a"}, {"name": "un"quoted"}, {"name": "b"}]}'
    )
    with pytest.raises(DamagedTrace, match=r"not JSON at byte 45 \(1 event before it, all good\)"):
        read(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"hello", "holds no JSON"),
        (b"\x00\x01\x02binary", "holds no JSON"),
        (b'{"a": [1, 2]}', "traceEvents"),
        (b'"a string"', "something else"),
        (b'{"traceEvents": {"a": 1}}', "traceEvents"),
        (b'{"schema": "1.1.1", "pid": 1, "nodes": [{"id": 1}]}', "execution trace"),
    ],
)
def test_what_is_no_trace_says_why(tmp_path, content, reason):
    path = write_bytes(tmp_path / "trace.json", content)
    with pytest.raises(NotATrace, match=reason) as raised:
        read(path)
    assert str(path) in str(raised.value)


def test_what_cannot_be_opened(tmp_path):
    with pytest.raises(UnreadableFile, match=r"gone\.json: cannot be read"):
        read(tmp_path / "gone.json")
    with pytest.raises(UnreadableFile, match="cannot be read"):
        read(tmp_path)
