"""Captures side by side, on runs of known truth; real captures: tests/test_compare_captures.py."""

import csv
import io
import json
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from builders import MS, Collective, Trace, traces_of, write_run

from commtrace import Analysis, Comparison, analyse, compare
from commtrace.analysis.cli.commands import compare as cli_compare
from commtrace.analysis.comparison.analysis import Judgement
from commtrace.analysis.comparison.causes import signed
from commtrace.analysis.core.schema import records
from commtrace.analysis.core.tables.columns import HOW_TO_MARK
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.metrics.typical_step import STEP_PARTS
from commtrace.analysis.render.screen import Screen
from commtrace.analysis.render.units import TimeUnit
from commtrace.analysis.run.side_files import Side, step_time_rows
from commtrace.analysis.show.comparison import decision_fields, headline
from commtrace.analysis.show.two_runs import bar_of, between, legend_of, two_runs
from commtrace.cli import main
from commtrace.contract.rank import RankFile
from commtrace.contract.reading import lenient

DATA = Path(__file__).resolve().parents[1] / "data"

STEPS = 10
# Steps are never quite the same: a spread of half a percent.
JITTER = (0, 3, -4, 8, -9, 5, -2, 1, -6, 7)


def run(
    folder: Path,
    *,
    gemm: float = 20,
    late: int = 5,
    pause: float = 10,
    steps: int = STEPS,
    ranks: int = 2,
    cycles: int = 1,
    grows: float = 0.0,
    anew: bool = False,
) -> Path:
    """Steps of gemm ms of compute, an all_reduce of 10 ms for which rank 1 is `late` ms, and a pause.

    In every cycle gemm takes longer by `grows`, as a part of it; it numbers its steps `anew`, with one more of them.
    """
    for cycle in range(cycles):
        first = 0 if anew else cycle * steps
        _cycle(folder, cycle, gemm * (1 + grows * cycle), late, pause, steps + cycle * anew, ranks, first)
    return folder


def _cycle(folder: Path, cycle: int, gemm: float, late: int, pause: float, steps: int, ranks: int, first: int) -> None:
    length = round((gemm + late + 10 + pause) * MS)
    begins = [k * length + cycle * 1_000 * MS for k in range(steps)]
    grown = [round(gemm * MS * (1000 + JITTER[k % len(JITTER)]) / 1000) for k in range(steps)]
    truth = [Collective((b + g, b + g + late * MS)) for b, g in zip(begins, grown, strict=True)]
    for rank, trace in enumerate(traces_of(ranks, truth) if ranks == 2 else [Trace(0, 1)]):
        for k, (begin, dur) in enumerate(zip(begins, grown, strict=True)):
            trace.step(first + k + 2, begin, begin + length).kernel("gemm", begin, dur, launch=begin)
            trace.op("aten::mm", begin - MS, 2 * MS).kernel("relu", begin, 2 * MS, stream=8, launch=begin + 1)
            if rank == 1 and late:
                trace.kernel("straggler", begin + dur, late * MS, launch=begin + 2 * MS)
        trace.write(folder, f"node_{rank}.{cycle + 1:04d}.pt.trace.json.gz")


def side_file(folder: Path, durations: list[int], *, rank: int = 0, phase: str = "idle", start: int = 0) -> None:
    rows = [{"step": k + start, "phase": phase, "dur_ns": dur} for k, dur in enumerate(durations)]
    (folder / f"node_{rank}.meta.json").write_text(json.dumps({"rank": rank, "steps": rows}))


def measure(found: Comparison, name: str) -> dict[str, Any]:
    (row,) = [row for row in records(found.comparison) if row["measure"] == name]
    return row


# --- what differs ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_does_not_differ_from_itself(tmp_path):
    found = compare(run(tmp_path / "a"), tmp_path / "a")
    assert len([row for row in records(found.comparison) if row["p_value"] is not None]) > 5
    for table in (found.comparison, found.changed_kernels, found.changed_operators):
        assert not table["significant"].fillna(False).any()
        assert (table["difference_ns"].dropna() == 0).all()
    assert found.decision.beyond_runs is False


@pytest.mark.slow
def test_a_larger_layer_shows_in_compute_and_in_its_kernel_and_operator(tmp_path):
    found = compare(run(tmp_path / "a"), run(tmp_path / "b", gemm=60))
    step, compute = measure(found, "step"), measure(found, "compute")
    assert (step["difference_ns"], compute["difference_ns"]) == (pytest.approx(40 * MS, rel=0.05),) * 2
    assert step["significant"]
    assert compute["significant"]
    assert step["note"] == "step windows of the traces"
    changed = [row["measure"] for row in records(found.comparison) if row["significant"]]
    assert changed == ["step", "compute"]
    kernels = records(found.changed_kernels)
    assert (kernels[0]["name"], kernels[0]["significant"]) == ("gemm", True)
    assert [row["name"] for row in kernels if row["significant"]] == ["gemm"]
    operators = records(found.changed_operators)
    assert (operators[0]["operator"], operators[0]["significant"]) == ("aten::mm", True)


