"""Times that count from 1970, with decimals, are exact to the nanosecond whichever way they are read."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from builders import LAYOUTS, Trace, write_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commtrace.analysis.formats.kineto.joining import Joining
from commtrace.analysis.formats.kineto.reader import joined_trace, read_kineto, read_part
from commtrace.analysis.formats.kineto.verified import verified
from commtrace.analysis.formats.recordings.content import TraceSource, packed
from commtrace.analysis.formats.recordings.reader import recorded_in
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import RawTrace
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.run.file_tables import trace_file

NOW_NS = 1_694_128_201_426_557_048
OPTIONS = ReadOptions()


def document_of(starts_ns: list[int], layout: str, decimals: int = 3) -> bytes:
    """A kernel, its launch, a step, an operator and a record at each of these times, written with decimals."""
    trace = Trace(base_ns=None)
    for start_ns in starts_ns:
        trace.kernel("k", 0, 1).step(1, 0, 1).record("all_reduce", 0, external_id=5).op("aten::mm", 0, 1)
        for event in trace.events[-5:]:
            event["ts"] = f"@{start_ns}@"
    events = trace.document()
    text = LAYOUTS[layout]({**events, "traceEvents": [{**e, "ts": 0.0} for e in events["traceEvents"]]})
    times = iter([e["ts"].strip("@") for e in trace.events])
    zero = b'"ts": 0.000' if b'"ts": 0.000' in text else next(z for z in (b'"ts":0.0', b'"ts": 0.0') if z in text)
    parts = text.split(zero)
    assert len(parts) == len(trace.events) + 1
    joined = parts[0]
    for part, ns in zip(parts[1:], times, strict=True):
        us = Decimal(ns) / 1000
        joined += zero.rpartition(b"0.0")[0] + f"{us:.{decimals}f}".encode() + part
    return joined


def starts(raw: RawTrace, path: Path) -> list[list[int]]:
    file = trace_file(path, raw)
    return [file.activities["start_ns"].tolist(), file.launches["start_ns"].tolist(),
            file.annotations["start_ns"].tolist(), [row["start_ns"] for row in file.comm_rows]]  # fmt: skip


NEAR = st.integers(-(10**15), 10**15).map(lambda ns: NOW_NS + ns)


@pytest.mark.slow
@settings(max_examples=60, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
@given(st.lists(NEAR, min_size=1, max_size=6), st.sampled_from(["kineto", "kineto of torch 2.13", "compact"]),
       st.sampled_from([300, 900, 1 << 19]))  # fmt: skip
def test_absolute_times_are_exact(tmp_path_factory, starts_ns, layout, chunk_bytes):
    path = write_bytes(tmp_path_factory.mktemp("made") / "rank0.json", document_of(starts_ns, layout))
    raw = read_kineto(path, ReadOptions(sizes=ReadSizes(chunk_bytes=chunk_bytes)))
    assert starts(raw, path) == [starts_ns, sorted(starts_ns), starts_ns, starts_ns]
    assert starts(verified(path, raw), path)[0] == starts_ns
    recording = packed(raw, TraceSource("rank0.json", "Kineto", 1), [])
    assert starts(recorded_in(path, recording, OPTIONS).trace, path)[0] == starts_ns


def many(count: int) -> list[int]:
    return [NOW_NS + 1_048 * number for number in range(count)]


def test_parts_of_a_file_agree(tmp_path):
    options = ReadOptions(sizes=ReadSizes(chunk_bytes=5_000))
    path = write_bytes(tmp_path / "rank0.json", document_of(many(200), "kineto"))
    joining = Joining()
    for part in range(3):
        joining.add(read_part(path, options, part, 3))
    assert starts(joined_trace(path, joining, options), path)[0] == many(200)


@pytest.mark.parametrize("decimals", [0, 1, 2, 3])
def test_any_number_of_decimals(tmp_path, decimals):
    times = [ns // 10 ** (3 - decimals) * 10 ** (3 - decimals) for ns in many(100)]
    path = write_bytes(tmp_path / "rank0.json", document_of(times, "kineto", decimals))
    assert starts(read_kineto(path, OPTIONS), path)[0] == times


def test_decimals_that_come_after_whole_microseconds(tmp_path):
    options = ReadOptions(sizes=ReadSizes(chunk_bytes=3_000))
    times = [NOW_NS // 1000 * 1000 + 1000 * number for number in range(300)] + many(300)
    path = write_bytes(tmp_path / "rank0.json", document_of(times, "kineto"))
    assert starts(read_kineto(path, options), path)[0] == times


def test_a_time_far_from_all_others_does_no_harm(tmp_path):
    """Then doubles are as exact as before: a quarter of a microsecond."""
    trace: dict[str, Any] = Trace(base_ns=None).document()
    now_us = NOW_NS // 1000
    before_us = now_us - 300 * 86_400_000_000
    for ts in (now_us + 0.5, before_us + 0.5, now_us + 7.25):
        trace["traceEvents"].append({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": 1})
    path = write_bytes(tmp_path / "rank0.json", json.dumps(trace).encode())
    found = starts(read_kineto(path, OPTIONS), path)[0]
    assert found == [now_us * 1000 + 500, before_us * 1000 + 500, now_us * 1000 + 7250]


def test_the_end_of_the_window_and_points_without_a_time(tmp_path):
    document: dict[str, Any] = Trace(base_ns=None).document()
    for ts in (None, 1_694_128_201_426_557.048):
        document["traceEvents"].append({"ph": "i", "name": "Record Window End", "ts": ts})
    text = json.dumps(document).replace(str(1_694_128_201_426_557.048), "1694128201426557.048")
    path = write_bytes(tmp_path / "rank0.json", text.encode())
    assert trace_file(path, read_kineto(path, OPTIONS)).window_end_ns == NOW_NS


def test_verify_sees_a_time_that_is_off_by_one_ns(tmp_path):
    path = write_bytes(tmp_path / "rank0.json", document_of(many(5), "kineto"))
    raw = read_kineto(path, OPTIONS)
    assert verified(path, raw).extent.verified_events == 25
    path.write_bytes(document_of([many(5)[0] + 1, *many(5)[1:]], "kineto"))
    with pytest.raises(Exception, match="decoding every event finds"):
        verified(path, raw)
