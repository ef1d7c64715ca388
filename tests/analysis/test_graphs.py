"""Kernels of CUDA graphs: what launched them is in the trace of the capture, beside that of the run."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from builders import MS, US, Trace

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

THREAD = 4242


@dataclass(frozen=True)
class Node:
    """A kernel of a graph: the operator that adds it, the sizes of its inputs, and the layer."""

    kernel: str
    operator: str
    rows: int
    layer: int
    stream: int = 7


def drawn(rng: random.Random, size: int, *, streams: int = 1, layers: int = 3) -> list[Node]:
    return [
        Node(
            f"kernel_{nth}_of_{layer}",
            f"aten::{rng.choice(('mm', 'add', 'relu'))}",
            size,
            layer,
            7 + rng.randrange(streams),
        )
        for layer in range(layers)
        for nth in range(rng.randint(2, 5))
    ]


def capture(graphs: list[list[Node]], *, named: bool = True, sizes: tuple[int, ...] = (), rank: int = 0) -> Trace:
    """The trace of the capture of these graphs: nothing runs, and each call names its kernel, as on ROCm."""
    trace, now = Trace(rank), 0
    for place, nodes in enumerate(graphs):
        begin = now
        trace.event("cuda_runtime", "hipStreamBeginCapture", now, 5 * US, correlation=trace.next_id)
        now += 10 * US
        for layer in sorted({node.layer for node in nodes}):
            own = [node for node in nodes if node.layer == layer]
            trace.event("user_annotation", f"layers.{layer}", now, len(own) * 20 * US)
            for node in own:
                dims = [[node.rows, 64], [64, 64]]
                trace.event("cpu_op", node.operator, now + US, 15 * US, **{
                    "Input Dims": dims, "Input type": ["float", "float"], "Concrete Inputs": ["", ""],
                })  # fmt: skip
                trace.next_id += 1
                names = {"kernel": node.kernel} if named else {}
                trace.event("cuda_runtime", "hipLaunchKernel", now + 5 * US, 5 * US, correlation=trace.next_id, **names)
                now += 20 * US
        trace.next_id += 1
        trace.event("cuda_runtime", "hipStreamEndCapture", now, 5 * US, correlation=trace.next_id)
        now += 10 * US
        if sizes:
            trace.event("user_annotation", f"capture_{sizes[place]}_FULL", begin, now - begin)
        now += MS
    return trace


def replayed(steps: list[tuple[int, list[list[Node]]]], rank: int = 0) -> Trace:
    """Decode steps of so many requests, each of which replays these graphs."""
    trace, now = Trace(rank), 0
    for requests, graphs in steps:
        begin = now
        for nodes in graphs:
            trace.next_id += 1
            trace.event("cuda_runtime", "hipGraphLaunch", now + 5 * US, 20 * US, correlation=trace.next_id)
            for nth, node in enumerate(nodes):
                trace.event(
                    "kernel", node.kernel, now + 30 * US + nth * 10 * US, 10 * US, pid=0, tid=node.stream, device=0,
                    stream=node.stream, correlation=trace.next_id,
                )  # fmt: skip
            now += 30 * US + len(nodes) * 10 * US
        trace.annotation(f"step[DECODE bs={requests}]", begin, now - begin)
    return trace


def read(folder: Path, run: Trace, *captures: tuple[str, Trace]) -> Analysis:
    run.write(folder, "1743-TP-0.trace.json.gz")
    for name, trace in captures:
        (folder / "capture_traces").mkdir(exist_ok=True)
        trace.write(folder / "capture_traces", name)
    return analyse(folder, details=True, whole=True)


def by_operator(nodes: list[Node]) -> dict[str, int]:
    return {name: sum(node.operator == name for node in nodes) for name in sorted({node.operator for node in nodes})}


def known(found: Analysis) -> dict[str, int]:
    rows = records(found.operators)
    return {row["operator"]: row["calls"] for row in rows if row["operator"] is not None}


def by_region(found: Analysis) -> dict[str, int]:
    """How many kernels of 10 us ran for each region."""
    return {
        str(region): int(own["compute_ns"].sum()) // (10 * US) for region, own in found.regions_steps.groupby("region")
    }


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_kernels_have_the_operator_shape_and_region_of_their_capture(tmp_path: Path, seed: int, streams: int) -> None:
    rng = random.Random(seed)
    sizes = (8, 4, 2)
    graphs = {size: drawn(rng, size, streams=streams) for size in sizes}
    steps = [rng.choice((1, 2, 3, 4, 6, 8)) for _ in range(4)]
    own = [graphs[min(size for size in sizes if size >= requests)] for requests in steps]
    run = replayed([(requests, [nodes]) for requests, nodes in zip(steps, own, strict=True)])
    captures = capture([graphs[size] for size in sizes], sizes=sizes)
    found = read(tmp_path, run, ("graph_capture_rank_0.123.pt.trace.json.gz", captures))
    ran = [node for nodes in own for node in nodes]
    assert known(found) == by_operator(ran)
    assert found.graph_notes == ()
    by_shape = {(row["operator"], row["inputs"]): row["calls"] for row in records(found.shapes)}
    assert by_shape == {
        (name, f"{rows}x64 64x64"): sum((node.operator, node.rows) == (name, rows) for node in ran)
        for name, rows in {(node.operator, node.rows) for node in ran}
    }
    assert by_region(found) == {f"layers.{n}": sum(node.layer == n for node in ran) for n in range(3)}


def test_one_kernel_of_another_name_is_another_graph(tmp_path: Path) -> None:
    nodes = drawn(random.Random(1), 4)
    other = [*nodes[:2], replace(nodes[2], kernel="another"), *nodes[3:]]
    found = read(tmp_path, replayed([(4, [nodes])] * 3), ("bs_4_rank0.json.gz", capture([other])))
    assert known(found) == {}
    [note] = found.graph_notes
    assert note.startswith("3 replayed graphs of 3: operators are not known, as no capture beside the traces adds")


def test_of_two_captures_that_both_fit_the_size_of_the_batch_tells(tmp_path: Path) -> None:
    nodes = drawn(random.Random(2), 4)
    larger = [replace(node, rows=8) for node in nodes]
    found = read(
        tmp_path,
        replayed([(3, [nodes]), (4, [nodes]), (7, [larger])]),
        ("bs_4_rank0.json.gz", capture([nodes])),
        ("bs_8_rank0.json.gz", capture([larger])),
    )
    calls = {4: 0, 8: 0}
    for row in records(found.shapes):
        calls[int(row["inputs"].partition("x")[0])] += row["calls"]
    assert calls == {4: 2 * len(nodes), 8: len(nodes)}


def test_of_two_captures_that_both_fit_and_tell_no_size_none_is_taken(tmp_path: Path) -> None:
    nodes = drawn(random.Random(3), 4)
    both = capture([nodes, [replace(node, rows=8, operator="aten::mul") for node in nodes]])
    found = read(tmp_path, replayed([(3, [nodes])] * 2), ("graph_capture_rank_0.1.pt.trace.json.gz", both))
    assert known(found) == {}
    assert "nothing tells which was replayed" in found.graph_notes[0]


def test_parts_that_are_alike_are_replayed_in_the_order_of_their_capture(tmp_path: Path) -> None:
    """Piecewise graphs: one for each layer, with the same kernels in all of them."""
    parts = [[Node("gemm", "aten::mm", 4, layer), Node("act", "aten::relu", 4, layer)] for layer in range(4)]
    captured = capture(parts, sizes=(4,) * 4)
    found = read(tmp_path, replayed([(4, parts)] * 3), ("graph_capture_rank_0.1.pt.trace.json.gz", captured))
    assert by_region(found) == {f"layers.{layer}": 6 for layer in range(4)}


@pytest.mark.slow
def test_calls_that_name_no_kernel_count_by_their_number_and_say_so(tmp_path: Path) -> None:
    nodes = drawn(random.Random(4), 4)
    found = read(tmp_path, replayed([(4, [nodes])] * 2), ("bs_4_rank0.json.gz", capture([nodes], named=False)))
    assert known(found) == by_operator([*nodes, *nodes])
    assert "some of which do not name their kernels" in found.graph_notes[0]
    shorter = capture([nodes[:-1]], named=False)
    other = read(tmp_path / "other", replayed([(4, [nodes])] * 2), ("bs_4_rank0.json.gz", shorter))
    assert known(other) == {}


def test_ranks_have_captures_of_their_own(tmp_path: Path) -> None:
    nodes = [drawn(random.Random(seed), 4) for seed in (5, 6)]
    for rank in range(2):
        trace = replayed([(4, [nodes[rank]])] * 2, rank)
        trace.world = 2
        trace.write(tmp_path, f"1743-TP-{rank}.trace.json.gz")
        (tmp_path / "capture_traces").mkdir(exist_ok=True)
        capture([nodes[rank]], rank=rank).write(tmp_path / "capture_traces", f"bs_4_rank{rank}.json.gz")
    found = analyse(tmp_path, details=True, whole=True)
    assert known(found) == by_operator([*nodes[0], *nodes[0], *nodes[1], *nodes[1]])


def test_the_notes_of_graphs_are_beside_their_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = drawn(random.Random(7), 4)
    read(tmp_path, replayed([(4, [nodes])] * 2), ("bs_4_rank0.json.gz", capture([nodes[1:]])))
    for command in (["table", "kernels", "--by", "operator"], ["compute", "--by", "category"]):
        main([*command, "--no-cache", str(tmp_path)])
        assert "2 replayed graphs of 2: operators are not known" in " ".join(capsys.readouterr().err.split())


def test_without_captures_nothing_is_said(tmp_path: Path) -> None:
    assert read(tmp_path, replayed([(4, [drawn(random.Random(8), 4)])] * 2)).graph_notes == ()