@pytest.mark.slow
def test_a_slower_layer_shows_in_its_class_however_modules_are_numbered(tmp_path, capsys):
    for side, first, mlp in (("a", 0, 4), ("b", 24, 7)):
        trace, now = Trace(0, 1), 0
        for number in range(STEPS):
            begin = now
            for place, (layer, dur) in enumerate((("attention", 4), ("mlp", mlp), ("mlp", mlp))):
                issue, dur = begin + place * MS, round(dur * MS * (1000 + JITTER[number]) / 1000)
                trace.event("python_function", f"nn.Module: layers.{first + place}.{layer}", issue, MS)
                trace.kernel("gemm", now, dur, launch=issue)
                now += dur
            trace.step(number, begin, now)
        trace.write(tmp_path / side)
    rows = records(compare(tmp_path / "a", tmp_path / "b").changed_regions)
    assert [(row["region"], row["phase"], row["significant"]) for row in rows] == [
        ("layers.*.mlp", None, True),
        ("layers.*.attention", None, False),
    ]
    assert (rows[0]["a_ns"], rows[0]["b_ns"]) == (pytest.approx(8 * MS, rel=0.01), pytest.approx(14 * MS, rel=0.01))
    assert main(["compare", "--by", "region", str(run(tmp_path / "c")), str(tmp_path / "c")]) == 1
    assert "no record_function, nn.Module or compiled region is in the traces" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_layer_that_computes_more_has_other_shapes_and_a_slower_one_the_same(tmp_path, capsys, seed):
    draw = random.Random(seed)
    same, wider, slower = ([draw.randint(1, 99), 8, 8 * place] for place in (1, 2, 3))
    ms = {"same": draw.randint(3, 9), "wider": draw.randint(3, 9), "slower": draw.randint(3, 9)}
    for side, width, more in (("a", 24, 0), ("b", 48, 5)):
        trace, now = Trace(0, 1), 0
        for number in range(STEPS):
            begin = now
            for place, (m, k, n, dur) in enumerate(
                [(*same, ms["same"]), (*wider[:2], width, ms["wider"] + more), (*slower, ms["slower"] + more)]
            ):
                issue, took = begin + place * MS, round(dur * MS * (1000 + JITTER[number]) / 1000)
                inputs = {"Input Dims": [[m, k], [k, n]], "Input type": ["float"] * 2, "Concrete Inputs": ["", ""]}
                trace.event("cpu_op", "aten::mm", issue, MS // 2, **inputs)
                trace.kernel("gemm", now, took, launch=issue + 10)
                now += took
            trace.kernel("from_a_graph", now, MS, launch=begin + 4 * MS)
            now += MS
            trace.step(number, begin, now)
        trace.write(tmp_path / side)
    rows = {row["inputs"]: row for row in records(compare(tmp_path / "a", tmp_path / "b").changed_shapes)}
    texts = [f"{m}x{k} {k}x{n}" for m, k, n in (same, slower, [*wider[:2], 24], [*wider[:2], 48])]
    times = [rows[text][f"{side}_ns"] / MS for text in texts for side in "ab"]
    took = ms["wider"], ms["wider"] + 5
    expected = [ms["same"]] * 2 + [ms["slower"], ms["slower"] + 5, took[0], 0, 0, took[1]]
    assert times == pytest.approx(expected, rel=0.02)
    assert [rows[text]["significant"] for text in texts] == [False, True, True, True]
    assert (rows[None]["operator"], rows[None]["a_ns"], rows[None]["difference_ns"]) == (None, MS, 0)
    assert main(["compare", "--by", "shape", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "csv"]) == 0
    assert texts[3] in capsys.readouterr().out
    assert main(["compare", "--by", "shape", str(run(tmp_path / "c")), str(tmp_path / "c")]) == 1
    assert "no operator in the traces has shapes" in capsys.readouterr().err


@pytest.mark.slow
def test_a_later_rank_shows_as_waiting_and_a_pause_as_idle(tmp_path):
    first = run(tmp_path / "a")
    late, pause = compare(first, run(tmp_path / "b", late=65)), compare(first, run(tmp_path / "c", pause=70))
    # Rank 0 waits 60 ms longer, rank 1 not at all: 30 ms in the mean. Rank 1 computes those 60 ms.
    for name in ("wait", "exposed_wait", "compute"):
        row = measure(late, name)
        assert (row["difference_ns"], row["significant"]) == (30 * MS, True), name
    assert not measure(late, "transfer")["significant"]
    assert measure(pause, "idle")["difference_ns"] == 60 * MS
    assert [r["measure"] for r in records(pause.comparison) if r["significant"]] == ["step", "idle"]


@pytest.mark.slow
def test_a_kernel_of_one_run_only_is_0_in_the_other(tmp_path):
    found = compare(run(tmp_path / "a"), run(tmp_path / "b", late=0))
    (row,) = [row for row in records(found.changed_kernels) if row["name"] == "straggler"]
    assert (row["a_ns"], row["b_ns"], row["difference_ns"], row["change_frac"]) == (2.5 * MS, 0, -2.5 * MS, -1.0)
    turned = compare(tmp_path / "b", tmp_path / "a")
    (row,) = [row for row in records(turned.changed_kernels) if row["name"] == "straggler"]
    assert (row["difference_ns"], row["change_frac"], row["significant"]) == (2.5 * MS, None, True)


@pytest.mark.slow
def test_a_step_that_only_some_ranks_recorded_is_divided_among_those(tmp_path):
    for shift, folder in ((0, tmp_path / "a"), (1, tmp_path / "b")):
        for rank in range(2):
            trace = Trace(rank, 2)
            for number in range(2 + shift * rank, 7 + shift * rank):
                trace.step(number, number * 20 * MS, (number + 1) * 20 * MS).kernel("gemm", number * 20 * MS, 10 * MS)
            trace.write(folder)
    (row,) = records(compare(tmp_path / "a", tmp_path / "b").changed_kernels)
    assert (row["a_ns"], row["b_ns"], row["spread_b_ns"]) == (10 * MS, 10 * MS, 0)


@pytest.mark.slow
def test_what_matters_does_not_depend_on_which_side_is_first(tmp_path):
    # Steps of 45 and 86 ms: 0.6 ms more of idle is more than 1 % of the one, but not of the other.
    a, b = (
        [run(tmp_path / f"{n}{k}", ranks=1, gemm=gemm, pause=pause) for k in range(2)]
        for n, gemm, pause in (("a", 20, 10), ("b", 60, 10.6))
    )
    rows = [measure(compare(*sides), "idle") for sides in ((a, b), (b, a))]
    assert [row["difference_ns"] for row in rows] == pytest.approx([0.6 * MS, -0.6 * MS], rel=0.03)
    assert [row["significant"] for row in rows] == [True, True]


# --- captures --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_one_capture_each_cannot_tell_several_can(tmp_path):
    # Captures of a configuration differ by about 1 %, and B takes 10 % longer to compute, 5 % of a step.
    a, b = (
        [run(tmp_path / f"{n}{k}", ranks=1, gemm=gemm * (1 + k / 100)) for k in range(3)]
        for n, gemm in (("a", 20), ("b", 22))
    )
    alone, together = compare(a[0], b[0]), compare(a, b)
    assert measure(alone, "step")["difference_ns"] == pytest.approx(2 * MS, rel=0.01)
    assert [row["significant"] for row in (measure(alone, "step"), measure(together, "step"))] == [False, True]
    assert [r["measure"] for r in records(together.comparison) if r["significant"]] == ["step", "compute"]
    assert [r["name"] for r in records(together.changed_kernels) if r["significant"]] == ["gemm"]
    assert "no capture shows by how much runs of this program differ" in alone.decision.statements[1]
    assert "is more than chance: 6 runs that are compared differ by 0.5%" in together.decision.statements[0]
    step = measure(together, "step")
    assert (step["captures_a"], step["steps_a"], step["spread_a_ns"]) == (3, 27, pytest.approx(0.2 * MS, rel=0.05))


@pytest.mark.slow
def test_captures_that_differ_among_themselves_are_no_evidence(tmp_path):
    # Each capture is quiet in itself, so that its steps seem to tell: but the captures of a side are 10 % apart.
    a, b = (
        [run(tmp_path / f"{n}{k}", ranks=1, gemm=20 * (1 + k / 10) + more) for k in range(3)]
        for n, more in (("a", 0), ("b", 2))
    )
    found = compare(a, b)
    assert measure(found, "compute")["p_value"] > 0.01
    assert not any(row["significant"] for row in records(found.comparison))


@pytest.mark.slow
def test_one_capture_is_compared_with_several(tmp_path):
    a = [run(tmp_path / f"a{k}", ranks=1, gemm=20 * (1 + k / 100)) for k in range(3)]
    assert measure(compare(a, run(tmp_path / "b", ranks=1, gemm=30)), "step")["significant"]
    assert not measure(compare(a, run(tmp_path / "c", ranks=1, gemm=20.5)), "step")["significant"]


@pytest.mark.slow
def test_two_of_each_with_a_step_each_are_enough(tmp_path):
    a, b = (
        [run(tmp_path / f"{n}{k}", ranks=1, gemm=gemm + k / 10, steps=1) for k in range(2)]
        for n, gemm in (("a", 20), ("b", 60))
    )
    assert measure(compare(a, b), "step")["significant"]


@pytest.mark.slow
def test_cycles_of_one_run_are_captures(tmp_path):
    found = compare(
        run(tmp_path / "a", ranks=1, cycles=3, grows=0.01), run(tmp_path / "b", ranks=1, cycles=3, grows=0.01, gemm=60)
    )
    step, compute = measure(found, "step"), measure(found, "compute")
    assert (step["captures_a"], step["steps_a"], compute["captures_b"], compute["steps_b"]) == (
        3,
        27,
        3,
        27,
    )  # the last step of a cycle ends with its last activity
    assert compute["spread_a_ns"] == pytest.approx(0.2 * MS, rel=0.05)
    assert step["significant"]
    assert "no capture shows by how much runs of this program differ" in found.decision.statements[1]
    # Cycles share their process: a difference that is clear beside their spread may still be one between two runs.
    small = compare(tmp_path / "a", run(tmp_path / "c", ranks=1, cycles=3, grows=0.01, gemm=22))
    assert measure(small, "compute")["difference_ns"] > 5 * compute["spread_a_ns"]
    assert not measure(small, "compute")["significant"]
    assert measure(compare(tmp_path / "a", tmp_path / "c", run_spread_frac=0.001), "compute")["significant"]


@pytest.mark.slow
def test_captures_of_one_run_that_number_their_steps_alike_are_one(tmp_path):
    """Two captures in one folder, as by two calls of a profiler: their steps are marked, and each is in the mean."""
    a, b = (
        run(tmp_path / name, ranks=1, cycles=2, grows=0.5, gemm=gemm, anew=True)
        for name, gemm in (("a", 20), ("b", 40))
    )
    step = measure(compare(a, b), "step")
    assert (step["captures_a"], step["steps_a"]) == (1, STEPS)
    assert step["a_ns"] == pytest.approx((20 * 1.25 + 25) * MS, rel=0.02)
    assert step["difference_ns"] == pytest.approx(20 * 1.25 * MS, rel=0.02)
    assert step["significant"]


@pytest.mark.slow
def test_unprofiled_steps_belong_to_the_cycle_behind_them(tmp_path):
    run(tmp_path, cycles=2, steps=4)  # traced: 2 to 5, 6 to 9
    rows = [{"step": k, "phase": "idle", "dur_ns": 100 + (k > 5)} for k in range(12)]
    (tmp_path / "node_0.meta.json").write_text(json.dumps({"rank": 0, "steps": rows}))
    step = measure(compare(tmp_path, tmp_path), "step")
    assert (step["captures_a"], step["steps_a"], step["a_ns"], step["note"]) == (2, 10, 100, "unprofiled steps")
    assert step["spread_a_ns"] == 1  # sqrt(1 / 2)


@pytest.mark.slow
def test_runs_without_operators_are_compared_by_the_rest(tmp_path, capsys):
    packed = tmp_path / "packed"
    assert main(["pack", "--no-details", "-o", str(packed), str(DATA / "nccl-straggler")]) == 0
    assert main(["compare", "--all", str(packed), str(packed)]) == 0
    shown = capsys.readouterr().out
    assert "Note      not known: operators, as a run was read without them" in shown
    assert "Kernels that differ most" in shown
    assert main(["compare", "-f", "json", str(packed), str(packed)]) == 0
    assert "changed_operators" not in json.loads(capsys.readouterr().out)
    page = tmp_path / "page.html"
    assert main(["report", str(packed), "--against", str(packed), "-o", str(page)]) == 0
    with pytest.raises(NothingMeasured, match="was read without operators"):
        _ = compare(packed, packed).changed_operators


def test_nothing_is_no_side(tmp_path):
    with pytest.raises(NothingMeasured, match="at least one capture"):
        compare([], run(tmp_path))


# --- which steps -----------------------------------------------------------------------------------------------------


def lengths(tmp_path: Path, **sides: list[tuple[str, int, list[int]]]):
    """The step row of runs whose side files list (phase, first step, durations)."""
    for name, listed in sides.items():
        write_run(tmp_path / name, 1, [Collective((0,))])
        rows = [
            {"step": start + k, "phase": phase, "dur_ns": dur}
            for phase, start, durations in listed
            for k, dur in enumerate(durations)
        ]
        (tmp_path / name / "node_0.meta.json").write_text(json.dumps({"rank": 0, "steps": rows}))
    return measure(compare(tmp_path / "a", tmp_path / "b"), "step")


@pytest.mark.slow
@pytest.mark.parametrize(("b", "few"), [([200, 400], True), ([600, 900], False), ([200, 400, 300, 210], False)])
def test_few_steps_that_do_not_overlap_are_said_to_be_few(tmp_path, b, few):
    lengths(tmp_path, a=[("idle", 2, [1050, 1200] * (len(b) // 2))], b=[("idle", 2, b)])
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found.decision.few_but_ordered, found.decision.outcome.value) == (few, "open" if len(b) == 2 else "shorter")
    assert (", in all 2 and 2 that were traced" in headline(found)) == few
    said = "each step of A takes much longer than any of B, but they are few: chance alone puts 2 and 2 steps in such"
    assert (said in found.decision.statements[0]) == few


@pytest.mark.slow
def test_unprofiled_steps_count_without_the_first_two(tmp_path):
    idle, active = ("idle", 0, [9000, 9000, 100, 101, 102, 103, 104]), ("active", 7, [500] * 8)
    row = lengths(tmp_path, a=[idle, active], b=[idle, active])
    assert (row["steps_a"], row["a_ns"], row["note"]) == (5, 102, "unprofiled steps")


@pytest.mark.slow
def test_profiled_steps_count_where_too_few_are_not(tmp_path):
    few, active = ("idle", 0, [9000, 9000, 100, 101, 102]), ("active", 5, [500, 501, 502, 503, 504])
    row = lengths(tmp_path, a=[few, active], b=[few, active])
    assert (row["steps_a"], row["a_ns"], row["note"]) == (5, 502, "profiled steps")


@pytest.mark.slow
def test_one_step_is_no_evidence(tmp_path):
    row = lengths(tmp_path, a=[("idle", 2, [100])], b=[("idle", 2, [900, 901, 902, 903])])
    assert (row["change_frac"], row["p_value"], row["significant"]) == (pytest.approx(801.5 / 100), None, None)
    assert row["note"] == "unprofiled steps; too few steps to tell: 1 and 4; each side needs 2, or several captures"


@pytest.mark.slow
def test_the_slowest_rank_is_the_step_and_steps_that_a_rank_lacks_are_none(tmp_path):
    write_run(tmp_path, 2, [Collective((0, 0))])
    side_file(tmp_path, [10, 20, 30, 40, 50, 60], start=2)
    side_file(tmp_path, [15, 15, 35, 35, 55], rank=1, start=2)
    row = measure(compare(tmp_path, tmp_path), "step")
    assert (row["steps_a"], row["a_ns"]) == (5, 32)  # the mean of the middle half of 15, 20, 35, 40, 55


@pytest.mark.parametrize(
    "steps",
    ["none", 7, [None], [{"step": "x"}], [{"step": 3, "phase": 1, "dur_ns": -5}], {}, [{"step": 3, "dur_ns": 10**30}]],
)
def test_strange_steps_of_a_side_file_are_none(steps):
    assert list(step_time_rows(0, Side(*lenient({"steps": steps}, RankFile)))) == []


@pytest.mark.slow
def test_without_steps_nothing_can_be_told(tmp_path):
    write_run(tmp_path, 1, [Collective((0,))])
    side_file(tmp_path, [])
    found = compare(tmp_path, tmp_path)
    assert measure(found, "step")["note"] == f"no step is marked in one of the runs: {HOW_TO_MARK}"
    assert found.decision.statements == (
        f"Steps cannot be compared: no step is marked in one of the runs: {HOW_TO_MARK}.",
    )
    assert found.decision.more_captures is None
    assert found.slower_by(0.1)[0] is Judgement.unknown


# --- memory ----------------------------------------------------------------------------------------------------------


def allocations(folder: Path, peak: int) -> Path:
    trace = Trace().kernel("gemm", 0, MS)
    for k in range(6):
        trace.step(k, k * MS, (k + 1) * MS)
        for part, allocated in enumerate((1000, peak + k, 2000)):
            args = {"Device Type": 1, "Device Id": 0, "Total Allocated": allocated, "Total Reserved": 9000}
            event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1}
            trace.events.append(event | {"ts": (k * MS + part * 1000) / 1000, "args": args})
    return trace.write(folder)


@pytest.mark.slow
def test_peak_memory_is_that_of_the_traces_allocations(tmp_path):
    found = compare(allocations(tmp_path / "a", 5000), allocations(tmp_path / "b", 8000))
    row = measure(found, "peak_memory")
    assert (row["steps_a"], row["a_bytes"], row["b_bytes"], row["difference_bytes"]) == (6, 5002, 8002, 3000)
    assert (row["significant"], row["note"], row["a_ns"]) == (True, "paired by number", None)


@pytest.mark.slow
def test_memory_that_was_not_recorded_is_na_with_the_reason(tmp_path):
    row = measure(compare(run(tmp_path / "a"), allocations(tmp_path / "b", 8000)), "peak_memory")
    assert (row["a_bytes"], row["b_bytes"], row["significant"]) == (None, 8002, None)
    assert row["note"] == "not recorded in A: capture with profile_memory"


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    made = {
        "a": run(folder / "a"),
        "slow": run(folder / "slow", gemm=60),
        "one": run(folder / "one", ranks=1),
        "short": run(folder / "short", steps=2),
    }
    return {name: str(path) for name, path in made.items()}


@pytest.fixture(scope="module")
def read_once() -> Callable[..., Analysis]:
    """Every run is read and measured once: what follows is about what is asked for and shown."""

    @cache
    def read(path: Path) -> Analysis:
        return analyse(path, details=True)

    return lambda paths, reading, *, details: read(*paths)


@pytest.fixture
def known(monkeypatch, runs, read_once) -> dict[str, str]:
    monkeypatch.setattr(cli_compare, "analysis_of", read_once)
    return runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("b", "percent", "code"), [("slow", "10", 3), ("slow", "500", 0), ("a", "60", 0), ("a", "5", 4), ("short", "10", 4)]
)
def test_the_exit_code_for_ci(capsys, known, b, percent, code):
    assert main(["compare", "--fail-above", percent, known["a"], known[b]]) == code
    captured = capsys.readouterr()
    assert captured.out.startswith("A  ")  # the tables come all the same
    assert captured.err.startswith({3: "slower: ", 0: "note: ", 4: "cannot tell: "}[code])
    assert captured.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "judgement"),
    [(4.6, Judgement.slower), (1.3, Judgement.slower), (0.92, Judgement.within), (1.0, Judgement.unknown)],
)
def test_two_steps_of_each_tell_a_large_change(tmp_path, factor, judgement):
    steps = [("active", 2, [round(each * 1e6 * scale) for each in (10.0, 10.06)]) for scale in (1, factor)]
    row = lengths(tmp_path, a=[steps[0]], b=[steps[1]])
    assert (row["steps_a"], row["significant"]) == (2, judgement is Judgement.slower)
    assert compare(tmp_path / "a", tmp_path / "b").slower_by(0.05)[0] is judgement


