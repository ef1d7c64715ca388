"""What is picked out of a chunk in Kineto's layout is what is wanted of it, and every doubt is seen."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from builders import LAYOUTS, US, Trace

from commtrace.analysis.core.json_repairs import Habits
from commtrace.analysis.formats.kineto.events import IDLE_CALLS, ROOMS, Sorted, sorted_texts
from commtrace.analysis.formats.kineto.scan import picked
from commtrace.analysis.formats.kineto.stream import KINETO_LAYOUT

OPENING, CLOSING, SEPARATOR = KINETO_LAYOUT.opening, KINETO_LAYOUT.closing, KINETO_LAYOUT.separator
KINETO = ("kineto", "kineto of torch 2.13")
IDLE = {"python_function": "f", "ac2g": "ac2g", "gpu_user_annotation": "ProfilerStep#1", "overhead": "Cupti"}


def chunk_of(trace: Trace, layout: str) -> tuple[bytes, int]:
    """All events of a trace but the last, with the begin of the last behind them, and where that is."""
    text = LAYOUTS[layout](trace.document())
    chunk = text[text.index(OPENING, text.index(b'"traceEvents"')) :]
    end = chunk.rindex(SEPARATOR) + len(CLOSING)
    return chunk[: end + 60], end


def made() -> Trace:
    trace = Trace(0, 2)
    for number, category in enumerate([*ROOMS, *IDLE, *ROOMS]):
        trace.event(category, IDLE.get(category, f"{category} {number}"), number * US, 500, tid=7)
    trace.op("c10d::allreduce_", 90 * US, 5).op("record_param_comms", 91 * US, 5).op("aten::mm", 92 * US, 5)
    return trace.metadata("thread_name", 4, name="pt_gloo_runloop").event("overhead", "last", 99 * US, 1)


def rooms(found: Sorted | None) -> dict[str, list[bytes]]:
    assert found is not None
    return vars(found)


@pytest.mark.parametrize("layout", KINETO)
def test_what_is_picked_is_what_is_there(layout):
    chunk, end = chunk_of(made(), layout)
    texts = chunk[len(OPENING) : end - len(CLOSING)].split(SEPARATOR)
    wanted = vars(sorted_texts(texts))
    assert all(wanted[room] for room in ("activities", "launches", "annotations", "operators", "threads"))
    assert rooms(picked(chunk, end, Habits(), KINETO_LAYOUT, with_operators=True)) == wanted
    without = rooms(picked(chunk, end, Habits(), KINETO_LAYOUT, with_operators=False))
    handing_over = [t for t in wanted["operators"] if b"c10d::" in t or b'"record_param_comms"' in t]
    assert len(handing_over) == 2
    assert without == {**wanted, "operators": handing_over}


def test_allocations_are_picked_with_operators():
    memory = b'ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "ts": 1'
    idle = b'ph": "s", "id": 1'
    chunk = OPENING + memory + SEPARATOR + idle + CLOSING
    assert rooms(picked(chunk + OPENING, len(chunk), Habits(), KINETO_LAYOUT, with_operators=True))["memory"] == [
        memory
    ]


@pytest.mark.parametrize("layout", KINETO)
@pytest.mark.parametrize(
    "name", ["kernel", "thread_name", "c10d::x", "cuda_runtime", "record_param_comms", "\u0001", 'a "kernel"', "\u00e9"]
)
def test_names_that_say_what_categories_do(layout, name):
    trace = Trace()
    for category in (*IDLE, "kernel", "user_annotation", "python_function"):
        trace.event(category, name, 0, 500)
    chunk, end = chunk_of(trace.event("overhead", "last", 1, 1), layout)
    found = rooms(picked(chunk, end, Habits(), KINETO_LAYOUT, with_operators=False))
    assert {room: len(texts) for room, texts in found.items() if texts} == {"activities": 1, "annotations": 1}


@pytest.mark.parametrize("layout", KINETO)
def test_calls_that_launch_nothing_are_left_out(layout):
    trace = Trace()
    for call in ("cudaLaunchKernel", *IDLE_CALLS, "cudaMemcpyAsync", "cuLaunchKernelEx", "cudaGraphLaunch"):
        trace.event("cuda_runtime", f"{call}X", 0, 5, correlation=7)
    chunk, end = chunk_of(trace.event("overhead", "last", 1, 1), layout)
    texts = chunk[len(OPENING) : end - len(CLOSING)].split(SEPARATOR)
    launches = [t for t in texts if any(call in t for call in (b"Launch", b"Memcpy"))]
    assert len(launches) == 4 < len(texts)
    assert rooms(picked(chunk, end, Habits(), KINETO_LAYOUT, with_operators=False))["launches"] == launches
    assert sorted_texts(texts).launches == launches


@pytest.mark.parametrize("letter", range(6))
def test_categories_with_an_escaped_letter(letter):
    chunk, end = chunk_of(Trace().kernel("gemm", 0, 5).event("overhead", "last", 9, 1), "kineto")
    escaped = "kernel"[:letter] + f"\\u{ord('kernel'[letter]):04x}" + "kernel"[letter + 1 :]
    assert json.loads(f'"{escaped}"') == "kernel"
    changed = chunk[:end].replace(b'"cat": "kernel"', b'"cat": "%s"' % escaped.encode())
    assert changed != chunk[:end]
    assert (
        len(rooms(picked(changed + OPENING, len(changed), Habits(), KINETO_LAYOUT, with_operators=False))["activities"])
        == 1
    )


def test_the_last_of_two_categories_counts():
    twice = b'ph": "X", "cat": "overhead", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1'
    chunk = OPENING + b'ph": "s"' + SEPARATOR + twice + CLOSING
    assert rooms(picked(chunk + OPENING, len(chunk), Habits(), KINETO_LAYOUT, with_operators=False))["activities"] == [
        twice
    ]


@pytest.mark.parametrize(
    "foreign",
    [
        b'\n  },{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1},\n  {\n    "',
        b'\n  }, {"ph":"X","cat":"user_annotation","name":"k","ts":1,"dur":1},\n  {\n    "',
        b'\n  },\n  {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1\n  },\n  {\n    "',
        b'\n  },\n  {\n   "ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1\n  },\n  {\n    "',
        b'\n  },\n  {\n    "cat": "kernel", "name": "k", "ts": 1, "ph": "X"},{"a": "kernel"\n  },\n  {\n    "',
    ],
    ids=range(5),
)
def test_events_in_another_layout_are_seen(foreign):
    idle = b'ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1,\n    "cat": "ac2g", "name": "ac2g"'
    chunk = OPENING + idle + SEPARATOR + idle + CLOSING
    assert rooms(picked(chunk + OPENING, len(chunk), Habits(), KINETO_LAYOUT, with_operators=False)) == vars(Sorted())
    mixed = OPENING + idle + foreign + idle + CLOSING
    assert picked(mixed + OPENING, len(mixed), Habits(), KINETO_LAYOUT, with_operators=False) is None


@pytest.mark.parametrize("close", [b"\n  }\n  ]", b"\n  }]", b"\n  } ]", b"\n  }\r\n]", b"\n  }\t]"])
def test_a_list_that_ends_is_seen(close):
    idle = b'ph": "s", "id": 1'
    before = OPENING + idle + CLOSING
    chunk = before + OPENING + idle + close + b', "other": [' + OPENING + idle + SEPARATOR + idle + CLOSING
    assert picked(chunk + OPENING, len(chunk), Habits(), KINETO_LAYOUT, with_operators=False) is None
    assert picked(chunk, len(before), Habits(), KINETO_LAYOUT, with_operators=False) is not None  # not yet


@pytest.mark.parametrize("key", [b"ph", b"cat", b"name"])
@pytest.mark.parametrize("value", [b"null", b"7", b"[]", b'{"a": 1}', b"true"])
def test_what_should_be_a_text_and_is_none(key, value):
    texts = {b"ph": b'"X"', b"cat": b'"overhead"', b"name": b'"thread_name"'} | {key: value}
    text = b", ".join(b'"%s": %s' % each for each in texts.items())[1:]
    chunk = OPENING + b'ph": "s"' + SEPARATOR + text + CLOSING
    assert sorted_texts([text]) == picked(chunk + OPENING, len(chunk), Habits(), KINETO_LAYOUT, with_operators=True)
    assert not sorted_texts([text]).threads or key in (b"ph", b"cat")


def test_what_is_found_in_a_huge_event_does_not_fill_the_memory():
    for times, is_picked in ((10, True), (1 << 20, False)):
        text = b'ph": "X", "cat": "overhead", "name": "%s"' % (b"\\u00e9" * times)
        chunk = OPENING + b'ph": "s"' + SEPARATOR + text + SEPARATOR
        end = len(chunk) - len(OPENING)
        tracemalloc.start()
        assert (picked(chunk, end, Habits(), KINETO_LAYOUT, with_operators=False) is not None) is is_picked
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


def test_what_is_broken_is_not_picked():
    broken = b'ph": "X", "cat": thread_name, "name": "k"'
    chunk = OPENING + b'ph": "s"' + SEPARATOR + broken + CLOSING
    assert picked(chunk + OPENING, len(chunk), Habits(), KINETO_LAYOUT, with_operators=False) is None
