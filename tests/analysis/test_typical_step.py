"""Which steps count, what a step consists of, and what the verdict says of idle time and of long steps."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from builders import MS, US, Collective, Trace, analysed, traces_of

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.metrics.typical_step import STEP_PARTS
from commtrace.analysis.render.screen import Screen
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.show.overview import overview

DATA = Path(__file__).parents[1] / "data"
PERIOD = 20 * MS


def steps_of(found: Analysis) -> dict[int, str | None]:
    return {row["step"]: row["left_out"] for row in records(found.steps)}


def run_row(found: Analysis) -> Row:
    return records(found.verdicts)[0]


def stepped(busy: list[int], cpu: list[int] | None = None) -> Trace:
    """A device busy for these times, step after step without a gap; its CPU takes as long, or `cpu`."""
    trace, start, on_cpu = Trace(), 0, 0
    for number, dur in enumerate(busy):
        own = dur if cpu is None else cpu[number]
        trace.step(number, on_cpu, on_cpu + own).kernel("gemm", start, dur, launch=on_cpu)
        start, on_cpu = start + dur, on_cpu + own
    return trace


@pytest.mark.parametrize(
    ("busy", "cpu", "left_out"),
    [
        ([10, 10, 10, 10], None, {}),
        ([10, 10, 10, 16], [10, 10, 10, 10], {3: "drain"}),
        ([4, 10, 10, 10], [10, 10, 10, 10], {0: "beginning"}),
        ([10, 10, 10, 6], [10, 10, 10, 10], {3: "end"}),
        # The device runs behind its CPU in every step: that is no drain.
        ([10, 10, 10, 10], [2, 2, 2, 2], {}),
        ([10, 10, 60, 10, 10], None, {2: "long"}),
        ([10, 3, 10, 10, 10], None, {1: "short"}),
        # As many of one length as of the other: none is usual.
        ([10, 30, 10, 30], None, {}),
        ([10], None, {}),
        # Windows of no length are no measure for others.
        ([10, 0, 0], [10, 10, 10], {2: "end"}),
        # All there is, whatever it lacks.
        ([4], [10], {}),
    ],
)
def test_which_steps_count(tmp_path: Path, busy: list[int], cpu: list[int] | None, left_out: dict[int, str]) -> None:
    found = analysed(tmp_path, stepped([ms * MS for ms in busy], cpu and [ms * MS for ms in cpu]))
    assert {step: why for step, why in steps_of(found).items() if why} == left_out
    lengths = [ms for step, ms in enumerate(busy) if step not in left_out]
    assert found.typical_step.parts["window_ns"] == pytest.approx(sum(lengths) / len(lengths) * MS)


@pytest.mark.slow
def test_steps_that_differ_are_listed_one_by_one(tmp_path: Path) -> None:
    text = overview(analysed(tmp_path, stepped([10 * MS, 30 * MS])))
    assert "Steps 0-1 take 10.0 and 30.0 ms, on average 20.0 ms" in text
    assert "Step 1 takes 30.0 ms instead of 10.0: devices compute 20.0 ms longer." in text.replace("\n", " ")


@pytest.mark.slow
def test_parts_add_up_to_the_step_on_every_run_of_the_tests() -> None:
    for folder in sorted({file.parent for file in DATA.glob("*/*.pt.trace.json.gz")}):
        for row in records(analyse(folder).steps):
            assert sum(row[part] for part in STEP_PARTS) == row["window_ns"]
            assert row["shortest_ns"] <= row["window_ns"] + 1
            assert row["window_ns"] <= row["longest_ns"] + 1


@pytest.mark.slow
def test_an_event_says_who_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    """Rank 1 is 50 ms late in one of six steps."""
    late = [50 * MS if k == 2 else 0 for k in range(6)]
    begins = [k * PERIOD + sum(late[:k]) for k in range(7)]
    truth = [Collective([begins[k] + 15 * MS, begins[k] + 15 * MS + late[k]], 2 * MS) for k in range(6)]
    traces = traces_of(2, truth, host="node")
    for rank, trace in enumerate(traces):
        for k in range(6):
            trace.step(k, begins[k], begins[k + 1])
            trace.kernel("gemm", begins[k], 14 * MS + (late[k] if rank == 1 else 0))
            trace.kernel("adam", begins[k + 1] - 2 * MS, 2 * MS)
    found = analysed(tmp_path, *traces)
    assert steps_of(found) == {0: None, 1: None, 2: "long", 3: None, 4: None, 5: None}
    run = run_row(found)
    assert "Step 2 takes 70.0 ms instead of 20.0, and is not counted: " in run["because"]
    assert "rank 1" in run["because"]
    assert "rank 1" not in run["because"].partition("Step 2 takes")[0]
    assert "A step takes 20.0 ms" in overview(found)


# --- idle ------------------------------------------------------------------------------------------------------------


def gaps(thread_does: str, *, count: int = 4) -> Trace:
    """Every 10 ms the device computes for 2 ms; before the launch the CPU spends 7 ms on something."""
    trace = Trace()
    for k in range(count):
        begin = k * 10 * MS
        trace.step(k, begin, begin + 10 * MS).op("aten::empty", begin, 10 * US)
        if thread_does == "data":
            trace.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin + 2 * MS, 7 * MS)
        elif thread_does.startswith("cuda"):
            trace.event("cuda_runtime", thread_does, begin + 2 * MS, 7 * MS, tid=4242, correlation=90_000 + k)
        elif thread_does:
            trace.op(thread_does, begin + 2 * MS, 7 * MS)
        trace.kernel("gemm", begin + 10 * MS, 2 * MS, launch=begin + 9 * MS + MS // 2)
    return trace


@pytest.mark.slow_cases(
    "cudaMalloc-allocator-bound-allocating or freeing memory", "cudaStreamSynchronize-sync-bound-in blocking calls"
)
@pytest.mark.parametrize(
    ("thread_does", "verdict", "words"),
    [
        ("cudaStreamSynchronize", "sync-bound", "in blocking calls"),
        ("cudaMalloc", "allocator-bound", "allocating or freeing memory"),
        ("data", "input-bound", "waiting for a batch"),
        ("aten::item", "host-bound", "in operators"),
        ("", "host-bound", "in Python outside of operators"),
    ],
)
def test_idle_time_is_named_after_its_cause(tmp_path: Path, thread_does: str, verdict: str, words: str) -> None:
    gaps(thread_does).write(tmp_path)
    run = run_row(analyse(tmp_path, details=True))
    assert run["verdict"] == verdict
    assert run["because"].startswith("Devices are idle for ")
    assert words in run["because"]


def test_without_calls_of_the_runtime_idle_is_all_that_is_said(tmp_path: Path) -> None:
    gaps("cudaMalloc").write(tmp_path)
    run = run_row(analyse(tmp_path, details=False))
    assert run["verdict"] == "idle"
    assert "CPU" not in run["because"]


def test_calls_that_make_a_step_long_are_counted(tmp_path: Path) -> None:
    trace, start = Trace(), 0
    for k in range(5):
        more = 40 * MS if k == 2 else 0
        trace.step(k, start, start + 10 * MS + more)
        if more:
            for n in range(4):
                trace.event("cuda_runtime", "cudaFree", start + n * 10 * MS, 9 * MS, tid=4242, correlation=90_000 + n)
        trace.kernel("gemm", start + more, 9 * MS, launch=start + more)
        start += 10 * MS + more
    trace.write(tmp_path)
    found = analyse(tmp_path, details=True)
    assert "4 cudaFree take 36.0 ms on rank 0" in run_row(found)["because"]


# --- what is not known -----------------------------------------------------------------------------------------------


def test_a_rank_alone_without_communication_lacks_nothing(tmp_path: Path) -> None:
    trace = Trace(world=None, backend=None).step(0, 0, 10 * MS).kernel("gemm", 0, 5 * MS).kernel("gemm", 9 * MS, MS)
    assert run_row(analysed(tmp_path, trace))["not_known"] is None


@pytest.mark.slow
def test_a_size_seen_by_some_ranks_is_the_least(tmp_path: Path) -> None:
    """Rank 2 is late in a group of all, of which rank 3 has no trace, and in one of ranks 0 to 2."""
    groups = {"0": (0, 1, 2, 3), "1": (0, 1, 2)}
    traces = [Trace(rank, 4, groups=groups, host="node").step(0, 0, 60 * MS) for rank in range(3)]
    for rank, trace in enumerate(traces):
        for k, (group, ranks) in enumerate(groups.items()):
            begin, late = k * 30 * MS, 10 * MS if rank == 2 else 0
            trace.kernel("gemm", begin, 5 * MS + late)
            where = {"group": group, "ranks": ranks, "Seq": k}
            trace.nccl("all_reduce", begin + 5 * MS + late, 12 * MS - late, **where)
    found = analysed(tmp_path, *traces)
    screen = " ".join(overview(found).split())
    assert "Only 3 of 4 ranks have a trace, so " in run_row(found)["not_known"]
    assert "Who makes the others wait, in calls that could be split rank 2: " in screen
    assert "rank 2 as fast as the others, at least" in screen
    assert "every transfer hidden behind compute, at most" in screen
    assert "% of the 6.7 ms that could be split for rank 2" in run_row(found)["because"]


@pytest.mark.slow
def test_nobody_is_asked_to_mend_what_happened_before_the_trace(tmp_path: Path) -> None:
    """Rank 1 begins its only step late, and all it does from there on takes as long as elsewhere."""
    traces = traces_of(2, [Collective([2 * MS, 9 * MS], 2 * MS)], host="node")
    for rank, trace in enumerate(traces):
        trace.step(0, rank * 7 * MS, 12 * MS).kernel("gemm", rank * 7 * MS, 2 * MS)
    found = analysed(tmp_path, *traces)
    assert "begins the traced step 7.0 ms later" in run_row(found)["because"]
    assert not {"no_straggler", "no_jitter"} & set(found.remedies["remedy"])


def test_warnings_are_whole_or_not_there(tmp_path: Path) -> None:
    traces = traces_of(3, [Collective([0, 5 * MS, 0], 6 * MS)], host="node")
    text = overview(analysed(tmp_path, *traces[:2]), Screen(width=60))
    assert "..." not in text.partition("warning")[2].partition("More:")[0]
    assert "known only where other ranks show enough" in " ".join(text.split())


BESIDE = {"eval": "eval_ns", "checkpoint": "checkpoint_ns", "compile": "compile_ns"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BESIDE)
@pytest.mark.parametrize("seed", range(3))
def test_the_side_file_of_a_capture_says_what_else_a_step_held(tmp_path: Path, kind: str, seed: int) -> None:
    """Steps of about 60 ms, and a drawn one of 412 ms, most of it something else."""
    draw = random.Random(f"{kind} {seed}")
    lengths = [draw.randrange(55 * MS, 86 * MS, US) for _ in range(5)]
    other = draw.randrange(5)
    lengths[other] = 412 * MS
    trace, begin, steps = Trace(0, 1), 0, []
    for k, length in enumerate(lengths):
        trace.step(k, begin, begin + length).kernel("gemm", begin + US, length - 2 * US)
        counted = dict.fromkeys(("gc_ns", "ready_ns", *BESIDE.values()), 0) | {"wall_ns": length, "cpu_ns": length}
        work = counted | ({BESIDE[kind]: 340 * MS} if k == other else {"eval_ns": length // 20})
        steps.append({"step": k, "phase": "active", "dur_ns": length, "work": work})
        begin += length
    trace.write(tmp_path, "node_0.0.pt.trace.json")
    (tmp_path / "node_0.meta.json").write_text(json.dumps({"rank": 0, "steps": steps}))
    found = analyse(tmp_path)
    table = found.steps.set_index("step")
    assert table["kind"].dropna().to_dict() == {other: kind}
    assert table.loc[other, "left_out"] == "kind"
    assert f"{kind} step takes 412.0 ms" in " ".join(found.summary().split())
