"""What a late rank was doing: weighed by the time that it lost, whatever happens to have a name."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from builders import MS, US, Collective, Trace, analysed, traces_of

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse

EVERY, AT = 40 * MS, 7 * MS
PERIOD = 22 * MS
BACKWARD = 777
Busy = Callable[[Trace, int, int], None]


def run_of(
    folder: Path, busy: Busy, *, world: int = 4, late: int = 10 * MS, thread: int | None = None, details: bool = True
) -> Analysis:
    """In every step all ranks launch a kernel of 5 ms, then one of 1 ms before an all_reduce; rank 2 that one late.

    `busy(trace, at, lasts)` says what a CPU does before it launches the second, from the end of the first.
    """
    steps = range(4)
    truth = [Collective([k * EVERY + AT + 1 * MS + late * (rank == 2) for rank in range(world)], 2 * MS) for k in steps]
    traces = traces_of(world, truth)
    for rank, trace in enumerate(traces):
        for k in steps:
            begin, lasts = k * EVERY, late * (rank == 2)
            trace.step(k, begin, begin + EVERY)
            trace.kernel("gemm", begin + 1 * MS, 5 * MS)
            where = {} if thread is None else {"thread": thread}
            trace.kernel("gemm", begin + AT + lasts, 1 * MS, **where)
            trace.op("aten::mm", begin + 900 * US, 150 * US).op("aten::mm", begin + AT + lasts - 50 * US, 60 * US)
            busy(trace, begin + 6 * MS, 1 * MS + lasts)
    for rank, trace in enumerate(traces):
        trace.write(folder, f"node_{rank}.0.pt.trace.json")
    return analyse(folder, details=details)


def sentence(found: Analysis) -> str:
    return str(found.verdicts["because"].iloc[0])


def asleep_in(name: str) -> Busy:
    def busy(trace: Trace, at: int, lasts: int) -> None:
        trace.annotation(name, at + 100 * US, lasts - 200 * US)

    return busy


@pytest.mark.slow
@pytest.mark.parametrize("details", [True, False])
def test_a_sleep_in_a_range_outside_of_any_operator(tmp_path: Path, details: bool) -> None:
    found = run_of(tmp_path, asleep_in("# sparse arch"), details=details)
    text = (
        "launches its kernels 10.0 ms per step later than the others; its thread is in Python, outside of any operator"
    )
    assert f"{text}, inside `# sparse arch`." in sentence(found)
    assert "thread is in Python, outside of any operator, inside `# sparse arch`" in " ".join(found.summary().split())
    row = next(row for row in records(found.late_work) if row["kind"] == "work")
    assert (row["rank"], row["what"], row["range"]) == (2, "outside of any operator", "# sparse arch")
    assert row["extra_ns"] == pytest.approx(10 * MS, abs=1 * MS)


def work_of(wall_ns: int, *, blocked_ns: int = 0, ready_ns: int | None = 0, gc_ns: int = 0) -> dict[str, int | None]:
    """What a side file says of a step whose thread was blocked and ready for so long, and ran for the rest of it."""
    counted = dict.fromkeys(("eval_ns", "checkpoint_ns", "compile_ns"), 0)
    cpu_ns = wall_ns - blocked_ns - (ready_ns or 0)
    return {"wall_ns": wall_ns, "cpu_ns": cpu_ns, "ready_ns": ready_ns, "gc_ns": gc_ns, **counted}


def with_side_files(folder: Path, late_work: dict[str, int | None], world: int = 4) -> None:
    """The side files of `run_of`, whose rank 2 did that in each step, while threads of the others ran all the time."""
    for rank in range(world):
        work = late_work if rank == 2 else work_of(EVERY)
        steps = [{"step": k, "phase": "active", "start_unix_ns": 1, "dur_ns": EVERY, "work": work} for k in range(4)]
        side = {"schema_version": 1, "rank": rank, "world_size": world, "steps": steps}
        (folder / f"node_{rank}.meta.json").write_text(json.dumps(side))


IN_WORDS = {
    "blocked": "its thread is blocked in Python, outside of any operator",
    "computing": "its thread computes in Python, outside of any operator",
    "collecting garbage": "its thread collects garbage",
    "waiting for a CPU": "its thread mostly waits for a CPU, outside of any operator",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", IN_WORDS)
@pytest.mark.parametrize("seed", range(3))
def test_what_a_thread_does_in_python_is_said_where_a_side_file_counts_it(tmp_path: Path, what: str, seed: int) -> None:
    late = random.Random(f"{what} {seed}").randrange(8 * MS, 11 * MS, US)
    given = {"blocked": "blocked_ns", "waiting for a CPU": "ready_ns", "collecting garbage": "gc_ns"}
    counted = {given[what]: late} if what in given else {}
    with_side_files(tmp_path, work_of(EVERY, **counted))
    found = run_of(tmp_path, asleep_in("# sparse arch"), late=late)
    assert f"{IN_WORDS[what]}, inside `# sparse arch`" in sentence(found)
    table = found.late_work
    parts = table[table["kind"] == "python"].groupby("what")["extra_ns"].sum()
    outside = table[(table["kind"] == "operator") & (table["what"] == "outside of any operator")]["extra_ns"].sum()
    assert parts.idxmax() == what
    assert parts.sum() == pytest.approx(outside, rel=0.05)


@pytest.mark.slow
def test_two_things_that_a_thread_did_in_python(tmp_path: Path) -> None:
    with_side_files(tmp_path, work_of(EVERY, blocked_ns=7 * MS))
    assert "its thread is mostly blocked in Python, outside of" in sentence(run_of(tmp_path, asleep_in("range")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "unknown",
    [
        work_of(2 * EVERY, blocked_ns=10 * MS),  # another step than the one in the trace
        work_of(EVERY, blocked_ns=10 * MS, ready_ns=None),  # blocked, or without a CPU
    ],
)
def test_what_a_thread_does_in_python_is_left_open_where_counters_do_not_tell(
    tmp_path: Path, unknown: dict[str, int | None]
) -> None:
    with_side_files(tmp_path, unknown)
    found = run_of(tmp_path, asleep_in("range"))
    assert "its thread is in Python, outside of any operator, inside `range`" in sentence(found)
    assert "python" not in set(found.late_work["kind"])


@pytest.mark.slow
def test_differences_of_kind_work_add_up_to_that_of_the_total(tmp_path: Path) -> None:
    table = run_of(tmp_path, asleep_in("range")).late_work
    assert table["step"].nunique() == 4
    for _, own in table.groupby("step"):
        whole = own.loc[(own["kind"] == "total") & (own["what"] == "cpu"), "extra_ns"].item()
        assert own.loc[own["kind"] == "work", "extra_ns"].sum() == pytest.approx(whole, rel=0.03)


@pytest.mark.slow
def test_a_sleep_inside_an_operator(tmp_path: Path) -> None:
    def busy(trace: Trace, at: int, lasts: int) -> None:
        trace.annotation("forward", at, lasts - 100 * US).op("aten::index", at + 50 * US, lasts - 200 * US)

    assert "; its CPU is in `aten::index`, inside `forward`." in sentence(run_of(tmp_path, busy))


@pytest.mark.slow
def test_many_short_operators_do_not_outweigh_one_long_gap(tmp_path: Path) -> None:
    def busy(trace: Trace, at: int, lasts: int) -> None:
        for i in range(50 if lasts > 1 * MS else 1):
            trace.op("aten::empty", at + i * 30 * US, 20 * US)

    assert "; its thread is in Python, outside of any operator (" in sentence(run_of(tmp_path, busy))


@pytest.mark.slow
def test_many_short_operators_that_take_most_of_the_time_are_named(tmp_path: Path) -> None:
    def busy(trace: Trace, at: int, lasts: int) -> None:
        for start in range(at, at + lasts - 100 * US, 100 * US):
            trace.op("aten::cat", start, 95 * US)

    assert "; its CPU is in `aten::cat` (9" in sentence(run_of(tmp_path, busy))


@pytest.mark.slow
@pytest.mark.parametrize("as_range", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_of_nested_ones_the_innermost_that_takes_half_is_named(tmp_path: Path, seed: int, as_range: bool) -> None:
    """Whatever is around it takes more, and what it consists of is many things, the last of which began last."""
    rng = random.Random(seed)
    depth = rng.randrange(1, 4)
    shares = sorted((rng.uniform(0.6, 0.97) for _ in range(depth)), reverse=True)
    few = rng.randrange(5, 12)

    def busy(trace: Trace, at: int, lasts: int) -> None:
        if lasts < 5 * MS:
            return
        for number, share in enumerate(shares):
            name, begin, took = f"outer{number}", at + (number + 1) * 10 * US, int(share * (lasts - 200 * US))
            trace.annotation(name, begin, took) if as_range else trace.op(f"aten::{name}", begin, took)
        begin, part = at + (depth + 1) * 10 * US, (took - 20 * US * depth) // few
        for number in range(few):
            trace.op(f"aten::short{number}", begin + number * part, part)

    said = sentence(run_of(tmp_path, busy))
    named = f"inside `outer{depth - 1}`" if as_range else f"in `aten::outer{depth - 1}`"
    assert f"; its CPU is {named}" in said, said


@pytest.mark.slow
def test_blocking_calls_in_several_operators(tmp_path: Path) -> None:
    def busy(trace: Trace, at: int, lasts: int) -> None:
        part = (lasts - 100 * US) // 4
        for i in range(4):
            trace.op(f"aten::op{i}", at + i * part, part)
            trace.event("cuda_runtime", "cudaFree", at + i * part, part, correlation=10**6 + i)

    found = run_of(tmp_path, busy)
    assert "; its CPU is in `cudaFree`." in sentence(found)
    calls = [row for row in records(found.late_work) if row["kind"] == "call"]
    assert {row["what"] for row in calls} == {"cudaFree"}
    within = {
        row["operator"] for row in records(found.late_work) if row["kind"] == "work" and row["what"] == "cudaFree"
    }
    assert within == {f"aten::op{i}" for i in range(4)}


@pytest.mark.slow
def test_of_nested_ranges_the_inner_one_is_named(tmp_path: Path) -> None:
    def busy(trace: Trace, at: int, lasts: int) -> None:
        trace.annotation("outer", at, lasts - 50 * US).annotation("inner", at + 50 * US, lasts - 200 * US)

    found = run_of(tmp_path, busy)
    assert "inside `inner`" in sentence(found)
    assert {"outer", "inner"} <= {row["what"] for row in records(found.late_work) if row["kind"] == "range"}


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 20])
def test_the_module_is_named_where_no_range_is(tmp_path: Path, parts: int) -> None:
    def busy(trace: Trace, at: int, lasts: int) -> None:
        trace.event("python_function", "nn.Module: Net_0", at, lasts)
        trace.event("python_function", "nn.Module: Block_17", at + 20 * US, lasts - 100 * US)
        part = (lasts - 200 * US) // parts
        for i in range(parts):
            trace.op(f"aten::op{i}", at + 50 * US + i * part, part)

    found = run_of(tmp_path, busy)
    does = "in `aten::op0`, inside" if parts == 1 else "inside"
    assert f"; its CPU is {does} `Block_17`" in sentence(found)
    modules = {row["what"] for row in records(found.late_work) if row["kind"] == "module"}
    assert modules == {"Net_0", "Block_17"}


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "details"), [("layer", True), ("layer", False), ("all", True)])
def test_the_region_is_named_in_which_a_device_is_slow(tmp_path: Path, slow: str, details: bool) -> None:
    """Rank 2 computes 6 ms longer: in one layer of its backward pass; or everywhere, where no region says anything."""

    def lasts(rank: int, layer: int, phase: str) -> int:
        if slow == "all":
            return 2 * MS + MS * (rank == 2)
        return 2 * MS + 6 * MS * ((rank, layer, phase) == (2, 1, "backward"))

    truth = [Collective([k * PERIOD + 13 * MS + 6 * MS * (rank == 2) for rank in range(4)], 2 * MS) for k in range(4)]
    traces = traces_of(4, truth)
    for rank, trace in enumerate(traces):
        for k in range(4):
            begin, sequence = k * PERIOD, 10 * k
            trace.step(k, begin, begin + PERIOD)
            now, issued = begin + MS, begin
            trace.event("python_function", "nn.Module: Net_0", begin, 900 * US)
            for layer in range(3):
                trace.event("python_function", f"nn.Module: Block_{layer}", issued, 200 * US)
                numbers = {"Sequence number": sequence + layer, "Fwd thread id": 0}
                trace.event("cpu_op", "aten::mm", issued + 10 * US, 100 * US, **numbers)
                trace.kernel("gemm", now, lasts(rank, layer, "forward"), launch=issued + 20 * US)
                now, issued = now + lasts(rank, layer, "forward"), issued + 300 * US
            for layer in (2, 1, 0):
                numbers = {"Sequence number": sequence + layer, "Fwd thread id": 1}
                name = "autograd::engine::evaluate_function: MmBackward0"
                trace.event("cpu_op", name, issued, 100 * US, tid=BACKWARD, **numbers)
                trace.kernel("gemm", now, lasts(rank, layer, "backward"), launch=issued + 20 * US, thread=BACKWARD)
                now, issued = now + lasts(rank, layer, "backward"), issued + 300 * US
        trace.write(tmp_path, f"node_{rank}.pt.trace.json")
    found = analyse(tmp_path, details=details)
    where = ", inside `Net_0 > Block_1 (backward)`." if slow == "layer" else "."
    assert f"computes 6.0 ms per step longer than the others, mostly in gemm{where}" in sentence(found)
    if slow == "layer":
        rows = [row for row in records(found.late_work) if row["kind"] == "region" and row["step"] == 1]
        assert [(row["what"], row["extra_ns"]) for row in rows] == [
            ("Net_0 (backward)", 6 * MS),
            ("Net_0 > Block_1 (backward)", 6 * MS),
        ]


@pytest.mark.slow
def test_a_range_full_of_different_work_is_named(tmp_path: Path) -> None:
    def busy(trace: Trace, at: int, lasts: int) -> None:
        trace.annotation("Optimizer.step#Muon.step", at, lasts - 100 * US)
        part = (lasts - 200 * US) // 20
        for i in range(20):
            trace.op(f"aten::op{i}", at + 50 * US + i * part, part)

    assert "; its CPU is inside `Optimizer.step#Muon.step`." in sentence(run_of(tmp_path, busy))


@pytest.mark.slow
def test_a_busy_thread_that_launches_nothing_is_not_blamed(tmp_path: Path) -> None:
    def busy(trace: Trace, at: int, lasts: int) -> None:
        trace.annotation("waiting", at, lasts).op("aten::busy", at, lasts, thread=999)

    found = run_of(tmp_path, busy)
    assert "is in Python, outside of any operator, inside `waiting`" in sentence(found)
    assert "aten::busy" not in set(found.late_work["what"])


@pytest.mark.slow
def test_the_range_from_which_the_backward_pass_began_is_that_of_its_thread(tmp_path: Path) -> None:
    def busy(trace: Trace, at: int, lasts: int) -> None:
        trace.annotation("backward", at, lasts).op("aten::slow_backward", at, lasts - 50 * US, thread=BACKWARD)

    found = run_of(tmp_path, busy, thread=BACKWARD)
    assert "; its CPU is in `aten::slow_backward`, inside `backward`." in sentence(found)


@pytest.mark.slow
def test_hashes_of_compiled_graphs_differ_by_rank_and_are_left_out(tmp_path: Path) -> None:
    def busy(trace: Trace, at: int, lasts: int) -> None:
        name = f"## Call CompiledFxGraph f{trace.rank}2qbtfeekvnergtmmcekc67deitzxm5vsaptqqdzuikoeofhcb ##"
        trace.annotation(name, at, lasts)

    found = run_of(tmp_path, busy)
    assert "inside `## Call CompiledFxGraph ##`." in sentence(found)
    rows = [row for row in records(found.late_work) if row["kind"] == "range"]
    assert all(row["others_ns"] > 0 for row in rows)


@pytest.mark.slow
def test_no_kernel_stands_behind_a_cpu_that_is_late(tmp_path: Path) -> None:
    found = run_of(tmp_path, asleep_in("range"))
    assert found.ranks["kernel"].isna().all()
    assert "gemm" not in sentence(found)


@pytest.mark.slow
def test_without_anything_of_the_cpu_nothing_is_said_of_it(tmp_path: Path) -> None:
    truth = [Collective([k * EVERY + AT + 10 * MS * (r == 2) for r in range(4)], 2 * MS) for k in range(4)]
    found = analysed(tmp_path, *traces_of(4, truth))
    assert "its CPU" not in sentence(found)
    assert set(found.late_work["kind"]) <= {"total", "kernel"}


@pytest.mark.slow
def test_a_rank_that_begins_its_only_step_late(tmp_path: Path) -> None:
    late = 5 * MS
    traces = traces_of(4, [Collective([3 * MS + late * (rank == 1) for rank in range(4)], 1 * MS)])
    for rank, trace in enumerate(traces):
        trace.step(7, late * (rank == 1), 20 * MS).kernel("gemm", 1 * MS + late * (rank == 1), 2 * MS)
    found = analysed(tmp_path, *traces)
    assert "for rank 1, which begins the traced step 5.0 ms later than the others" in sentence(found)
    (row,) = records(found.lateness)
    assert (row["because"], row["extra_start_ns"], row["new_ns"]) == ("start", late, late)
    said = " ".join(found.summary().split())
    assert "Waiting for rank 1 takes 3.8 ms of " in said
    assert "Rank 1 begins the traced step " in said


@pytest.mark.slow
def test_what_happens_once_is_no_rate(tmp_path: Path) -> None:
    """At the end of step 2, after its all_reduce: the next one, in step 3, comes late."""
    steps, pause = range(5), 100 * MS
    begin = {k: k * EVERY + pause * (k > 2) for k in steps}
    truth = [Collective([begin[k] + 8 * MS + 0 * rank for rank in range(4)], 2 * MS) for k in steps]
    truth[3] = Collective([begin[3] + 8 * MS - pause * (rank != 1) for rank in range(4)], 2 * MS)
    traces = traces_of(4, truth)
    for rank, trace in enumerate(traces):
        for k in steps:
            shift = -pause if k == 3 and rank != 1 else 0
            end = begin.get(k + 1, begin[k] + EVERY) - pause * (k == 2 and rank != 1)
            trace.step(k, begin[k] + shift, end).kernel("gemm", begin[k] + 2 * MS + shift, 6 * MS)
        if rank == 1:
            trace.annotation("checkpoint", begin[2] + 15 * MS, pause)
    found = analysed(tmp_path, *traces)
    assert "for rank 1, which launches its kernels 100.0 ms later than the others" in sentence(found)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, 5])
def test_a_cause_before_the_first_step_is_not_in_the_mean_of_the_others(tmp_path: Path, steps: int) -> None:
    """Rank 2 sleeps after each step: what makes it late in the first one of the trace came before the trace."""
    late, begins = 10 * MS, [k * EVERY for k in range(steps)]
    truth = [Collective([at + 7 * MS + late * (rank == 2) for rank in range(4)], 2 * MS) for at in begins]
    for rank, trace in enumerate(traces_of(4, truth)):
        for k, at in enumerate(begins):
            begin = at + late * (rank == 2)
            trace.step(k, begin, begin + EVERY).kernel("gemm", begin + 1 * MS, 6 * MS)
            trace.op("aten::mm", begin + 900 * US, 150 * US)
        trace.write(tmp_path, f"node_{rank}.0.pt.trace.json")
    assert "launches its kernels 10.0 ms per step later than the others" in sentence(analyse(tmp_path, details=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_without_a_gpu_what_a_rank_does_longer_is_said_whatever_else_made_it_late(tmp_path: Path, seed: int) -> None:
    """Rank 1 is blocked for long in every step, and in one of them computes for longer still."""
    rng = random.Random(seed)
    steps, world = rng.randint(4, 7), rng.randint(2, 4)
    blocked = [[rng.randrange(2 * MS, 5 * MS, US) for _ in range(world)] for _ in range(steps)]
    for own in blocked:
        own[1] += 60 * MS
    computed = [[rng.randrange(250 * MS, 254 * MS, US) for _ in range(world)] for _ in range(steps)]
    computed[rng.randrange(steps)][1] += rng.randrange(66 * MS, 80 * MS, US)
    whole = {"0": range(world)}
    traces = [Trace(rank, world, groups=whole, backend="gloo", device_names=(), host="node") for rank in range(world)]
    begin = 0
    for step in range(steps):
        came = [begin + blocked[step][rank] + computed[step][rank] for rank in range(world)]
        end = max(came) + MS
        for rank, trace in enumerate(traces):
            trace.step(step, begin, end + 100 * US)
            trace.op("aten::mm", came[rank] - computed[step][rank], computed[step][rank])
            trace.c10d("allreduce_", came[rank], 2 * US).gloo("all_reduce", came[rank] + 2 * US, end - came[rank])
        begin = end + 100 * US
    for rank, trace in enumerate(traces):
        trace.write(tmp_path, f"node_{rank}.0.pt.trace.json")
    found = analyse(tmp_path, details=True)
    longer = [mine - median(others) for own in blocked for mine, others in [(own[1], own[:1] + own[2:])]]
    said = re.search(r"in Python, outside of any operator, ([0-9.]+) ms per step longer", found.summary())
    assert said, found.summary()
    assert float(said[1]) == pytest.approx(sum(longer) / steps / 1e6, rel=0.05)  # a step that is not counted aside
