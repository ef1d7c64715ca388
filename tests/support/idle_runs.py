"""Runs whose devices are idle, and whose calls are read: traces built in memory, and tables drawn at random."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from builders import US, Trace, activities_table
from hypothesis import strategies as st

from commtrace.analysis.core.markers import PYTHON_GC
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.core.tables.communication import ANNOTATIONS
from commtrace.analysis.core.tables.events import CPU_OPERATORS, RUNTIME_CALLS
from commtrace.analysis.metrics.device.idle import HostTables
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import load_run

NAMES = ("cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc", "cudaMemcpy")
OPERATORS = ("aten::mm", "fx (dynamo_timed)")
MARKS = ("enumerate(DataLoader)#x", "c10d::send", "c10d::barrier", "gloo:send", "fx (dynamo_timed)", "Python GC")
TIMES = st.integers(0, 30)
Drawn = tuple[list[Row], list[Row], list[Row], list[Row]]


def detailed(folder: Path, *traces: Trace) -> Analysis:
    for trace in traces:
        trace.write(folder)
    return Analysis(load_run([folder], details=True))


def call(trace: Trace, name: str, start: int, dur: int, *, tid: int = 4242, cat: str = "cuda_runtime") -> Trace:
    return trace.event(cat, name, start, dur, tid=tid, correlation=90_000 + len(trace.events))


def only(table: pd.DataFrame) -> Row:
    (row,) = records(table)
    return row


def gap(*, launch: int | None = 190 * US, thread: int = 4242) -> Trace:
    """A device that is idle from 100 to 200 us; the call that ends the gap takes 5 us."""
    return Trace().kernel("gemm", 0, 100 * US).kernel("gemm", 200 * US, 50 * US, launch=launch, thread=thread)


@st.composite
def tables(draw: st.DrawFn) -> Drawn:
    """Activities, calls, operators and annotations of one rank, at small times."""
    event = {"rank": 0, "cycle": 0}

    def events(most: int) -> list[Row]:
        return [
            {
                **event,
                "thread": draw(st.sampled_from((1, 2))),
                "start_ns": draw(TIMES),
                "dur_ns": draw(st.integers(0, 9)),
            }
            for _ in range(draw(st.integers(0, most)))
        ]

    calls = [
        {**row, "name": draw(st.sampled_from(NAMES)), "correlation": draw(st.none() | st.integers(1, 6))}
        for row in events(8)
    ]
    operators = [{**row, "name": draw(st.sampled_from(OPERATORS))} for row in events(4)]
    marks = [{**row, "name": draw(st.sampled_from(MARKS))} for row in events(6)]
    steps = st.none() | st.integers(1, 3)
    activities = [
        {
            **event, "device": "0", "stream": 7, "kind": "compute", "name": "gemm", "start_ns": draw(TIMES),
            "dur_ns": draw(st.integers(0, 6)), "correlation": draw(st.none() | st.integers(1, 6)), "step": draw(steps),
        }
        for _ in range(draw(st.integers(1, 7)))
    ]  # fmt: skip
    return activities, calls, operators, marks


def as_tables(drawn: Drawn) -> tuple[pd.DataFrame, HostTables]:
    """The activities, and what the host did; one operator of another thread makes them known."""
    activities, calls, operators, marks = drawn
    known = {"rank": 0, "cycle": 0, "thread": 3, "name": "", "start_ns": 0, "dur_ns": 1}
    host = HostTables(
        RUNTIME_CALLS.frame(calls),
        CPU_OPERATORS.frame([*operators, known]),
        ANNOTATIONS.frame(marks),
        True,
        any(mark["name"] == PYTHON_GC for mark in marks),
    )
    return activities_table(activities), host
