"""Pipelined training of known truth, written as traces: replayed, and what waits for what found again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from operation_table import write_traces
from pipeline_tables import Operation, Pipeline, drawn, step_us, table_of, without_jitter
from samples import with_slow

from commtrace import analyse
from commtrace.analysis.replay.engine import Playing
from commtrace.analysis.replay.scenarios.usual import no_jitter
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.tables.replay import replayed
from commtrace.common.wording import listed

STEPS = 3


def written(pipeline: Pipeline, folder: Path, *, slow_stage: float = 1.3) -> tuple[Analysis, list[float], float]:
    """Its analysis, the true lengths of its steps in us, and that of a step without jitter."""
    rng = np.random.default_rng(pipeline.replicas)
    taken = [drawn(pipeline, rng, slow_stage) for _ in range(STEPS)]
    steps = [pipeline.played(each.__getitem__) for each in taken]
    write_traces(table_of(pipeline, steps), folder)
    return analyse(folder, details=True), [step_us(step) for step in steps], without_jitter(pipeline, taken)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [Pipeline(2, 3, 6), Pipeline(4, 8, 16)])
def test_it_is_replayed_and_the_last_stage_found(pipeline: Pipeline, tmp_path: Path) -> None:
    found, true, ideal = written(pipeline, tmp_path)
    steps = found.replay_steps
    assert steps["ranks"].tolist() == [pipeline.replicas * pipeline.stages] * STEPS
    # The gap of 10 us between steps in the traces; a step of ours ends where the next begins.
    assert steps["replayed_ns"].to_numpy() / 1e3 == pytest.approx(true, rel=0.01)
    [row] = found.predict(no_jitter()).to_dict("records")
    slowdown = steps["replayed_ns"].mean() / (steps["replayed_ns"].mean() - row["gain_ns"])
    assert slowdown == pytest.approx(np.mean(true) / ideal, rel=0.01)
    last = " ".join(str(pipeline.rank(dp, pipeline.stages - 1)) for dp in range(pipeline.replicas))
    table = found.attribution
    assert table[table["of"] == "program"]["part"].iloc[0] == last


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "later_us"), with_slow([(2, 8.0), (0, 0.0)], [(1, 3.0), (0, 14.0), (3, 11.0)]))
def test_a_slow_stage_is_found_where_no_call_tells_what_waits(stage: int, later_us: float, tmp_path: Path) -> None:
    """What waits begins some us later than what it waited for ends, but after waiting for milliseconds.

    Or just as that ends: then a trace, whose times are in steps of 0.25 us, may have it begin before.
    """
    pipeline, rng = Pipeline(1, 4, 8), np.random.default_rng(stage)
    slow = [drawn(pipeline, rng, 1.0) for _ in range(STEPS)]
    even = [dict(each) for each in slow]
    for each in slow:
        each |= {of: 1.5 * took for of, took in each.items() if of[1] == stage and of[2].endswith("-compute")}
    steps, best = ([pipeline.played(each.__getitem__, later_us) for each in of] for of in (slow, even))
    write_traces(table_of(pipeline, steps), tmp_path)
    for path in tmp_path.iterdir():
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [each for each in trace["traceEvents"] if "Event" not in each["name"]]
        path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    found = analyse(tmp_path, details=True)
    assert found.replay_steps["replayed_ns"].to_numpy() / 1e3 == pytest.approx([*map(step_us, steps)], rel=0.01)
    assert found.prices is not None
    assert found.prices.late is not None
    assert found.prices.late.ranks == (stage,)
    true_us = np.mean([step_us(step) for step in steps]) - np.mean([step_us(step) for step in best])
    gain = found.prices.gains["no_straggler"]
    assert gain.ns / 1e3 == pytest.approx(true_us, rel=0.1)
    assert gain.low_ns / 1e3 <= true_us <= gain.high_ns / 1e3


OF_REPLICA, OF_STAGE = 0, 1
"""Where an operation has its place."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "where", "late", "factor"),
    with_slow(
        [(Pipeline(2, 4, 8), OF_STAGE, {2}, 1.5), (Pipeline(2, 3, 6), OF_REPLICA, {1}, 1.4)],
        [
            (Pipeline(1, 4, 8), OF_STAGE, {1, 2}, 1.5),
            (Pipeline(1, 6, 8), OF_STAGE, {1, 4}, 1.4),
            (Pipeline(3, 4, 6), OF_REPLICA, {0}, 1.3),
            (Pipeline(4, 2, 8), OF_STAGE, {1}, 1.5),
            (Pipeline(2, 3, 6), OF_STAGE, {0}, 1.3),
            (Pipeline(2, 4, 8), OF_STAGE, {1, 2}, 1.5),
            (Pipeline(3, 3, 6), OF_STAGE, {2}, 1.2),
        ],
    ),
)
def test_a_stage_or_replica_of_several_ranks_is_one_cause(
    pipeline: Pipeline, where: int, late: set[int], factor: float, tmp_path: Path
) -> None:
    """All ranks of a stage are late alike, so that only other stages tell."""
    rng = np.random.default_rng(pipeline.stages)
    even = [drawn(pipeline, rng, 1.0) for _ in range(STEPS)]
    slow = [
        {of: took * (factor if of[where] in late and of[2].endswith("-compute") else 1.0) for of, took in each.items()}
        for each in even
    ]
    steps, best = ([pipeline.played(each.__getitem__) for each in of] for of in (slow, even))
    write_traces(table_of(pipeline, steps), tmp_path)
    found = analyse(tmp_path, details=True).prices
    assert found is not None
    assert found.late is not None
    ranks = {
        pipeline.rank(dp, s)
        for dp in range(pipeline.replicas)
        for s in range(pipeline.stages)
        if (dp, s)[where] in late
    }
    assert set(found.late.ranks) <= ranks
    assert len(found.late.ranks) == len(ranks) or where == OF_REPLICA
    gain, true_us = found.gains["no_straggler"], np.mean([*map(step_us, steps)]) - np.mean([*map(step_us, best)])
    assert gain.ns / 1e3 == pytest.approx(true_us, rel=0.12)
    assert gain.low_ns / 1e3 <= true_us <= gain.high_ns / 1e3


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", with_slow([Pipeline(2, 3, 6)], [Pipeline(2, 4, 8), Pipeline(4, 2, 8)]))
def test_of_stages_alike_none_is_late(pipeline: Pipeline, tmp_path: Path) -> None:
    found, _, _ = written(pipeline, tmp_path, slow_stage=1.0)
    assert found.prices is not None
    assert found.prices.late is None


