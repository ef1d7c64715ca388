"""Replicas of a serving engine: each serves requests of its own, and together they are one run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import MS, Trace

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

EVERY = 10 * MS
Step = tuple[str, int, int]
"""Kind, requests and tokens."""


def drawn(rng: random.Random, steps: int) -> list[Step]:
    """Steps of a replica, most of which decode."""
    found: list[Step] = []
    for _ in range(steps):
        requests = rng.randint(1, 64)
        if rng.random() < 0.3:
            found.append(("prefill", requests, requests * rng.randint(2, 900)))
        else:
            found.append(("decode", requests, requests))
    return found


def rank(number: int, world: int, steps: Sequence[Step]) -> Trace:
    trace = Trace(number, world, pid=100 + number)
    for place, (kind, requests, tokens) in enumerate(steps):
        name = f"EXTEND bs={requests} toks={tokens}" if kind == "prefill" else f"DECODE bs={requests}"
        name = "IDLE bs=0" if kind == "idle" else name
        trace.annotation(f"step[{name}]", place * EVERY, EVERY).kernel("gemm", place * EVERY, EVERY)
    return trace


def served(folder: Path, replicas: Sequence[Sequence[Step]], sharded: int, named: str = "{rank}") -> Analysis:
    """An engine of these replicas, each on as many ranks."""
    world = len(replicas) * sharded
    for number in range(world):
        name = named.format(rank=number, dp=number // sharded, tp=number % sharded)
        rank(number, world, replicas[number // sharded]).write(folder, f"{name}.pt.trace.json.gz")
    return analyse(folder)


@pytest.mark.parametrize("named", ["{rank}", "dp{dp}_pp0_tp{tp}_dcp0_ep{rank}_rank{rank}", "1743-TP-{tp}-DP-{dp}"])
@pytest.mark.parametrize("seed", range(6))
def test_a_step_has_the_requests_and_tokens_of_all_replicas(tmp_path: Path, seed: int, named: str) -> None:
    rng = random.Random(seed)
    steps, sharded = rng.randint(3, 6), rng.randint(1, 3)
    replicas = [drawn(rng, steps) for _ in range(rng.randint(2, 4))]
    found = served(tmp_path, replicas, sharded, named)
    together = list(zip(*replicas, strict=True))
    assert [(row["kind"], row["requests"], row["tokens"]) for row in records(found.steps)] == [
        (
            "mixed" if len({kind for kind, *_ in own}) > 1 else own[0][0],
            sum(requests for _, requests, _ in own),
            sum(tokens for *_, tokens in own),
        )
        for own in together
    ]
    total, ranks = sum(tokens for own in replicas for *_, tokens in own), records(found.serving_ranks)
    assert sum(row["tokens"] for row in ranks) == total * sharded
    assert {row["rank"]: row["replica"] for row in ranks} == {n: n // sharded for n in range(len(replicas) * sharded)}
    for row in records(found.serving):
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / EVERY * 1e9)
        assert row["tokens_per_s_per_gpu"] == pytest.approx(row["tokens_per_s"] / (len(replicas) * sharded))
    assert not [note for note in found.run.notes if "its kind is not known" in note]


def test_names_tell_replicas_apart_that_serve_alike(tmp_path: Path) -> None:
    found = served(tmp_path, [[("decode", 4, 4)] * 3] * 2, 1, "dp{dp}_pp0_tp0_rank{rank}")
    assert found.steps["tokens"].tolist() == [8, 8, 8]
    one = served(tmp_path / "one", [[("decode", 4, 4)] * 3], 2)
    assert one.steps["tokens"].tolist() == [4, 4, 4]


def test_sums_are_not_known_of_a_step_that_a_replica_does_not_have(tmp_path: Path) -> None:
    """Captures of two replicas that begin one step after another."""
    for number, first in enumerate((0, 1)):
        trace = Trace(number, 2, pid=100 + number)
        for step in range(first, first + 4):
            trace.step(step, step * EVERY, (step + 1) * EVERY)
            trace.annotation(f"step[DECODE bs={4 + number}]", step * EVERY, EVERY).kernel("gemm", step * EVERY, EVERY)
        trace.write(tmp_path, f"dp{number}_pp0_tp0_rank{number}.pt.trace.json.gz")
    tokens = {row["step"]: row["tokens"] for row in records(analyse(tmp_path).steps)}
    assert tokens == {0: None, 1: 9, 2: 9, 3: 9, 4: None}


def test_an_idle_replica_adds_nothing(tmp_path: Path) -> None:
    found = served(tmp_path, [[("decode", 4, 4)] * 3, [("idle", 0, 0), ("decode", 2, 2), ("idle", 0, 0)]], 1)
    assert found.steps["kind"].tolist() == ["decode"] * 3
    assert found.steps["tokens"].tolist() == [4, 6, 4]


def test_sums_are_not_known_where_a_replica_has_no_trace(tmp_path: Path) -> None:
    for number, requests in ((0, 4), (1, 5)):
        rank(number, 3, [("decode", requests, requests)] * 3).write(tmp_path)
    [row] = records(analyse(tmp_path).serving)
    assert (row["kind"], row["tokens"], row["tokens_per_s"], row["tokens_per_s_per_gpu"]) == (
        "decode",
        None,
        None,
        None,
    )
    assert row["note"] == "ranks serve requests of their own, and some have no trace, in 3 steps"


@pytest.mark.parametrize("seed", range(6))
def test_stages_that_do_the_same_some_steps_later_are_no_replicas(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    steps = drawn(rng, 9)
    later = rng.randint(1, 2)
    world = [steps[:7], steps[later : later + 7]]
    for number, own in enumerate(world):
        rank(number, 2, own).write(tmp_path)
    found = analyse(tmp_path)
    differing = [a != b for a, b in zip(*world, strict=True)]
    assert any(differing)
    assert found.steps["tokens"].isna().tolist() == [a[2] != b[2] for a, b in zip(*world, strict=True)]
    assert found.steps["kind"].isna().tolist() == [a[0] != b[0] for a, b in zip(*world, strict=True)]


def test_kinds_by_rank_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served(tmp_path, [[("decode", 4, 4)] * 3, [("prefill", 1, 512)] * 3], 1)
    assert main(["serving", "--by", "rank", "--no-cache", "--format", "csv", str(tmp_path)]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert [row[rows[0].index("kind")] for row in rows[1:]] == ["decode", "prefill"]


def test_where_ranks_contradict_each_other_in_every_step_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of one replica, of which one decodes while the other prefills."""
    for number, own in enumerate(([("decode", 4, 4)] * 2, [("prefill", 1, 512)] * 2)):
        rank(number, 3, own).write(tmp_path, f"dp0_tp{number}_rank{number}.trace.json.gz")
    rank(2, 3, [("decode", 9, 9)] * 2).write(tmp_path, "dp1_tp0_rank2.trace.json.gz")
    assert main(["serving", "--no-cache", str(tmp_path)]) == 1
    assert "or ranks disagree on it" in " ".join(capsys.readouterr().err.split())
