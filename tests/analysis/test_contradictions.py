"""Events of a GPU that cannot all be true are counted once, or said; what streams really do is not."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest
from builders import MS, US, Trace

from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import MixedJobs
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


@pytest.mark.slow_cases("0")
@pytest.mark.parametrize("rank", [0, 1])
def test_what_rests_on_a_file_that_contradicts_itself_is_partial(tmp_path, capsys, rank):
    for number in (0, 1):
        trace = drawn_trace(random.Random(number))
        trace.rank, trace.world = number, 2
        if number == rank:
            kernels_of(trace)[0]["dur"] = 9_000.0
        trace.write(tmp_path, f"rank{number}.json.gz")
    found = Analysis(load_run([tmp_path]))
    assert {row["rank"]: row["partial"] for row in records(found.breakdown)} == {rank: True, 1 - rank: False}
    assert found.run.partial_ranks == [rank]
    assert main(["summary", "--all", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 traces, 1 that contradict themselves" in shown
    assert f"rank {rank} is partial: kernels of one stream ran at the same time, so times are wrong" in shown


def test_one_short_kernel_of_many_makes_nothing_partial(tmp_path):
    trace = drawn_trace(random.Random(2))
    last = kernels_of(trace)[-2]
    trace.kernel("tiny", int(last["ts"] * US) + 5 * US, 10 * US, launch=None, stream=last["args"]["stream"])
    trace.write(tmp_path)
    run = load_run([tmp_path])
    assert "1 kernel began before its stream was free, by up to 0.010 ms (tiny, stream 9)" in " ".join(run.notes)
    assert run.partial_ranks == []


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
def test_kernels_that_begin_before_their_launch_are_counted(tmp_path, seed):
    drawn = random.Random(seed)
    trace = drawn_trace(drawn)
    launches = {e["args"]["correlation"]: e for e in trace.events if e["cat"] == "cuda_runtime"}
    early = drawn.sample(kernels_of(trace), drawn.randint(1, 9))
    by_us = [drawn.randint(1_100, 9_000) for _ in early]
    for kernel, us in zip(early, by_us, strict=True):
        launches[kernel["args"]["correlation"]]["ts"] = round(kernel["ts"] + us, 3)
    trace.write(tmp_path)
    events = (
        "1 GPU event began before the call that launched it"
        if len(early) == 1
        else (f"{len(early)} GPU events began before the call that launched them")
    )
    (note,) = [note for note in load_run([tmp_path]).notes if "began before the call" in note]
    assert note.startswith(f"{NAME}: {events}, by up to {max(by_us) / 1000:.3f} ms: ")


def test_clocks_that_differ_a_little_are_not_said(tmp_path):
    trace = Trace().kernel("gemm", 0, MS, launch=MS // 10).kernel("gemm", 2 * MS, MS, launch=None)
    trace.write(tmp_path)
    assert not [note for note in load_run([tmp_path]).notes if "began before the call" in note]


@pytest.mark.quick_cases("0")
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


@pytest.mark.parametrize("seed", range(3))
def test_two_ranks_with_the_same_events_are_said(tmp_path, seed):
    drawn = random.Random(seed)
    ranks = drawn.randint(3, 5)
    traces = [drawn_trace(random.Random(100 * seed + rank)) for rank in range(ranks)]
    for rank, trace in enumerate(traces):
        trace.rank, trace.world, trace.pid = rank, ranks, 1000 + rank
    copied, copy = drawn.sample(range(ranks), 2)
    traces[copy].events, traces[copy].pid = traces[copied].events, traces[copied].pid
    for rank, trace in enumerate(traces):
        trace.write(tmp_path, f"rank{rank}.json.gz")
    first, second = sorted((copied, copy))
    both = f"{first}-{second}" if second == first + 1 else f"{first}, {second}"
    [said] = [note for note in load_run([tmp_path]).notes if "the same events" in note]
    assert said.startswith(f"ranks {both}: their files hold the same events at the same times, to the nanosecond")


def test_a_cycle_that_is_there_under_two_names_is_refused(tmp_path):
    trace = drawn_trace(random.Random(7))
    for name in ("node_0.1.pt.trace.json", "node_0.2.pt.trace.json"):
        trace.write(tmp_path, name, gz=False)
    with pytest.raises(MixedJobs, match="of rank 0, hold the same events"):
        load_run([tmp_path])
