"""What is a pipeline, and what is none: marks, chains without marks, rings, and ranks that are not there."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from simulator import World, simulate
from simulator.pipelines import cp_ring, three_d
from simulator.world import Hardware

from commtrace import analyse
from commtrace.analysis.metrics.pipelines.account import WaitGraph
from commtrace.analysis.metrics.pipelines.pieces import actions_of
from commtrace.analysis.metrics.pipelines.schedule import StagePiece, schedule_of
from commtrace.analysis.report.run_report import run_figures


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("PP:0F3", [("F", 0, 3)]),
        ("PP:12W15", [("W", 12, 15)]),
        ("PP:(0F3;3B1)OVERLAP_F_B", [("F", 0, 3), ("B", 3, 1)]),
        ("Forward 7", [("F", None, 7)]),
        ("Backward 0", [("B", None, 0)]),
        ("PP:0SEND_F3", []),
        ("PP:2UNSHARD", []),
        ("Forward pass", []),
        ("ProfilerStep#3", []),
        ("PP:(junk)OVERLAP_F_B", []),
        ("PP:99999999999999999999F1", []),
        ("Forward 999999999999", []),
    ],
)
def test_marks_of_schedules(name, found):
    assert list(actions_of(name)) == found


def pieces_of(text: str) -> dict[int, list[StagePiece]]:
    """Ranks by lines, pieces as in torch's tables."""
    found: dict[int, list[StagePiece]] = {}
    for rank, line in enumerate(text.strip().splitlines()):
        told = [actions_of(f"PP:{one}")[0] for one in line.split()]
        found[rank] = [
            StagePiece(rank, place, one.way, one.stage, one.microbatch, 0, 10, 10.0) for place, one in enumerate(told)
        ]
    return found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1", "GPipe"),
        ("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1", "1F1B"),
        ("0F0 0F1 0B1 0B0\n1F0 1B0 1F1 1B1", "1F1B"),
        ("0F0 0B0 0F1 0B1\n1F0 1B0 1F1 1B1", "unknown"),  # the first stage does not run ahead
        ("0F0 2F0 2B0 0B0\n1F0 3F0 3B0 1B0", "looped BFS"),
        ("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0", "unknown"),  # a V whose backwards are whole
        ("0F0 3F0 3I0 0I0 3W0 0W0\n1F0 2F0 2I0 1I0 2W0 1W0", "ZBV"),
        ("0F0 1F0 1B0 0B0\n2F0 3F0 3B0 2B0", "unknown"),  # neighbours on one rank
        ("0F0 0F1 0B0 0B1 0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1 1F0 1F1 1B0 1B1", "GPipe"),  # twice, for one step
    ],
)
def test_schedules_are_named(text, name):
    found = schedule_of(pieces_of(text))
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "text",
    [
        "0F0 0F1 0B0\n1F0 1B0 1F1 1B1",  # a backward is missing
        "0F0 0B0\n1F0 1F0 1B0",  # one is there twice
        "0F0 0B0\n0F1 0B1",  # one stage on two ranks: replicas
        "0F0 0B0\n2F0 2B0",  # stage 1 is missing
    ],
)
def test_pieces_that_form_no_schedule(text):
    assert schedule_of(pieces_of(text)) is None


def test_the_longest_path_of_several_lengths_at_once():
    graph = WaitGraph({"c": ["a", "b"], "b": ["a"], "d": ["a"]})
    lengths = {
        "a": np.array([1.0, 1.0]),
        "b": np.array([2.0, 0.0]),
        "c": np.array([3.0, 3.0]),
        "d": np.array([1.0, 9.0]),
    }
    assert graph.length(lengths).tolist() == [6.0, 10.0]


def test_without_marks_the_chain_of_messages_says_the_stages(tmp_path):
    """Megatron's: 1F1B in batches of messages, backward work by autograd's operators."""
    world = World(4, partial(three_d, tp=1, pp=4, microbatches=6), 1, 4, steps=4)
    simulate(world).write(tmp_path)
    table = analyse(tmp_path).pipeline
    assert set(table["schedule"]) == {"1F1B"}
    assert sorted(set(table["stage"])) == ["0", "1", "2", "3"]
    assert set(table["microbatches"]) == {6}


@pytest.mark.slow
def test_the_first_screen_says_the_bubble_where_nobody_is_late(tmp_path):
    calm = Hardware(compute_jitter=0.0, gpu_spread=0.0, cpu_jitter=0.0)
    made = World(4, partial(three_d, tp=1, pp=4, microbatches=6), 1, 4, steps=4, hardware=calm)
    simulate(made).write(tmp_path)
    found = analyse(tmp_path)
    inherent_ms = found.pipeline["inherent_ns"].mean() / 1e6
    said = f"1F1B with 4 stages and 6 microbatches leaves each rank {inherent_ms:.1f} ms without work"
    assert said in found.verdict
    assert f"would leave {inherent_ms / 2:.1f} ms" in found.verdict


@pytest.mark.slow
def test_the_page_draws_the_schedule(tmp_path):
    simulate(World(4, partial(three_d, tp=1, pp=2, microbatches=3), 1, 4, steps=4)).write(tmp_path)
    figure = run_figures(analyse(tmp_path))["pipeline"]
    assert "1F1B" in figure.title
    # On each of two ranks of the first pipeline, three forwards and as many backwards; and two squares of the legend.
    assert figure.svg.count('class="h5 of-compute"') == figure.svg.count('class="h5 of-transfer"') == 2 * 3 + 1
    assert all(f">{number}</text>" in figure.svg for number in range(3))


def test_ring_attention_is_no_pipeline(tmp_path):
    simulate(World(4, cp_ring, 1, 2, steps=4)).write(tmp_path)
    table = analyse(tmp_path).pipeline
    assert table["inherent_ns"].isna().all()
    assert table["note"].notna().all()
