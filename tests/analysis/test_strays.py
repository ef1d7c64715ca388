"""Events without a true time are left out, and said; events that are merely early or late stay."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builders import BASE_NS, MS, US, Trace

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import load_run
from commtrace.analysis.run.run import Run
from commtrace.cli import main

HOUR = 3_600_000 * MS
YEAR = 8_766 * HOUR
NAME = "node_0.0001.pt.trace.json.gz"


def steps(begin: int, *, first: int = 0, base_ns: int | None = BASE_NS) -> Trace:
    """Three steps of 10 ms, each with a kernel of 5 ms that is launched 1 ms before."""
    trace = Trace(base_ns=base_ns)
    for number in range(3):
        at = begin + number * 10 * MS
        trace.step(first + number, at, at + 10 * MS).kernel("gemm", at + 2 * MS, 5 * MS, launch=at + MS)
    return trace


def read(trace: Trace, folder: Path, *, details: bool = False) -> Run:
    trace.write(folder)
    return load_run([folder], details=details)


def lengths_ms(run: Run) -> list[float]:
    return [row["window_ns"] / MS for row in records(Analysis(run).breakdown_steps)]


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("base_ns", [None, BASE_NS])
@pytest.mark.parametrize("seed", range(4))
def test_events_at_time_0_are_left_out_and_counted(tmp_path, seed, base_ns, details):
    drawn = random.Random(seed)
    # Since 1970, or since Kineto's zero, which is up to three months earlier.
    begin = BASE_NS if base_ns is None else drawn.randint(2 * HOUR, 2_000 * HOUR)
    trace = steps(begin, base_ns=base_ns)
    kernels, copies, marks = (drawn.randint(1, 9) for _ in range(3))
    for _ in range(kernels):
        trace.kernel("gemm", 0, 0, launch=begin + drawn.randint(0, 29 * MS))
    for _ in range(copies):
        trace.memcpy("HtoD", 0, drawn.randint(0, MS), launch=None)
    for _ in range(marks):
        trace.annotation("nccl:all_reduce", 0, 0)
    drawn.shuffle(trace.events)
    run = read(trace, tmp_path, details=details)
    assert lengths_ms(run) == [10.0, 10.0, 7.0]
    assert len(run.activities) == 3
    days = f"{(begin) / 86_400e9:,.0f} days" if begin >= 48 * HOUR else f"{begin / HOUR:,.1f} hours"
    counts = f"{kernels + copies} GPU events and {marks} annotation{'s' if marks > 1 else ''}"
    assert f"{NAME}: left out {counts} with an impossible time: 0, which is {days} before all others" in run.notes


@pytest.mark.parametrize("seed", range(4))
def test_kernels_long_before_their_launch_are_left_out(tmp_path, seed):
    drawn = random.Random(seed)
    trace = steps(drawn.randint(100, 100_000) * MS)
    begin = int(trace.events[0]["ts"] * US)
    for _ in range(count := drawn.randint(2, 9)):
        trace.kernel("gemm", drawn.randint(0, 9) * MS, 5 * US, launch=begin + drawn.randint(0, 29 * MS))
    run = read(trace, tmp_path)
    assert lengths_ms(run) == [10.0, 10.0, 7.0]
    (note,) = [note for note in run.notes if "left out" in note]
    assert note.startswith(f"{NAME}: left out {count} GPU events with an impossible time: ")
    assert note.endswith(" before the launch")


def test_both_are_left_out_of_one_file(tmp_path):
    trace = steps(9 * HOUR).kernel("gemm", 0, 0, launch=None)
    trace.kernel("gemm", 9 * HOUR - 60_000 * MS, MS, launch=9 * HOUR + MS)
    run = read(trace, tmp_path)
    assert lengths_ms(run) == [10.0, 10.0, 7.0]
    assert [note for note in run.notes if "left out" in note] == [
        f"{NAME}: left out 1 GPU event with an impossible time: 0, which is 9.0 hours before all others",
        f"{NAME}: left out 1 GPU event with an impossible time: 60.0 s before the launch",
    ]


def test_an_early_event_that_is_true_stays(tmp_path):
    # The program loads its data for ten seconds before a trace of 25 ms; a kernel was launched before the window.
    trace = steps(10_000 * MS).annotation("nccl:broadcast", 0, 3 * MS).kernel("fill", MS, MS, launch=None)
    run = read(trace, tmp_path)
    assert len(run.activities) == 4
    assert len(run.annotations) == 4
    assert not [note for note in run.notes if NAME in note]


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_events_years_away_from_all_others_are_left_out(tmp_path, seed, launched):
    drawn = random.Random(seed)
    side = drawn.choice((-1, 1))
    begin = drawn.randint(40, 60) * YEAR
    trace, at = steps(begin), begin + side * drawn.randint(2 * YEAR, 30 * YEAR)
    kernels, marks = drawn.randint(1, 2), drawn.randint(1, 2)
    for number in range(kernels):
        trace.kernel("gemm", at + number * MS, MS // 2, launch=begin + 20 * MS if launched else None)
    for number in range(marks):
        trace.annotation("nccl:all_reduce", at + number * MS, 9)
    drawn.shuffle(trace.events)
    run = read(trace, tmp_path)
    assert lengths_ms(run) == [10.0, 10.0, 7.0]
    (note,) = [note for note in run.notes if "left out" in note]
    assert f"left out {kernels} GPU event" in note
    assert f" and {marks} annotation" in note
    assert note.endswith(f" days {'before' if side < 0 else 'after'} all others")


def test_a_launch_years_later_costs_its_kernel_nothing(tmp_path):
    run = read(steps(0).kernel("gemm", 27 * MS, MS, launch=92 * YEAR), tmp_path)
    assert len(run.activities) == 4
    assert [note for note in run.notes if "left out" in note] == [
        f"{NAME}: left out 1 launch with an impossible time: 33,603 days after all others"
    ]


def test_a_profile_that_ended_years_later_ends_with_its_events(tmp_path):
    trace = steps(0)
    trace.events.append({"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 92 * YEAR / US})
    run = read(trace, tmp_path)
    assert run.traces["window_end_ns"].isna().all()
    assert f"{NAME}: left out the end of the profile, 33,603 days after all events" in run.notes


@pytest.mark.parametrize("seed", range(3))
def test_kernels_that_begin_an_hour_after_their_launch_are_left_out(tmp_path, seed):
    drawn = random.Random(seed)
    trace, hours = steps(0), drawn.randint(3, 40)
    for number in range(count := drawn.randint(1, 5)):
        trace.kernel("gemm", hours * HOUR + number * MS, MS, launch=drawn.randint(0, 29) * MS)
    run = read(trace, tmp_path)
    assert lengths_ms(run) == [10.0, 10.0, 7.0]
    (note,) = [note for note in run.notes if "left out" in note]
    assert f"left out {count} GPU event" in note
    assert note.endswith(" after the launch, and nothing in between")


def test_a_clock_of_a_gpu_that_is_behind_moves_nothing(tmp_path):
    run = read(Trace().kernel("gemm", 0, 5 * US, launch=2 * MS), tmp_path)
    assert len(run.activities) == 1


@pytest.mark.parametrize("between", [60_000 * MS, 5 * HOUR, 90 * 24 * HOUR])
def test_two_cycles_in_one_file_stay(tmp_path, between):
    trace, second = steps(0), steps(between, first=10)
    trace.events += second.events
    run = read(trace, tmp_path)
    assert len(run.activities) == 6
    said = [note for note in run.notes if "with nothing" in note]
    assert len(said) == (between > HOUR)
    assert not any("left out" in note for note in run.notes)


def test_an_event_long_after_all_others_is_said_and_stays(tmp_path):
    run = read(steps(0).kernel("gemm", 240 * HOUR, MS, launch=None), tmp_path)
    assert len(run.activities) == 4
    because = "a pause of the program, or times that are wrong"
    assert f"{NAME}: between its first and its last events lie 10 days with nothing: {because}" in run.notes


@pytest.mark.slow
def test_a_command_leaves_them_out_as_well(tmp_path, capsys):
    trace = steps(2_000 * HOUR)
    plain = trace.write(tmp_path / "plain")
    stray = trace.kernel("gemm", 0, 0, launch=None).write(tmp_path / "stray")
    assert records(Analysis(load_run([stray])).breakdown) == records(Analysis(load_run([plain])).breakdown)
    assert main(["breakdown", str(stray)]) == 0
    assert "left out 1 GPU event with an impossible time" in capsys.readouterr().err


def test_a_recording_says_the_same(tmp_path, capsys):
    path = steps(2_000 * HOUR).kernel("gemm", 0, 0, launch=None).write(tmp_path)
    recorded = tmp_path / "trace.ctrace"
    assert main(["pack", str(path), "-o", str(recorded)]) == 0
    capsys.readouterr()
    notes = load_run([recorded]).notes
    assert sum("left out 1 GPU event" in note for note in notes) == 1