def test_a_change_that_only_a_wide_interval_holds_is_said_in_few_digits(capsys, known):
    main(["compare", "--fail-above", "5", "--run-spread", "1000", known["a"], known["a"]])
    captured = capsys.readouterr()
    assert "The change is between" not in captured.out
    assert "but B may take more than 1,000% longer" in captured.err


@pytest.mark.slow
def test_steps_that_take_no_time_cannot_be_compared(tmp_path):
    for name in ("a", "b"):
        side_file(write_run(tmp_path / name, 1, [Collective((0,))]), [0] * 8)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.decision.statements == ("Steps cannot be compared: the steps of A take no time (unprofiled steps).",)
    assert found.slower_by(0.1)[0] is Judgement.unknown


@pytest.mark.slow
def test_what_one_capture_each_could_not_see_is_said(capsys, known):
    main(["compare", "--fail-above", "5", known["a"], known["a"]])
    captured = capsys.readouterr()
    assert "would settle a change of 1%" in " ".join(captured.out.split())
    assert "the limit is 5%, but B may take 9." in captured.err
    assert "longer; 1 more capture of each, alternating, would settle on which side of the limit it is" in captured.err


@pytest.mark.slow
def test_several_quiet_captures_see_a_small_change(capsys, tmp_path):
    sides = {name: [run(tmp_path / f"{name}{k}", ranks=1, gemm=gemm * (1 + k / 1000)) for k in range(4)]
             for name, gemm in (("a", 20), ("b", 20), ("c", 22))}  # fmt: skip
    a, b, c = (list(map(str, side)) for side in sides.values())
    assert main(["compare", "--fail-above", "3", *a, "--against", *b]) == 0
    assert main(["compare", "--fail-above", "3", *a, "--against", *c]) == 3
    found = compare(*list(sides.values())[:2])
    seen = measure(found, "step")["seen_frac"]
    assert 0 < seen < 0.01


