"""How many launches wait on streams, on traces built in memory, in tables and in the timeline."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from builders import US, Trace
from hypothesis import given
from hypothesis import strategies as st
from perfetto_reading import ReadTrack, tracks_of

from commtrace.analysis.core.schema import records
from commtrace.analysis.metrics.device.queues import depth_of
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.tables.queue_depth import FULL
from commtrace.analysis.timeline.drawing import run_timeline
from commtrace.cli import main


def of_trace(folder: Path, *traces: Trace) -> Analysis:
    for trace in traces:
        trace.write(folder)
    return analyse(folder)


def ahead() -> Trace:
    """Two launches wait from 20 on, one from 100 on, none from 150 to 250; the last one waits for 50 us."""
    trace = Trace().kernel("a", 0, 100 * US).kernel("b", 100 * US, 50 * US, launch=10 * US)
    trace.kernel("c", 150 * US, 50 * US, launch=20 * US)
    return trace.kernel("d", 300 * US, 100 * US, launch=250 * US)


def times(result: Analysis, **where: object) -> list[tuple[int, int]]:
    """Times from the first activity, in us, and how many wait from then on."""
    zero = int(result.run.activities["start_ns"].min())
    rows = [r for r in records(result.queue_times) if all(r[key] == value for key, value in where.items())]
    return [((row["time_ns"] - zero) // US, row["depth"]) for row in rows]


def test_depth_over_time_and_in_sum(tmp_path):
    result = of_trace(tmp_path, ahead())
    assert times(result) == [(0, 0), (10, 1), (20, 2), (100, 1), (150, 0), (250, 1), (300, 0)]
    (row,) = records(result.queue)
    assert (row["window_ns"], row["launches"], row["unlaunched"], row["note"]) == (400 * US, 4, 0, None)
    assert (row["max_depth"], row["empty_ns"], row["full_ns"]) == (2, 210 * US, 0)
    assert row["mean_depth"] == (1 * 10 + 2 * 80 + 1 * 50 + 1 * 50) / 400


def test_launches_before_the_window_wait_from_its_beginning(tmp_path):
    trace = Trace().kernel("a", 100 * US, 10 * US, launch=0).kernel("b", 120 * US, 10 * US, launch=5 * US)
    result = of_trace(tmp_path, trace)
    assert times(result) == [(0, 1), (20, 0)]
    assert result.queue["empty_ns"].tolist() == [10 * US]


def test_streams_and_devices_have_queues_of_their_own(tmp_path):
    trace = ahead().kernel("copy", 40 * US, US, launch=30 * US, stream=9)
    trace.kernel("e", 60 * US, 5 * US, launch=50 * US, device=1)
    result = of_trace(tmp_path, trace)
    assert [(r["device"], r["stream"], r["max_depth"]) for r in records(result.queue)] == [
        ("0", 7, 2), ("0", 9, 1), ("1", 7, 0),
    ]  # fmt: skip
    assert times(result, device="0", stream=9) == [(0, 0), (30, 1), (40, 0)]


def test_a_graph_waits_once(tmp_path):
    trace = Trace()
    trace.event("cuda_runtime", "cudaGraphLaunch", 10 * US, 5 * US, tid=4242, correlation=5)
    for start, stream in ((0, 7), (30, 7), (40, 7), (50, 8)):
        trace.event("kernel", "k", start * US, 5 * US, pid=0, tid=7, device=0, stream=stream,
                    correlation=5 if start else 0)  # fmt: skip
    result = of_trace(tmp_path, trace)
    assert times(result, stream=7) == [(0, 0), (10, 1), (30, 0)]
    assert times(result, stream=8) == [(0, 0), (10, 1), (50, 0)]
    assert result.queue["launches"].tolist() == [1, 1]


def test_a_kernel_that_begins_before_its_call_never_waits(tmp_path):
    result = of_trace(tmp_path, Trace().kernel("a", 0, 10 * US).kernel("b", 20 * US, 10 * US, launch=25 * US))
    assert times(result) == [(0, 0)]


def test_a_full_queue(tmp_path):
    trace = Trace().kernel("long", 0, 5_000 * US)
    for number in range(FULL):
        trace.kernel("k", (5_000 + number) * US, 500, launch=(1 + number) * US)
    (row,) = records(of_trace(tmp_path, trace).queue)
    assert (row["max_depth"], row["full_ns"]) == (FULL, (5_000 - FULL) * US)


@pytest.mark.parametrize(("name", "known"), [("NVIDIA H100", True), ("AMD Instinct MI300X", False)])
def test_only_of_cuda_it_is_known_how_much_room_a_stream_has(tmp_path, name, known):
    trace = ahead()
    trace.device_names = (name,)
    (row,) = records(of_trace(tmp_path, trace).queue)
    assert (row["full_ns"] is not None, row["note"] is None) == (known, known)


def test_what_is_not_known_of_launches(tmp_path):
    trace = ahead().kernel("early", 500 * US, US, launch=None)
    first, second = records(of_trace(tmp_path, trace.kernel("other", 0, US, launch=None, stream=8)).queue)
    assert (first["unlaunched"], first["max_depth"]) == (1, 2)
    assert "more may have waited" in first["note"]
    assert {second[name] for name in ("mean_depth", "max_depth", "empty_ns", "full_ns")} == {None}
    assert "no launch" in second["note"]


def test_a_cpu_has_no_queue(tmp_path, capsys):
    Trace(backend="gloo", device_names=()).op("aten::mm", 0, US).write(tmp_path)
    assert main(["table", "queue", str(tmp_path)]) == 1
    assert "have no launches" in capsys.readouterr().err


def test_the_commands_also_on_recordings_without_details(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    ahead().write(run)
    assert main(["pack", "-o", str(tmp_path / "packed"), str(run)]) == 0
    for folder in (run, tmp_path / "packed"):
        for args, rows in (([], 1), (["--by", "time"], 7)):
            capsys.readouterr()
            assert main(["table", "queue", *args, "--format", "csv", str(folder)]) == 0
            assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == rows


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=8))
def test_every_tick_counts_what_waits(waits):
    called, begun = (np.array([wait[n] for wait in waits], dtype=np.int64) for n in (0, 1))
    for first in (0, 3):
        time_ns, depth = depth_of(called, begun).within(first, 21)
        for tick in range(first, 21):
            result = depth[np.searchsorted(time_ns, tick, side="right") - 1]
            assert result == sum(call <= tick < begin for call, begin in waits)


# --- the timeline ----------------------------------------------------------------------------------------------------


def counters(result: Analysis, **choice: list[int]) -> list[ReadTrack]:
    tracks = tracks_of(b"".join(run_timeline(result, **choice).parts))
    return [track for track in tracks if track.name.startswith("queue depth")]


def test_the_timeline_has_a_counter_for_each_stream(tmp_path):
    result = of_trace(tmp_path, ahead().kernel("copy", 40 * US, US, launch=30 * US, stream=9))
    shown = counters(result)
    assert [(track.group, track.name, track.unit) for track in shown] == [
        ("rank 0", "queue depth GPU 0 stream 7", "launches"),
        ("rank 0", "queue depth GPU 0 stream 9", "launches"),
    ]
    for track, stream in zip(shown, (7, 9), strict=True):
        assert [(time // US, depth) for time, depth in track.points] == times(result, stream=stream)


def test_a_timeline_of_some_steps_has_the_counter_of_these(tmp_path):
    result = of_trace(tmp_path, ahead().step(1, 0, 15 * US).step(2, 15 * US, 240 * US).step(3, 240 * US, 400 * US))
    (track,) = counters(result, steps=[2])  # only the kernel from 150 to 200 us, in a step from 15 us on
    assert [(time // US, depth) for time, depth in track.points] == [(135, 0)]
    (track,) = counters(result, steps=[1, 2])
    assert [(time // US, depth) for time, depth in track.points] == times(result)[:5]


@pytest.mark.parametrize("rank", [0, 1])
def test_only_ranks_that_are_shown_have_counters(tmp_path, rank):
    first, two = ahead(), ahead()
    first.world = two.world = 2
    two.rank = 1
    assert {track.group for track in counters(of_trace(tmp_path, first, two), ranks=[rank])} == {f"rank {rank}"}