def edges_of(member: Playing, places: dict[int, Operation]) -> set[tuple[Operation, Operation, int]]:
    """The edges between streams that were found: from, to, step."""
    program = member.program
    return {
        (places[int(program.row[source])], places[int(program.row[node])], int(program.step[node]))
        for node, sources in member.edges.joins.items()
        for source in sources
    }


@pytest.mark.slow
def test_what_waits_for_what_is_found(tmp_path: Path) -> None:
    pipeline = Pipeline(2, 4, 8)
    found, _, _ = written(pipeline, tmp_path)
    activities = found.run.activities
    kind = activities["name"].str.extract(r"^(?:ncclDevKernel_SendRecv\()?([\w-]+)")[0]
    order = activities.assign(kind=kind).sort_values("start_ns").groupby(["rank", "step", "kind"]).cumcount()
    of_rank = {pipeline.rank(dp, s): (dp, s) for dp in range(pipeline.replicas) for s in range(pipeline.stages)}
    places = {
        row: (*of_rank[int(activities["rank"][row])], str(kind[row]), int(order[row])) for row in activities.index
    }
    right = wrong = missed = 0
    [members] = found.of(replayed).measured
    for member in members:
        own = of_rank[member.program.rank]
        lane = {places[int(row)]: lane for row, lane in zip(member.program.row, member.program.lane, strict=True)}
        true = {
            (source, node, step)
            for node, sources in pipeline.on(*own)
            for source in sources
            for step in range(STEPS)
            if lane[source] != lane[node]
        }
        seen = edges_of(member, places)
        right, wrong, missed = right + len(seen & true), wrong + len(seen - true), missed + len(true - seen)
    assert right / (right + missed) > 0.99
    assert right / (right + wrong) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "where", "late", "step"),
    with_slow(
        [(Pipeline(2, 2, 3), OF_STAGE, {1}, 2)],
        [
            (Pipeline(1, 4, 6), OF_STAGE, {2}, 0),
            (Pipeline(2, 3, 4), OF_REPLICA, {0}, 3),
            (Pipeline(1, 2, 4), OF_STAGE, {0}, 1),
        ],
    ),
)
def test_who_is_slow_in_one_step_is_said(
    pipeline: Pipeline, where: int, late: set[int], step: int, tmp_path: Path
) -> None:
    """No other rank does the same, and the others only wait longer."""
    rng = np.random.default_rng(step)
    taken = [drawn(pipeline, rng, 1.0) for _ in range(4)]
    taken[step] = {
        of: took * (3 if of[where] in late and of[2].endswith("-compute") else 1) for of, took in taken[step].items()
    }
    write_traces(table_of(pipeline, [pipeline.played(each.__getitem__) for each in taken]), tmp_path)
    verdict = analyse(tmp_path, details=True).verdicts.iloc[0]
    ranks = [pipeline.rank(*at) for at in np.ndindex(pipeline.replicas, pipeline.stages) if at[where] in late]
    who = (
        f"ranks {listed([str(rank) for rank in sorted(ranks)])} compute"
        if len(ranks) > 1
        else f"rank {ranks[0]} computes"
    )
    assert verdict["verdict"] == "event-bound"
    assert verdict["headline"].startswith(f"Step {step} takes ")
    assert f": {who} " in verdict["headline"]
    assert verdict["headline"].endswith(" ms longer, mostly in `backward-compute`")
