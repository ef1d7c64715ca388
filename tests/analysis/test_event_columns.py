"""Every declared column of an event: from Kineto's JSON to the table and into a recording, whatever stands there."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import US, Trace
from recordings import as_file, content_in

from commtrace.analysis.core.tables.events import COMM_ARGUMENTS, EVENT_SORTS, EventColumn
from commtrace.analysis.errors import DamagedTrace
from commtrace.analysis.formats.kineto.reader import read_kineto
from commtrace.analysis.formats.recordings.content import TraceSource, packed
from commtrace.analysis.formats.recordings.reader import read_recording
from commtrace.analysis.recording.arrays import values_of
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import RawTrace
from commtrace.analysis.recording.values import MISSING
from commtrace.analysis.run.file_tables import trace_file

DETAILED = ReadOptions(details=True)
TABLE_OF = {
    "activities": "activities",
    "runtime": "runtime_calls",
    "operators": "operator_calls",
    "memory": "memory_events",
}
"""Tables with a row for each event; that of launches has only those of activities."""
WRITTEN_AS = {
    "activities": {"ph": "X", "cat": "kernel", "name": "gemm"},
    "launches": {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel"},
    "runtime": {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel"},
    "operators": {"ph": "X", "cat": "cpu_op", "name": "aten::mm"},
    "memory": {"ph": "i", "name": "[memory]"},
}
CASES = [(sort, one, key) for sort in WRITTEN_AS for one in EVENT_SORTS[sort].held for key in one.keys]
LATER = [(sort, one) for sort, one, _ in CASES if one.since]
NO_NUMBERS = ("seven", None, True, [7], {"of": 7}, -7)
LEAST = {"Sequence number": 1}
"""Arguments without which an operator is in no table of its calls."""


def name(value: object) -> str | None:
    return value.name if isinstance(value, EventColumn) else None


def read(folder: Path, sort: str, given: list[dict[str, Any]]) -> tuple[Path, RawTrace]:
    """A trace with an event of the sort for each of the given arguments, behind a launched kernel and an operator."""
    trace = Trace(0, 1).step(3, 0, 900 * US).op("aten::add", 0, US).kernel("first", 2 * US, 3 * US)
    for place, args in enumerate(given):
        event = {"pid": 5, "tid": 6, "ts": 10.0 + place, "dur": 0.5, "args": LEAST | args}
        trace.events.append(WRITTEN_AS[sort] | event)
    path = trace.write(folder)
    return path, read_kineto(path, DETAILED)


def drawn(declared: EventColumn, draw: random.Random) -> float:
    if declared.is_integer:
        return draw.randrange(1 << draw.randrange(1, 44))
    return round(draw.uniform(0, 100), 2)


@pytest.mark.parametrize(("sort", "declared", "key"), CASES, ids=name)
def test_what_is_written_is_in_the_recording_and_in_the_table(tmp_path, sort, declared, key):
    draw = random.Random(f"{sort} {key}")
    values = [drawn(declared, draw) for _ in range(40)]
    path, raw = read(tmp_path, sort, [{"correlation": 100 + place, key: value} for place, value in enumerate(values)])
    assert values_of(declared, getattr(raw, sort))[-40:].tolist() == values

    recording = tmp_path / "packed.ctrace"
    recording.write_bytes(packed(raw, TraceSource(path.name, "Kineto", 1), []))
    again = read_recording(recording, DETAILED)
    assert getattr(again, sort) == getattr(raw, sort)

    if declared.shown and sort in TABLE_OF:
        shown = getattr(trace_file(path, again, DETAILED), TABLE_OF[sort])[declared.shown].astype(object)
        possible = [value / declared.per if declared.above < value <= declared.most else None for value in values]
        expected = [str(value) for value in values] if declared.dtype == "string" else possible
        assert shown.where(shown.notna(), None).tolist()[-40:] == expected


@pytest.mark.parametrize(("sort", "declared", "key"), CASES, ids=name)
def test_what_is_no_number_is_not_known_or_makes_the_event_malformed(tmp_path, sort, declared, key):
    for odd in NO_NUMBERS:
        if not declared.strict:
            _, raw = read(tmp_path, sort, [{key: odd}])
            value = values_of(declared, getattr(raw, sort))[-1]
            is_number = not declared.is_integer and isinstance(odd, int)
            assert value == odd if is_number else value == MISSING or np.isnan(value)
        elif isinstance(odd, (list, dict)):
            with pytest.raises(DamagedTrace, match="is not as Kineto writes it"):
                read(tmp_path, sort, [{key: odd}])


@pytest.mark.parametrize(
    ("declared", "key"), [(one, key) for one in COMM_ARGUMENTS.columns for key in one.keys], ids=name
)
def test_what_is_written_of_a_collective_is_in_its_row(tmp_path, declared, key):
    draw = random.Random(key)
    limits = max(declared.above + 1, -5), min(declared.most, 1 << 40)
    values = [draw.randint(*map(int, limits)) for _ in range(9)] if declared.held == "integer" else ["3", "7 11"]
    given = [{"Collective name": "allreduce", key: value} for value in values]
    if declared.most < 1 << 60:
        given += [{"Collective name": "allreduce", key: odd} for odd in (int(declared.above), int(declared.most) + 1)]
    trace = Trace(0, 1).kernel("first", 2 * US, 3 * US)
    for place, more in enumerate(given):
        args = {"device": 0, "stream": 7, "correlation": 100 + place} | more
        trace.event("kernel", "ncclDevKernel_AllReduce_Sum_f32", (10 + 2 * place) * US, US, **args)
    rows = trace_file(path := trace.write(tmp_path), read_kineto(path, DETAILED), DETAILED).comm_args
    shown = rows[declared.shown].astype(object)
    assert shown.where(shown.notna(), None).tolist() == [*values, *[None] * (len(given) - len(values))]


@pytest.mark.parametrize(("sort", "declared"), LATER, ids=name)
def test_recordings_from_before_a_column_lack_it_and_nothing_else(tmp_path, sort, declared):
    path, raw = read(tmp_path, sort, [{declared.keys[0]: 7}])
    recording = tmp_path / "packed.ctrace"
    recording.write_bytes(packed(raw, TraceSource(path.name, "Kineto", 1), []))
    content = content_in(recording)
    assert content.sorts[sort].pop(declared.name).rows
    recording.write_bytes(as_file(content))
    before = read_recording(recording, DETAILED)
    held = getattr(before, sort)
    unknown = {declared.name: np.full(len(held["ts"]) // 8, MISSING if declared.is_integer else np.nan).tobytes()}
    assert held == getattr(raw, sort) | unknown
    recording.write_bytes(packed(before, TraceSource(path.name, "Kineto", 1), []))
    assert declared.name not in content_in(recording).sorts[sort]


@pytest.mark.parametrize("sort", EVENT_SORTS.values(), ids=lambda sort: sort.name)
def test_an_event_takes_more_memory_with_one_more_column(sort):
    more = replace(sort, columns=(*sort.columns, EventColumn("more", "Int64", "a column more", "integer")))
    shown_in = sum(not table.shown for table in sort.tables)
    assert more.event_bytes - sort.event_bytes == 8 + 9 * shown_in  # as it was read, and with a byte for NA in tables