@pytest.mark.slow
def test_a_change_too_near_the_limit_does_not_pass(capsys, tmp_path):
    a, b = ([run(tmp_path / f"{n}{k}", ranks=1, gemm=gemm * (1 + k / 1000)) for k in range(3)]
            for n, gemm in (("a", 20), ("b", 21)))  # fmt: skip
    change = 100 * measure(compare(a, b), "step")["change_frac"]
    assert main(["compare", "--fail-above", f"{change + 0.001}", *map(str, a), "--against", *map(str, b)]) == 4
    assert "but B may take 2.28% longer; more than 20 captures of each would be needed" in capsys.readouterr().err
    assert main(["compare", "--fail-above", f"{change + 1}", *map(str, a), "--against", *map(str, b)]) == 0


@pytest.mark.slow
def test_no_interval_goes_below_nothing(tmp_path):
    found = compare(run(tmp_path / "a", gemm=60), run(tmp_path / "b", gemm=1, late=0, pause=1), run_spread_frac=0.5)
    for table in (found.comparison, found.changed_kernels, found.changed_operators):
        assert (table["change_low_frac"].dropna() >= -1).all()
    step = measure(found, "step")
    # On logarithms: how often one is as long as the other, and the inverse.
    turned = measure(compare(tmp_path / "b", tmp_path / "a", run_spread_frac=0.5), "step")
    assert (1 + step["change_low_frac"]) * (1 + turned["change_high_frac"]) == pytest.approx(1)


