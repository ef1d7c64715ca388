"""Events of a GPU that cannot all be true are counted once, or said; what streams really do is not."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest
from builders import MS, US, Trace

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import load_run
from commtrace.cli import main

NAME = "node_0.0001.pt.trace.json.gz"
SAID = re.compile(rf"{re.escape(NAME)}: ([0-9,]+) kernels? began before .* stream was free, by up to (\S+) ms")


def drawn_trace(drawn: random.Random, streams: int = 3) -> Trace:
    """Kernels of 20 to 500 us on streams that are never free for more than 5 us, in a step."""
    trace, ends = Trace(), []
    for stream in range(7, 7 + streams):
        at = drawn.randint(0, 50) * US
        for number in range(drawn.randint(20, 40)):
            dur = drawn.randint(20, 500) * US
            trace.kernel(f"gemm{number % 5}", at, dur, launch=max(at - 9 * US, 0), stream=stream)
            at += dur + drawn.randint(0, 5_000)
        ends.append(at)
    return trace.step(1, 0, max(ends))


def kernels_of(trace: Trace) -> list[dict]:
    return [event for event in trace.events if event["cat"] == "kernel"]


def said(trace: Trace, folder: Path) -> tuple[int, float]:
    """How many kernels are said to begin too early, and by how much at most, in ms."""
    trace.write(folder)
    found = [SAID.match(note) for note in load_run([folder]).notes]
    matched = [match for match in found if match]
    return (int(matched[0][1].replace(",", "")), float(matched[0][2])) if matched else (0, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_kernels_that_last_into_later_ones_of_their_stream_are_counted(tmp_path, seed):
    drawn = random.Random(seed)
    trace = drawn_trace(drawn)
    stream = drawn.randint(7, 9)
    own = [event for event in kernels_of(trace) if event["args"]["stream"] == stream]
    first = drawn.randrange(len(own) - 6)
    covered = drawn.randint(1, 5)
    # It lasts until the last of them is over, and a little longer, when the next one has begun at most 5 us ago.
    end = own[first + covered]["ts"] + own[first + covered]["dur"]
    own[first]["dur"] = round(end + 3 - own[first]["ts"], 3)
    count, longest_ms = said(trace, tmp_path)
    assert count in (covered, covered + 1)
    longest_us = max(one["dur"] for one in own[first + 1 : first + 1 + covered])
    assert longest_ms == pytest.approx(longest_us / 1000, abs=0.001)


@pytest.mark.parametrize("seed", range(4))
def test_kernels_moved_into_others_are_counted(tmp_path, seed):
    drawn = random.Random(seed)
    trace = drawn_trace(drawn)
    by_stream = [[event for event in kernels_of(trace) if event["args"]["stream"] == stream] for stream in (7, 8, 9)]
    count = drawn.randint(1, 3)
    for own in by_stream[:count]:
        at = drawn.randrange(1, len(own) - 1)
        own[at]["dur"], own[at - 1]["dur"] = 120.0, 400.0
        own[at]["ts"] = round(own[at - 1]["ts"] + 200, 3)
        for number in range(at + 1, len(own)):  # the others wait as they should
            free_us = own[number - 1]["ts"] + own[number - 1]["dur"] + (80 if number == at + 1 else 0)
            own[number]["ts"] = round(free_us, 3)
    assert said(trace, tmp_path) == (count, 0.12)


@pytest.mark.parametrize("base_ns", [None, 1_759_300_074_000_000_000])
@pytest.mark.parametrize("seed", range(3))
def test_what_streams_do_is_not_said(tmp_path, seed, base_ns):
    drawn = random.Random(seed)
    trace = drawn_trace(drawn)
    trace.base_ns = base_ns
    kernels = kernels_of(trace)
    # Programmatic dependent launch: a kernel begins before the last blocks of the one before it have ended.
    for before, after in itertools.pairwise(kernels):
        if before["args"]["stream"] == after["args"]["stream"] and drawn.random() < 0.3:
            before["dur"] = round(after["ts"] - before["ts"] + min(drawn.uniform(0, 15), after["dur"] / 2), 3)
    trace.kernel("empty", int(kernels[0]["ts"] * US) + US, 0, launch=None)
    trace.memcpy("DtoD", int(kernels[0]["ts"] * US) + US, US, launch=None, stream=7)
    trace.kernel("gemm", int(kernels[0]["ts"] * US), 9 * MS, launch=None, stream=99)
    trace.kernel("gemm", int(kernels[0]["ts"] * US), 9 * MS, launch=None, stream=7, device=1)
    assert said(trace, tmp_path) == (0, 0.0)


def test_whole_microseconds_are_not_said(tmp_path):
    drawn, trace, at = random.Random(5), Trace(), 0
    for _ in range(300):
        dur = drawn.randint(300, 4_000)
        trace.kernel("small", at // US * US, -(-dur // US) * US, launch=None)
        at += dur
    assert said(trace, tmp_path) == (0, 0.0)


def test_parts_of_one_cuda_graph_may_run_at_the_same_time(tmp_path):
    trace = Trace().kernel("gemm", MS, 2 * MS)
    (kernel,) = kernels_of(trace)
    trace.events.append({**kernel, "name": "norm", "ts": kernel["ts"] + 200, "dur": 300.0})
    assert said(trace, tmp_path) == (0, 0.0)
    kernel["args"] = {**kernel["args"], "correlation": 77}
    assert said(trace, tmp_path) == (1, 0.3)


@pytest.mark.parametrize("seed", range(4))
def test_kernels_that_a_file_holds_twice_are_counted_once(tmp_path, seed, capsys):
    drawn = random.Random(seed)
    trace = drawn_trace(drawn)
    plain = trace.write(tmp_path / "plain")
    twice = drawn.sample(kernels_of(trace), count := drawn.randint(1, 20))
    trace.events += twice
    drawn.shuffle(trace.events)
    repeated = trace.write(tmp_path / "repeated")
    before, after = (Analysis(load_run([path], details=True)) for path in (plain, repeated))
    for table in ("breakdown", "breakdown_steps", "kernels", "operators"):
        assert records(getattr(after, table)) == records(getattr(before, table))
    capsys.readouterr()
    assert main(["breakdown", str(repeated)]) == 0
    events = "1 GPU event that repeats" if count == 1 else f"{count} GPU events that repeat"
    err = " ".join(capsys.readouterr().err.split())
    assert f"left out {events} another one, with the same name, stream, times and ids" in err


def test_a_whole_file_of_repeated_events_says_what_the_plain_one_says(tmp_path):
    trace = drawn_trace(random.Random(1)).nccl("all_reduce", 90 * MS, MS)
    plain = trace.write(tmp_path / "plain")
    trace.events *= 2
    repeated = trace.write(tmp_path / "repeated")
    before, after = (Analysis(load_run([path])) for path in (plain, repeated))
    for table in ("breakdown", "breakdown_steps", "calls", "kernels"):
        assert records(getattr(after, table)) == records(getattr(before, table))
