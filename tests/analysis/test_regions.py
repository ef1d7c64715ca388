"""Where in the model time goes, on made-up traces: beside a brute-force projection, and case by case."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import GLOO_THREAD, MAIN_THREAD, MS, US, Trace, comm_args
from nsight_exports import SYSTEM_NS, process, small
from region_oracle import Oracle, Ran
from report_pages import ReadPage

from commtrace import analyse
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.render.plots.drawing import region_labels
from commtrace.analysis.report.run_report import run_figures
from commtrace.analysis.results.analysis import Analysis
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
ENGINE, LOADER = 77, 88
PARTS = {
    "compute": ["compute_ns"],
    "comm": ["exposed_transfer_ns", "exposed_wait_ns", "exposed_unsplit_ns"],
    "memory": ["exposed_memory_ns"],
    "idle": ["idle_ns"],
    "hidden": ["hidden_ns"],
}
EVALUATE = "autograd::engine::evaluate_function: "


def read(folder: Path, *traces: Trace) -> Analysis:
    for made in traces:
        made.write(folder)
    return analyse(folder, details=True, cache=False)


def by_place(rows: pd.DataFrame, columns: list[str]) -> dict[tuple[str, str | None], int]:
    """The sum of these columns by region and phase, without zeros."""
    sums: dict[tuple[str, str | None], int] = {}
    for row in records(rows):
        key = row["region"], row["phase"]
        sums[key] = sums.get(key, 0) + sum(row[column] or 0 for column in columns)
    return {key: value for key, value in sums.items() if value}


def row_of(table: pd.DataFrame, region: str, phase: str | None = None) -> Row:
    (row,) = [row for row in records(table) if (row["region"], row["phase"]) == (region, phase)]
    return row


def assert_adds_up(analysis: Analysis) -> None:
    steps = analysis.regions_steps
    for window in records(analysis.breakdown_steps):
        own = steps[(steps["rank"] == window["rank"]) & (steps["step"] == window["step"])]
        assert own["self_ns"].sum() == window["window_ns"] == own["window_ns"].iloc[0]
        for column in (*PARTS["compute"], *PARTS["comm"], *PARTS["memory"], *PARTS["idle"]):
            assert own[column].sum() == (window[column] or 0)
        assert own["hidden_ns"].sum() == window["overlap_ns"]


class Training:
    """A random step: modules in modules, a backward pass on another thread, recomputation, copies, an optimizer."""

    def __init__(self, seed: int, rank: int) -> None:
        self.random = random.Random(seed)
        self.slower = random.Random(f"{seed} {rank}")
        self.made = Trace(rank, 2, {"0": (0, 1)})
        self.now, self.sequence, self.modules = 10 * US, 100, 0
        self.free = {7: 0, 8: 0, 20: 0}
        self.recorded: list[tuple[int, bool]] = []
        for step in (4, 5):
            self.step(step)

    def launch(self, kind: str, at: int, thread: int, stream: int) -> None:
        took = self.slower.randrange(1, 30) * US
        start = max(self.free[stream], at + self.slower.randrange(0, 8) * US)
        self.free[stream] = start + took
        where: dict[str, Any] = {"launch": at, "thread": thread, "stream": stream}
        if kind == "comm":
            args = comm_args("all_reduce", 1024, ranks=(0, 1))
            self.made.kernel("ncclDevKernel_AllReduce", start, took, args=args, **where)
        elif kind == "memory":
            self.made.memcpy("HtoD", start, took, **where)
        else:
            self.made.kernel("gemm", start, took, **where)

    def operator(self, thread: int, stream: int = 7) -> None:
        """A forward operator; some make no node of the graph, and share the number of the next one."""
        began = self.now
        makes_node = self.random.random() < 0.7
        self.launch("compute", self.now + US, thread, stream)
        self.now += 3 * US
        args = {"Sequence number": self.sequence, "Fwd thread id": 0}
        self.made.event("cpu_op", "aten::linear", began, self.now - began, tid=thread, **args)
        if makes_node:
            self.recorded.append((self.sequence, self.random.random() < 0.3))
            self.sequence += 1

    def module(self, depth: int, thread: int = MAIN_THREAD) -> None:
        began, number = self.now, self.modules
        self.modules += 1
        self.now += US
        for _ in range(self.random.randrange(1, 4)):
            if depth and self.random.random() < 0.6:
                self.module(depth - 1, thread)
            else:
                self.operator(thread, self.random.choice((7, 8)))
        self.now += US
        if self.random.random() < 0.8:
            kind = self.random.choice(("python_function", "user_annotation"))
            name = f"nn.Module: Layer_{number}" if kind == "python_function" else f"layer {number}"
            self.made.event(kind, name, began, self.now - began, tid=thread)

    def backward(self) -> None:
        for number, again in reversed(self.recorded):
            began = self.now
            self.now += US
            args = {"Sequence number": number, "Fwd thread id": 1}
            if again:
                inner = self.now
                self.now += US
                own = {"Sequence number": 5000 + number, "Fwd thread id": 0}
                self.made.event("cpu_op", "aten::linear", self.now, 3 * US, tid=ENGINE, **own)
                self.launch("compute", self.now + US, ENGINE, 7)
                self.now += 4 * US
                name = f"nn.Module: Layer_{self.random.randrange(self.modules)}"
                self.made.event("python_function", name, inner, self.now - inner, tid=ENGINE)
            self.launch("compute", self.now, ENGINE, 8)
            self.now += 2 * US
            self.made.event("cpu_op", f"{EVALUATE}LinearBackward0", began, self.now - began, tid=ENGINE, **args)
            if self.random.random() < 0.4:
                self.made.event("cpu_op", f"{EVALUATE}torch::autograd::AccumulateGrad", self.now, 3 * US, tid=ENGINE)
                self.launch("comm", self.now + US, ENGINE, 20)
                self.now += 3 * US
            if self.random.random() < 0.2:
                self.launch("compute", self.now, ENGINE, 7)
                self.now += US

    def step(self, number: int) -> None:
        began = self.now
        self.recorded.clear()
        self.modules = 0
        self.made.event("user_annotation", "copy batch", self.now, 10 * US, tid=LOADER)
        self.launch("memory", self.now + 2 * US, LOADER, 20)
        self.module(3)
        started = self.now
        self.now += US
        self.backward()
        if self.random.random() < 0.5:
            self.made.event("user_annotation", "backward", started, self.now - started)
        self.launch("memory", self.now, MAIN_THREAD, 7)
        self.made.event("user_annotation", "Optimizer.step#SGD.step", self.now + US, 8 * US)
        self.launch("compute", self.now + 2 * US, MAIN_THREAD, 7)
        self.now += 10 * US
        self.made.step(number, began, self.now)
        self.now += 2 * US


@pytest.mark.parametrize("seed", range(8))
def test_every_moment_belongs_to_the_region_that_launched_its_work(tmp_path: Path, seed: int) -> None:
    made = [Training(seed, rank).made for rank in range(2)]
    analysis = read(tmp_path, *made)
    steps, broken_down = analysis.regions_steps, analysis.breakdown_steps
    assert_adds_up(analysis)
    for rank, trace in enumerate(made):
        oracle = Oracle(trace.events, MAIN_THREAD)
        ran = analysis.run.activities[analysis.run.activities["rank"] == rank]
        lead = ran["start_ns"].min() - ran[["start_ns", "idle_since_ns"]].min().min()
        first = min(one.start for one in oracle.ran) - int(lead)
        for window in records(broken_down[broken_down["rank"] == rank]):
            last = first + window["window_ns"]
            expected = oracle.times(first, last)
            own = steps[(steps["rank"] == rank) & (steps["step"] == window["step"])]
            for part, columns in PARTS.items():
                assert by_place(own, columns) == expected[part], part
            first = last


def test_with_a_depth_a_region_stands_for_all_inside(tmp_path: Path) -> None:
    analysis = read(tmp_path, Training(3, 0).made, Training(3, 1).made)
    whole, steps = analysis.regions_steps, analysis.region_table("regions_steps", 1)
    assert steps["self_ns"].sum() == whole["self_ns"].sum()
    assert not steps["region"].str.contains(" > ").any()
    tops = whole[~whole["region"].str.contains(" > ")]
    totals = by_place(tops, ["total_ns"])
    assert by_place(steps, ["self_ns"]) == totals
    assert by_place(steps, ["cpu_self_ns"]) == by_place(tops, ["cpu_ns"])
    assert by_place(steps, ["calls"]) == by_place(tops, ["calls"])


@pytest.mark.slow
def test_regions_that_differ_in_numbers_are_one_class(tmp_path: Path) -> None:
    def rank(number: int) -> Trace:
        made = Trace(number, 2)
        for step in range(2):
            began = 10 * step * MS
            made.step(step, began, began + 10 * MS)
            for at, name in enumerate(("conv1", "conv2", "layers.0.mlp", "layers.1.mlp", "layers.2.mlp")):
                start = began + at * MS
                made.event("user_annotation", name, start, 500 * US)
                made.kernel("gemm", start + 9 * US, (400 if name == "layers.2.mlp" else 100) * US, launch=start + US)
        return made

    analysis = read(tmp_path, rank(0), rank(1))
    regions, classes = analysis.regions, analysis.region_classes
    assert set(classes["region"]) == {"conv1", "conv2", "layers.*.mlp"}
    layers = row_of(classes, "layers.*.mlp")
    members = [row_of(regions, f"layers.{layer}.mlp") for layer in range(3)]
    assert (layers["instances"], layers["calls"], layers["kernels"], layers["ranks"]) == (3, 3, 3, 2)
    for column in ("self_ns", "compute_ns", "idle_ns", "cpu_ns"):
        assert layers[column] == sum(row[column] for row in members) > 0
    # Each layer has the idle time before its kernel, and that before the last one is no shorter.
    assert (layers["slowest_region"], layers["slowest_region_over_ns"]) == ("layers.2.mlp", 300 * US)
    assert layers["slowest_region_over_frac"] == pytest.approx(0.3)
    alone = row_of(classes, "conv1")
    assert (alone["instances"], alone["slowest_region"], alone["slowest_region_over_ns"]) == (1, None, None)


@pytest.mark.slow_cases("3")
@pytest.mark.parametrize("depth", [None, 3])
def test_classes_add_up_as_regions_do(tmp_path: Path, depth: int | None) -> None:
    """To the ns, part by part: of one window of one device no mean is rounded."""
    made = Training(3, 0).made
    made.events = [event for event in made.events if not event["name"].startswith("ProfilerStep#")]
    analysis = read(tmp_path, made)
    regions, classes = (analysis.region_table(name, depth) for name in ("regions", "region_classes"))
    assert len(classes) < len(regions) == classes["instances"].sum()
    assert classes["self_ns"].sum() == analysis.breakdown["window_ns"].sum()
    for column in (*(name for part in PARTS.values() for name in part), "cpu_self_ns", "calls", "kernels"):
        assert classes[column].sum() == regions[column].sum(), column
    for name in ("total_ns", "cpu_ns"):
        tops = [table[~table["region"].str.contains(" > ")] for table in (regions, classes)]
        assert tops[0][name].sum() == tops[1][name].sum()


def test_a_layer_is_compared_on_the_ranks_that_have_it(tmp_path: Path) -> None:
    """Two pipeline stages number their layers from 0; the second one has a layer more."""
    for rank, layers in enumerate((3, 4)):
        made = Trace(rank, 2)
        for layer in range(layers):
            made.event("python_function", f"nn.Module: Block_{layer}", 100 * layer * US, 90 * US)
            made.kernel("gemm", (100 * layer + 10) * US, 100 * US, launch=(100 * layer + 2) * US)
        made.write(tmp_path)
    row = row_of(read(tmp_path).region_classes, "Block_*")
    assert (row["instances"], row["ranks"], row["slowest_region"]) == (4, 2, None)


def test_calls_and_cpu_time(tmp_path: Path) -> None:
    made = Trace(0, 1).event("python_function", "nn.Module: Net_0", 0, 100 * US)
    for start in (10, 50):
        made.annotation("block", start * US, 30 * US).kernel("gemm", (start + 60) * US, 20 * US, launch=start * US)
    made.kernel("gemm", 5 * US, US, launch=None)
    table = read(tmp_path, made).regions
    block, net = row_of(table, "Net_0 > block"), row_of(table, "Net_0")
    assert (block["calls"], block["cpu_self_ns"], block["cpu_ns"], block["kernels"]) == (2, 60 * US, 60 * US, 2)
    assert (net["calls"], net["cpu_self_ns"], net["cpu_ns"], net["kernels"]) == (1, 40 * US, 100 * US, 0)
    assert (net["self_ns"], net["total_ns"]) == (0, block["self_ns"])
    outside = row_of(table, "(no launch in the trace)")
    assert (outside["compute_ns"], outside["cpu_ns"], outside["calls"]) == (US, None, None)


def test_kernels_count_in_the_step_in_which_they_begin_on_the_device(tmp_path: Path) -> None:
    """One launched in step 3 that runs in step 4; one that begins where the last window ends is in none."""
    made = Trace(0, 1).step(3, 0, 100 * US).step(4, 100 * US, 200 * US)
    made.annotation("a", 0, 100 * US).annotation("b", 100 * US, 90 * US)
    made.kernel("gemm", 10 * US, 20 * US, launch=5 * US).kernel("gemm", 120 * US, 20 * US, launch=90 * US)
    made.kernel("gemm", 115 * US, US, launch=110 * US).kernel("gemm", 140 * US, 20 * US, launch=None)
    steps = read(tmp_path, made).regions_steps
    counted = {(row["step"], row["region"]): row["kernels"] for row in records(steps) if row["kernels"]}
    assert counted == {(3, "a"): 1, (4, "a"): 1, (4, "b"): 1}


def test_what_checkpointing_runs_again_has_the_path_it_had(tmp_path: Path) -> None:
    """The first backward operator to ask is of the last layer; the first layer runs again within it, too."""
    made = Trace(0, 1)
    made.event("python_function", "nn.Module: Net_0", 0, 100 * US)
    for number in range(2):
        at = (10 + 40 * number) * US
        made.event("python_function", f"nn.Module: Layer_{number}", at, 30 * US)
        args = {"Sequence number": 7 + number, "Fwd thread id": 0}
        made.event("cpu_op", "aten::linear", at + US, 20 * US, **args).kernel("gemm", at + 5 * US, 10 * US)
    backward = {"Sequence number": 8, "Fwd thread id": 1}
    made.event("cpu_op", f"{EVALUATE}LinearBackward0", 200 * US, 100 * US, tid=ENGINE, **backward)
    for number in range(2):
        at = (210 + 40 * number) * US
        made.event("python_function", f"nn.Module: Layer_{number}", at, 30 * US, tid=ENGINE)
        args = {"Sequence number": number, "Fwd thread id": 0}
        made.event("cpu_op", "aten::linear", at + US, 20 * US, tid=ENGINE, **args)
        made.kernel("gemm", at + 5 * US, 10 * US, thread=ENGINE)
    made.kernel("gemm_backward", 296 * US, 20 * US, thread=ENGINE)
    table = read(tmp_path, made).regions
    for number in range(2):
        row = row_of(table, f"Net_0 > Layer_{number}", "recompute")
        assert (row["calls"], row["compute_ns"]) == (1, 10 * US)
    assert row_of(table, "Net_0 > Layer_1", "backward")["compute_ns"] == 20 * US


def test_the_outlier_among_ranks_is_named(tmp_path: Path) -> None:
    def rank(number: int) -> Trace:
        made = Trace(number, 4)
        for layer in range(3):
            at = layer * MS
            made.event("python_function", f"nn.Module: Layer_{layer}", at, 100 * US)
            late = 300 * US if (number, layer) == (2, 1) else 0
            made.kernel("gemm", at + 50 * US, 500 * US + late, launch=at + 10 * US)
        return made

    table = read(tmp_path, *map(rank, range(4))).regions
    # Of layer 1 the kernel took longer; the gap before layer 2 is shorter for that, so no rank is slow there.
    row = row_of(table, "Layer_1")
    assert (row["ranks"], row["slowest_rank"], row["slowest_over_ns"]) == (4, 2, 300 * US)
    assert row["slowest_over_frac"] == pytest.approx(300 / (500 + 500))
    assert row_of(table, "Layer_0")["slowest_rank"] is None


def test_a_rank_that_takes_nothing_itself_is_compared_too(tmp_path: Path) -> None:
    for rank in range(2):
        made = Trace(rank, 2).annotation("block", 0, 100 * US).annotation("inside", 10 * US, 50 * US)
        made.kernel("gemm", 30 * US, 20 * US, launch=20 * US)
        if rank:
            made.kernel("gemm", 80 * US, 30 * US, launch=70 * US)
        made.write(tmp_path)
    row = row_of(read(tmp_path).regions, "block")
    assert (row["ranks"], row["slowest_rank"], row["slowest_over_ns"], row["slowest_over_frac"]) == (
        2, 1, 60 * US, None,
    )  # fmt: skip


@pytest.mark.slow
def test_the_page_shows_costly_classes_and_who_is_slow_where(tmp_path: Path) -> None:
    for rank in range(4):
        made = Trace(rank, 4)
        for layer in range(3):
            at = layer * MS
            made.event("python_function", f"nn.Module: Layer_{layer}", at, 100 * US)
            longer = 300 * US if (rank, layer) == (2, 2) else 0
            made.kernel("gemm", at + 50 * US, 500 * US + longer, launch=at + 10 * US)
        made.event("user_annotation", "loss", 3 * MS, 200 * US).kernel("gemm", 3050 * US, 400 * US, launch=3001 * US)
        made.write(tmp_path)
    analysis = read(tmp_path)
    text = "".join(ReadPage(analysis.report().html).texts)
    assert "76% of the window is in the 3 Layer_*." in text
    # 75 us for the one rank out of four, and half of the idle time before it: before Layer_0 there is none.
    assert "Layer_2 takes 0.3 ms longer than the median of its class." in text
    assert "Rank 2 takes 0.3 ms longer than the median of the other ranks in Layer_*, not counting waits." in text
    figures = run_figures(analysis)
    assert "2.6 ms, 76%" in figures["regions"].svg
    slow = json.loads(figures["slow-regions"].data)
    assert (slow["rows"], slow["columns"], slow["values"]) == (["Layer_*"], list("0123"), [[0, 0, 0.3, 0]])


@pytest.mark.slow
def test_a_page_says_nothing_of_regions_where_there_are_none(tmp_path: Path) -> None:
    made = Trace(0, 1).step(3, 0, MS).annotation("everything", 0, MS).kernel("gemm", US, US)
    assert "Where in the model" not in read(tmp_path, made).report().html


def test_labels_of_regions_lose_outer_names_but_stay_apart() -> None:
    assert region_labels([("Net_0 > Linear_1", None), ("Net_0 > Linear_1", "backward")]) == [
        "Net_0 > Linear_1",
        "Net_0 > Linear_1 (backward)",
    ]
    graph = "Optimizer.step#A > Torch-Compiled Region: {} > CompiledFxGraph"
    assert region_labels([(graph.format("4/0"), None)]) == ["... > CompiledFxGraph"]
    assert region_labels([(graph.format("4/0"), None), (graph.format("4/1"), None)]) == [
        "... > ...piled Region: 4/0 > CompiledFxGraph",
        "... > ...piled Region: 4/1 > CompiledFxGraph",
    ]


def test_on_cpus_operators_are_the_work_and_collectives_belong_to_who_handed_them_over(tmp_path: Path) -> None:
    made = Trace(0, 2, {"0": (0, 1)}, backend="gloo", device_names=())
    made.annotation("forward", 0, 100 * US).op("aten::linear", 10 * US, 40 * US)
    made.event("cpu_op", "aten::mm", 20 * US, 20 * US, **{"Sequence number": 3, "Fwd thread id": 0})
    made.event("cpu_op", f"{EVALUATE}MmBackward0", 120 * US, 60 * US, **{"Sequence number": 3, "Fwd thread id": 1})
    made.annotation("reduce", 190 * US, 20 * US).c10d("allreduce_", 195 * US, dims=[[[8]]], types=["TensorList"])
    made.gloo("all_reduce", 200 * US, 50 * US, dims=[[8]], types=["float"], thread=GLOO_THREAD)
    table = read(tmp_path, made).regions
    forward = row_of(table, "forward")
    assert (forward["compute_ns"], forward["idle_ns"]) == (40 * US, 50 * US)
    back = row_of(table, "forward", "backward")
    assert (back["compute_ns"], back["idle_ns"], back["cpu_ns"]) == (60 * US, 0, 60 * US)
    reduce = row_of(table, "reduce")
    assert (reduce["exposed_unsplit_ns"], reduce["exposed_wait_ns"], reduce["idle_ns"]) == (50 * US, None, 10 * US)


@pytest.mark.parametrize("seed", range(4))
def test_idle_time_of_a_cpu_belongs_to_the_regions_in_which_its_thread_is(tmp_path: Path, seed: int) -> None:
    """Drawn ranges, some of them within others, and operators, in us; the last of the ranges around a moment counts."""
    draw, made = random.Random(seed), Trace(0, 1, backend="gloo", device_names=())
    ranges: list[tuple[int, int, str]] = []
    for number in range(12):
        begin, length = 40 * number, draw.randrange(20, 40)
        ranges.append((begin, begin + length, f"outer{number % 5}x"))
        inner = begin + draw.randrange(1, 8)
        ranges.append((inner, inner + draw.randrange(2, 12), f"inner{number % 3}x"))
    for begin, end, name in ranges:
        made.annotation(name, begin * US, (end - begin) * US)
    busy: set[int] = set()
    for begin in sorted(draw.sample(range(0, 480, 3), 40)):
        made.op("aten::add", begin * US, 2 * US)
        busy |= {begin, begin + 1}
    expected: Counter[str] = Counter()
    for moment in range(min(busy), max(busy)):
        around = [name for begin, end, name in ranges if begin <= moment < end]
        expected[" > ".join(around) or "(outside any region)"] += US * (moment not in busy)
    table = read(tmp_path, made).regions
    found = dict(zip(table["region"], table["idle_ns"], strict=True))
    assert {name: ns for name, ns in found.items() if ns} == {name: ns for name, ns in expected.items() if ns}


@pytest.mark.slow
def test_people_are_told_how_much_of_the_step_they_do_not_see(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Trace(0, 1)
    for layer in range(100):
        made.annotation(f"layer{layer}x", 2 * layer * US, 2 * US)
        made.kernel("gemm", (2 * layer + 1) * US, 2 * US, launch=2 * layer * US)
    made.write(tmp_path)
    said = []
    for options in ([], ["--where", "region~layer9"], ["--all"], ["--top", "99"]):
        assert main(["regions", "--no-cache", *options, str(tmp_path)]) == 0
        said.append(capsys.readouterr().out)
    assert said[0].endswith("left out 70 rows, together 70.0 % of the time (--all shows all)\n")
    assert "left out" not in said[1]
    assert (said[2].count("layer"), said[3].count("layer")) == (100, 99)
    assert main(["regions", "--no-cache", "--by", "rank", str(tmp_path)]) == 0
    assert "left out 90 rows, together 90.0 % of the time (" in capsys.readouterr().out


@pytest.mark.parametrize(("alike", "expected"), [(False, {"A", "B"}), (True, {"calling"})])
def test_threads_that_count_alike_are_told_apart_or_not_at_all(tmp_path: Path, alike: bool, expected: set[str]) -> None:
    """Replicas of nn.DataParallel: each thread counts its operators from 0, and B may have one more."""
    made = Trace(0, 1).event("user_annotation", "calling", 300 * US, 300 * US)
    for thread, name in ((11, "A"), (12, "B")):
        made.event("user_annotation", name, 10 * US, 200 * US, tid=thread)
        operators = range(3 if name == "A" or alike else 4)
        for number in operators:
            args = {"Sequence number": number, "Fwd thread id": 0}
            made.event("cpu_op", "aten::mm", (20 + 10 * number) * US, 5 * US, tid=thread, **args)
        engine, began = thread + 10, (400 if name == "B" else 500) * US
        for number in operators:
            args = {"Sequence number": number, "Fwd thread id": 3 if name == "A" else 2}
            start = began + 10 * number * US
            made.event("cpu_op", f"{EVALUATE}MmBackward0", start, 5 * US, tid=engine, **args)
            made.kernel("gemm_" + name, start + 500 * US, US, launch=start + US, thread=engine, stream=thread)
    # The thread that has most regions is the main one.
    analysis = read(tmp_path, made.annotation("main", 0, 250 * US).annotation("main", 700 * US, US))
    rows = [row for row in records(analysis.regions) if row["phase"] == "backward"]
    assert {row["region"]: row["kernels"] for row in rows} == dict.fromkeys(expected, 6 if alike else 3) | (
        {} if alike else {"B": 4}
    )


def test_ranges_that_overlap_in_part_are_cut(tmp_path: Path) -> None:
    made = Trace(0, 1).annotation("a", 0, 100 * US).annotation("b", 90 * US, 60 * US).annotation("c", 140 * US, 12 * US)
    for at in (10, 95, 145):
        made.kernel("gemm", at * US, US, launch=at * US)
    # Most of e lies inside of d, and yet e is around what is launched after d ended.
    made.annotation("d", 200 * US, 100 * US).annotation("e", 240 * US, 80 * US).kernel(
        "gemm", 320 * US, US, launch=310 * US
    )
    table = read(tmp_path, made).regions
    assert set(table["region"]) == {"a", "b", "b > c", "d", "e"}
    assert row_of(table, "a")["cpu_ns"] == 90 * US
    assert row_of(table, "b")["cpu_ns"] == 60 * US
    assert (row_of(table, "e")["cpu_ns"], row_of(table, "e")["kernels"]) == (80 * US, 1)


def test_a_name_like_a_path_is_no_path(tmp_path: Path) -> None:
    made = Trace(0, 1).annotation("x", 0, 20 * US).annotation("y", US, 10 * US).annotation("x > y", 30 * US, 10 * US)
    for at in (2, 31):
        made.kernel("gemm", at * US, US, launch=at * US)
    assert set(read(tmp_path, made).regions["region"]) == {"x", "x > y", "x>y"}


def test_without_regions_nothing_is_measured(tmp_path: Path) -> None:
    analysis = read(tmp_path, Trace(0, 1).step(3, 0, MS).op("aten::mm", 0, 9 * US).kernel("gemm", US, US))
    assert not len(analysis.regions)


def test_a_python_function_called_in_the_backward_pass_does_not_run_again(tmp_path: Path) -> None:
    """Its backward is the same function, which has a sequence number although no gradients are enabled."""
    made = Trace(0, 1).annotation("exchange", 0, 50 * US)
    made.event("cpu_op", "_AlltoAllSingle", 5 * US, 20 * US, **{"Sequence number": 4, "Fwd thread id": 0})
    backward = {"Sequence number": 4, "Fwd thread id": 1}
    made.event("cpu_op", f"{EVALUATE}_AlltoAllSingleBackward", 100 * US, 50 * US, tid=ENGINE, **backward)
    again = {"Sequence number": 0, "Fwd thread id": 0}
    made.event("cpu_op", "_AlltoAllSingle", 110 * US, 20 * US, tid=ENGINE, **again)
    made.kernel("gemm", 120 * US, 20 * US, thread=ENGINE)
    table = read(tmp_path, made).regions
    assert row_of(table, "exchange", "backward")["compute_ns"] == 20 * US
    assert "recompute" not in set(table["phase"].dropna())


@pytest.mark.slow
def test_a_real_capture_with_gloo() -> None:
    """Compute of its operators, cut where regions begin and end within them; and all parts beside the breakdown."""
    folder = ROOT / "traces/resnet18-ddp-w2"
    analysis = analyse(folder, details=True, cache=False)
    steps, broken_down = analysis.regions_steps, analysis.breakdown_steps
    assert_adds_up(analysis)
    for rank, path in enumerate(sorted(folder.glob("*.gz"))):
        document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
        found = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        marks = [event for event in found if event["name"].startswith("ProfilerStep#")]
        oracle = Oracle(found, marks[0]["tid"])
        own = analysis.run.activities[analysis.run.activities["rank"] == rank]
        begins = own.loc[own["step"].notna(), ["start_ns", "idle_since_ns"]].min().min()
        first = int(begins) - document["baseTimeNanoseconds"]
        ran = [row for row in records(own) if row["kind"] == "compute"]
        oracle.ran = sorted(pieces(ran, oracle, document["baseTimeNanoseconds"]), key=lambda one: one.start)
        for window in records(broken_down[broken_down["rank"] == rank]):
            of_step = steps[(steps["rank"] == rank) & (steps["step"] == window["step"])]
            oracle.ran.append(Ran("none", first + window["window_ns"], first + window["window_ns"], ("", None), 0))
            oracle.ran.sort(key=lambda one: one.start)
            expected = oracle.times(first, first + window["window_ns"])
            assert by_place(of_step, ["compute_ns"]) == expected["compute"]
            first += window["window_ns"]


def pieces(ran: list[Row], oracle: Oracle, base: int) -> Iterator[Ran]:
    for row in ran:
        start = row["start_ns"] - base
        end = start + row["dur_ns"]
        bounds = {time for one in oracle.threads[row["stream"]] for time in (one.start, one.end) if start < time < end}
        for begin, until in pairwise(sorted({start, end, *bounds})):
            yield Ran("compute", begin, until, oracle.place(row["stream"], begin), 0)


def test_nvtx_ranges_of_an_export_of_nsight(tmp_path: Path) -> None:
    export = small([("gemm", 100, 200), ("gemm", 300, 450)])
    for name, start, end in (("layer 17", 50, 200), ("aten::mm", 60, 150), ("head", 250, 350)):
        export.add("NVTX_EVENTS", start=SYSTEM_NS + start, end=SYSTEM_NS + end, eventType=59, text=name,
                   globalTid=process(7) + 7, domainId=0)  # fmt: skip
    export.write(tmp_path / "rank_0.sqlite")
    table = analyse(tmp_path, details=True, cache=False).regions
    assert by_place(table, ["compute_ns"]) == {("layer 17", None): 100, ("head", None): 150}