@pytest.mark.slow
def test_a_run_that_is_surely_faster_never_fails(known):
    assert main(["compare", "--fail-above", "0", known["slow"], known["a"]]) == 0


# --- one screen ------------------------------------------------------------------------------------------------------

_CHANGE = re.compile(r"^  \S.*  ([+-][\d.,]+) (?:ms|us)(?:  ([+-][\d.,]+) to ([+-][\d.,]+)(?: us)?)?$", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_comparison_is_one_screen(known, width):
    both = Comparison((analyse(known["a"], details=True),), (analyse(known["slow"], details=True),))
    shown = two_runs(both, Screen(width=width))
    lines = shown.splitlines()
    assert len(lines) <= 36
    assert max(map(len, lines[:-2])) <= min(width, 120)
    assert lines[-2] == "Everything: commtrace compare --all a slow"
    assert "0.0" not in re.sub(r"\d+0\.0|[1-9]0*\.0", "", shown)
    # The bars have one scale: each is as long as its step.
    bars = {line[2]: line[4:] for line in lines if line.startswith(("  A  ", "  B  "))}
    steps = [row["step_ns"] for row in records(both.typical_steps)]
    cells = [len(re.sub(r"[^\u2588\u2593\u2592\u2591\u259a\u00b7]", "", bars[side])) for side in "AB"]
    assert cells[0] / cells[1] == pytest.approx(steps[0] / steps[1], abs=1.5 / cells[1])
    assert f"{steps[0] / 1e6:,.1f} ms" in bars["A"]
    changes = _CHANGE.findall(shown)
    assert 1 <= len(changes) <= 5
    assert all(float(low) <= float(change) <= float(high) for change, low, high in changes)


@pytest.mark.parametrize(
    ("ends_ns", "amount", "interval"),
    [
        ((90_100, 101_200), "+96 us", "+90 to +101"),
        ((390_600, 395_400), "+0.4 ms", "+391 to +395 us"),
        ((-20_000, 4_000_000), "+2.0 ms", "+0.0 to +4.0"),
    ],
)
def test_small_amounts_and_narrow_intervals_have_digits_that_differ(ends_ns, amount, interval):
    low, high = ends_ns
    row = {"difference_ns": (low + high) // 2, "difference_low_ns": low, "difference_high_ns": high}
    assert (signed(row["difference_ns"], TimeUnit.of(10 * MS)), between(row, TimeUnit.of(10 * MS))) == (
        amount,
        interval,
    )


def _step(**parts_ns):
    return dict.fromkeys(STEP_PARTS, 0) | {f"{part}_ns": ns for part, ns in parts_ns.items()}


@pytest.mark.parametrize("length_ns", [30_000, 3_000_000, 30_000_000, 3_000_000_000])
def test_the_legend_calls_nothing_0_that_is_drawn_and_no_more_is_drawn(length_ns):
    cell_ns = length_ns / 90
    a, b = (_step(compute_alone=length_ns, exposed_wait=round(cells * cell_ns)) for cells in (0.6, 20))
    less = _step(compute_alone=length_ns, exposed_wait=round(0.4 * cell_ns))
    assert [bar_of(step, cell_ns, Screen()).count("\u2591") for step in (a, b, less)] == [1, 20, 0]
    [legend] = legend_of([a, b], cell_ns, TimeUnit.of(length_ns), Screen(), 120)
    low, high = map(float, re.search(r"exposed wait ([\d.,]+) \u2192 ([\d.,]+)", legend.replace(",", "")).groups())
    assert low / high == pytest.approx(0.6 / 20, abs=0.01)


def test_marks_of_parts_differ():
    whole = _step(**{part.removesuffix("_ns"): 10 for part in STEP_PARTS})
    for screen in (Screen(), Screen(ascii_only=True)):
        assert len(set(bar_of(whole, 10, screen))) == len(STEP_PARTS)


def test_the_legend_of_a_series_has_what_is_least_and_most():
    steps = [_step(compute_alone=30 * MS, idle=ns) for ns in (0, 8 * MS, 0)]
    [legend] = legend_of(steps, MS / 2, TimeUnit.of(30 * MS), Screen(), 120)
    assert legend.strip().endswith("compute alone 30.0   \u00b7 idle 0 to 8.0 ms")


@pytest.mark.slow
def test_the_screen_takes_only_ascii_where_that_is_all_there_is(known):
    both = Comparison((analyse(known["a"], details=True),), (analyse(known["one"], details=True),))
    assert two_runs(both, Screen(width=80, ascii_only=True)).isascii()


@pytest.mark.slow
def test_what_is_said_in_brief_is_markdown_to_paste(capsys, known):
    assert main(["compare", "--brief", known["a"], known["slow"]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("**Steps of B take 40.0 ms (89%) longer than those of A: compute, gemm.** ")
    table = [line for line in lines if line.startswith("|")]
    assert table[:2] == ["| What costs more or less in a step | change | between |", "|---|---:|---:|"]
    assert 3 <= len(table) <= 7
    assert all(line.count("|") == 4 for line in table)
    assert lines[-1] == f"`commtrace compare {known['a']} {known['slow']}`"
    for arguments in (("--by", "kernel"), ("-f", "json"), ("-f", "csv")):
        assert main(["compare", "--brief", *arguments, known["a"], known["slow"]]) == 2
        assert "--brief" in capsys.readouterr().err


@pytest.mark.slow
def test_json_has_the_decision_as_fields(capsys, known):
    main(["compare", "-f", "json", "--fail-above", "10", known["a"], known["slow"]])
    found = json.loads(capsys.readouterr().out)
    assert (found["decision"], found["beyond_steps"], found["beyond_runs"]) == ("longer", True, True)
    assert (found["limit_frac"], found["judgement"], found["exit_code"]) == (0.1, "slower", 3)
    assert found["more_captures"] == 0
    assert len(found["statements"]) == 3
    assert found["difference_ns"] == pytest.approx(40 * MS, rel=0.01)
    assert found["change_low_frac"] < found["change_frac"] < found["change_high_frac"]
    first = found["causes"][0]
    assert (first["cause"], first["difference_ns"]) == ("compute, gemm", pytest.approx(40 * MS, rel=0.01))
    assert first["difference_low_ns"] <= first["difference_ns"] <= first["difference_high_ns"]
    main(["compare", "-f", "json", known["a"], known["a"]])
    same = json.loads(capsys.readouterr().out)
    assert (same["decision"], same["beyond_steps"], same["beyond_runs"], same["causes"]) == ("open", False, False, [])
    assert (same["limit_frac"], same["judgement"], same["exit_code"]) == (None, None, None)
    assert same["headline"] == "Steps of B are as long as those of A"


@pytest.mark.slow
@pytest.mark.parametrize("more", [0.0, 0.4, 4.0, 40.0])
def test_a_headline_says_of_a_change_what_the_decision_does(tmp_path, more):
    both = compare(run(tmp_path / "a"), run(tmp_path / "b", gemm=20 + more))
    found = decision_fields(both)
    expected = {
        (True, True): " longer than those of A: compute, gemm",
        (True, False): ", as two runs of one program may",
        (False, False): ", no more than steps differ by" if more else " are as long as those of A",
    }
    assert expected[found["beyond_steps"], found["beyond_runs"]] in found["headline"]
    assert "no part of a step changed" not in two_runs(both) or not more


@pytest.mark.slow_cases("()-table")
@pytest.mark.parametrize("output_format", ["table", "csv", "markdown", "json", "latex"])
@pytest.mark.parametrize("by", [(), ("--by", "measure"), ("--by", "kernel"), ("--by", "operator")], ids=str)
def test_every_format(capsys, known, by, output_format):
    assert main(["compare", *by, "-f", output_format, known["a"], known["one"]]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("\n")
    # What it rests on stands in the report, and beside a table alone.
    alone = by or output_format in ("csv", "latex")
    assert captured.err.startswith("note: A change under 0.1% is within") if alone else not captured.err


@pytest.mark.slow
def test_intervals_that_bound_nothing_are_for_machines_only(capsys, tmp_path):
    a, b = (str(run(tmp_path / name, pause=ms)) for name, ms in (("a", 0.01), ("b", 0.02)))
    main(["compare", "--by", "measure", "-f", "csv", a, b])
    rows = {row["measure"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert float(rows["idle"]["change_high_frac"]) > 100
    for output_format, starts in (("table", " idle"), ("markdown", "| idle")):
        main(["compare", "--by", "measure", "-f", output_format, a, b])
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(starts))
        assert not [number for number in re.findall(r"[\d,.]{4,}", line) if float(number.replace(",", "")) > 1000]


@pytest.mark.slow
def test_names_mark_nothing_up_in_markdown(capsys, tmp_path):
    a, b = (write_run(tmp_path / name, 2, [Collective((0, 0))]) for name in ("a", "b<img>[x](y)`c"))
    assert main(["compare", "-f", "markdown", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "B: b&lt;img>\\[x\\](y)\\`c: 2 ranks" in out
    command = f"`` commtrace compare {a} '{b}' ``"
    assert command in out
    assert "<img>" not in out.replace(command, "")


@pytest.mark.slow
def test_json_holds_everything_and_csv_one_table(capsys, known):
    main(["compare", "-f", "json", known["a"], known["slow"]])
    content = json.loads(capsys.readouterr().out)
    assert content["table"] == "compare"
    assert {"comparison", "changed_causes", "changed_kernels", "changed_operators"} < set(content)
    main(["compare", "-f", "csv", known["a"], known["slow"]])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["measure"] for row in rows] == [row["measure"] for row in content["comparison"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("{a}", "{one}", "--against", "{slow}", "{short}"),
        ("{a}", "{one}", "--against", "{slow}", "--against", "{short}", "--top", "3"),
        ("--top", "3", "{a}", "{one}", "--against={slow}", "--against", "{short}"),
        ("{a}", "{one}", "--against", "{slow}", "{short}", "-f", "json"),
    ],
    ids=" ".join,
)
def test_captures_of_both_sides(capsys, known, arguments):
    assert main(["compare", *(argument.format(**known) for argument in arguments)]) == 0
    out = capsys.readouterr().out
    if "json" in arguments:
        assert [json.loads(out)[side] for side in "ab"] == [["a", "one"], ["slow", "short"]]
    else:
        assert "A  a, one: " in out
        assert "B  slow, short: " in out
    assert "ranks: 2 or 1 in A, 2 in B" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{a}",), "needs two runs, but got 1"),
        (("--by", "kernel", "{a}", "{slow}", "{one}"), "needs two runs, but got 3"),
        (("--by", "run", "{a}"), "needs two runs or more, but got 1"),
        (("--by", "run", "{a}", "--against", "{slow}"), "compares two sides, but a series"),
        (("--top", "1", "{a}", "{slow}", "{one}"), "chooses from one table"),
        (("{a}", "--against"), "requires an argument"),
        (("--against", "{a}"), "Missing argument"),
        (("{a}", "{a}", "--against", "{slow}"), "given twice"),
        (("{a}", "{slow}", "--against", "{slow}"), "is given on both sides"),
        (("{a}", "{slow}", "--fail-above", "-1"), "--fail-above"),
        (("{a}", "{slow}", "--run-spread", "-1"), "--run-spread"),
        (("{a}", "{slow}", "--fail-above", "nan"), "--fail-above"),
        (("{a}", "{slow}", "--fail-above", "inf"), "inf is not a finite number"),
        (("{a}", "{slow}", "--run-spread", "nan"), "--run-spread"),
        (("{a}", "{slow}", "--run-spread", "1e300"), "--run-spread"),
    ],
)
def test_sides_that_are_none(capsys, known, arguments, message):
    assert main(["compare", *(argument.format(**known) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in " ".join(captured.err.replace("│", " ").split())


def test_what_the_runs_differ_in_is_said(capsys, known):
    main(["compare", known["a"], known["one"]])
    assert "ranks: 2 in A, 1 in B" in capsys.readouterr().out


def test_a_run_that_is_not_there(capsys, runs, tmp_path):
    assert main(["compare", runs["a"], str(tmp_path / "nowhere")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no such file or directory" in captured.err


@pytest.mark.parametrize("command", ["table kernels", "table gpus", "compare"])
def test_help_ends_with_examples(capsys, command):
    assert main([*command.split(), "--help"]) == 0
    examples = capsys.readouterr().out.partition("Examples:\n")[2]
    assert f"commtrace {command} " in examples
    assert "{prog}" not in examples


@pytest.mark.slow
def test_a_damaged_capture_is_said(capsys, tmp_path):
    run(tmp_path / "a", steps=4)
    whole = run(tmp_path / "b", steps=4)
    path = whole / "node_1.0001.pt.trace.json.gz"
    path.write_bytes(path.read_bytes()[:-400])
    assert main(["compare", "--fail-above", "5", str(tmp_path / "a"), str(whole)]) == 1
    assert capsys.readouterr().out == ""
    assert main(["compare", "--keep-going", "--fail-above", "5", str(tmp_path / "a"), str(whole)]) == 1
    captured = capsys.readouterr()
    assert "B: rank 1 is partial: nothing after the damage in its file is counted" in captured.out
    assert "slower: " not in captured.err
