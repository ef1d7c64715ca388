"""Counters of GPUs, as torch 2.14 writes them with `cupti_monitor`: by step, and by what the device did."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
from builders import LAYOUTS, MS, US, Trace
from perfetto_reading import tracks_of

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.timeline.drawing import run_timeline
from commtrace.cli import main

CLOCK, POWER = "SM Clock (MHz)", "Power (W)"


def two_steps() -> Trace:
    """Computes from 0 to 40 and from 100 to 140 ms, communicates from 30 to 60, copies from 60 to 65; steps of 100."""
    trace = Trace(0, 1).step(1, 0, 100 * MS).step(2, 100 * MS, 200 * MS)
    trace.kernel("gemm", 0, 40 * MS).nccl("all_reduce", 30 * MS, 30 * MS)
    trace.kernel("Memcpy HtoD (Pinned -> Device)", 60 * MS, 5 * MS, cat="gpu_memcpy")
    return trace.kernel("gemm", 100 * MS, 40 * MS)


def of(folder: Path, *traces: Trace, layout: str = "kineto", **options: object) -> list[Row]:
    for trace in traces:
        trace.write(folder, layout=layout)
    return records(analyse(folder, details=True, **options).counters)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_by_step_and_by_what_the_device_did(tmp_path, layout):
    trace = two_steps()
    for at, mhz in ((10, 1000), (35, 1100), (50, 1200), (62, 1300), (80, 1400), (110, 1900), (120, 1950)):
        trace.counter(CLOCK, at * MS, mhz)
    first, second = of(tmp_path, trace, layout=layout)
    assert (first["name"], first["unit"], first["device"], first["step"]) == ("SM Clock", "MHz", "0", 1)
    assert (first["samples"], first["mean"], first["max"]) == (5, 1200.0, 1400.0)
    assert first["while_compute_mean"] == 1050.0
    assert first["while_communication_mean"] == 1150.0
    assert first["while_idle_mean"] == 1400.0
    assert (second["step"], second["mean"], second["while_compute_mean"]) == (2, 1925.0, 1925.0)
    assert (second["while_communication_mean"], second["while_idle_mean"]) == (None, None)


@pytest.mark.parametrize(
    ("name", "shown", "unit"),
    [
        (POWER, "Power", "W"), ("Temperature (C)", "Temperature", "C"), ("Fan Speed (%)", "Fan Speed", "%"),
        ("NVLink RX", "NVLink RX", None), ("Cycles (Current Kernel)", "Cycles (Current Kernel)", None),
        ("sm__inst_executed.avg.per_cycle", "sm__inst_executed.avg.per_cycle", None), ("", "", None),
    ],
)  # fmt: skip
def test_the_unit_stands_in_the_name(tmp_path, name, shown, unit):
    (row,) = of(tmp_path, two_steps().counter(name, 10 * MS, 7))
    assert (row["name"], row["unit"], row["mean"]) == (shown, unit, 7.0)


def test_devices_and_ranks_are_told_apart(tmp_path):
    traces = []
    for rank in range(2):
        trace = Trace(rank, 2, device=rank).step(1, 0, 10 * MS).kernel("gemm", 0, 5 * MS)
        traces.append(trace.counter(CLOCK, 2 * MS, 1000 + rank, device=rank))
    rows = of(tmp_path, *traces)
    assert [(row["rank"], row["device"], row["while_compute_mean"]) for row in rows] == [
        (0, "0", 1000.0), (1, "1", 1001.0),
    ]  # fmt: skip


@pytest.mark.parametrize("value", [None, "1980", [1], {"of": 1}, float("nan")])
def test_a_value_that_is_no_number_is_left_out(tmp_path, value):
    trace = two_steps().counter(CLOCK, 10 * MS, 1000).counter(CLOCK, 20 * MS, value)
    (row,) = of(tmp_path, trace)
    assert (row["samples"], row["mean"]) == (1, 1000.0)


@pytest.mark.parametrize("pid", ["GPU x Counters", "GPU 0", 0, None, "GPU -1 Counters", "GPU 12345678901 Counters"])
def test_counters_of_anything_else_are_left_out(tmp_path, pid):
    trace = two_steps().counter(CLOCK, 10 * MS, 1000)
    trace.events.append({"ph": "C", "name": CLOCK, "pid": pid, "ts": 20_000.0, "args": {"": 5}})
    (row,) = of(tmp_path, trace)
    assert row["samples"] == 1


def test_without_steps_it_is_all_that_was_recorded(tmp_path):
    trace = Trace(0, 1).kernel("gemm", 0, 5 * MS).counter(CLOCK, 2 * MS, 1000).counter(CLOCK, 8 * MS, 2000)
    (row,) = of(tmp_path, trace)
    assert (row["step"], row["mean"], row["while_idle_mean"]) == (None, 1500.0, 2000.0)


def test_drawn_samples_against_sorting_them_by_hand(tmp_path):
    rng = random.Random(7)
    trace = Trace(0, 1)
    kernels, samples, at = [], [], 0
    for _ in range(60):
        at += rng.randrange(1, 400)
        took = rng.randrange(1, 300)
        is_comm = rng.random() < 0.4
        kernels.append((at, at + took, is_comm))
        if is_comm:
            trace.nccl("all_reduce", at * US, took * US, stream=20)
        else:
            trace.kernel("gemm", at * US, took * US)
        at += rng.choice((0, took))
    for moment in sorted(rng.sample(range(at), 200)):
        samples.append((moment, rng.randrange(200, 2000)))
        trace.counter(CLOCK, moment * US, samples[-1][1])

    def mean(wanted):
        chosen = [v for t, v in samples if wanted([c for b, e, c in kernels if b <= t < e])]
        return statistics.fmean(chosen)

    (row,) = of(tmp_path, trace)
    assert row["samples"] == 200
    assert row["while_compute_mean"] == pytest.approx(mean(lambda running: False in running))
    assert row["while_communication_mean"] == pytest.approx(mean(lambda running: True in running))
    assert row["while_idle_mean"] == pytest.approx(mean(lambda running: not running))


def test_recordings_keep_them(tmp_path):
    trace = two_steps()
    for at in range(0, 150, 3):
        trace.counter(CLOCK, at * MS, 1000 + at).counter(POWER, at * MS, 300.5 + at)
    trace.write(tmp_path / "run")
    assert main(["pack", "-o", str(tmp_path / "small"), str(tmp_path / "run")]) == 0
    there, here = (analyse(tmp_path / name, details=True) for name in ("run", "small"))
    assert len(there.counters) == 4
    assert as_csv("counters", here.counters) == as_csv("counters", there.counters)


def test_the_timeline_draws_them(tmp_path):
    trace = two_steps()
    for at in (10, 20, 120):
        trace.counter(CLOCK, at * MS, 1000 + at).counter(POWER, at * MS, 300)
    trace.counter(CLOCK, 10_000 * MS, 5)  # long after the last step
    trace.write(tmp_path)
    drawn = run_timeline(analyse(tmp_path, details=True))
    tracks = {track.name: track for track in tracks_of(b"".join(drawn.parts))}
    (clock,) = (track for name, track in tracks.items() if "SM Clock GPU 0" in name)
    assert [value for _, value in clock.points] == [1010, 1020, 1120]
    first, second, _ = (time for time, _ in clock.points)
    assert second - first == 10 * MS
    assert any("Power GPU 0" in name for name in tracks)


def test_the_command_prints_them(tmp_path, capsys):
    two_steps().counter(CLOCK, 10 * MS, 1980).write(tmp_path)
    assert main(["table", "counters", "--no-cache", "--format", "csv", str(tmp_path)]) == 0
    _, row = capsys.readouterr().out.splitlines()
    assert row.startswith("0,0,SM Clock,MHz,1,1,1980.0,1980.0,1980.0,")


def test_a_run_without_counters_says_how_to_get_them(tmp_path, capsys):
    two_steps().write(tmp_path)
    assert main(["table", "counters", "--no-cache", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "cupti_monitor" in out + err
