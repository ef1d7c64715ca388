"""Pipelines by torch's own action tables, drawn at random: schedules are named, and parts of the bubble are right."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from samples import with_slow
from torch_schedules import NAMES, SCHEDULES, Drawn, drawn, parts, played, write

from commtrace import Analysis, analyse
from commtrace.cli import main

PARTS = ("inherent", "imbalance", "jitter", "transfer", "order")
_LARGE = [(name, seed, 8) for name in SCHEDULES for seed in range(1, 3)]


def written(folder: Path, schedule: str, seed: int, most_ranks: int) -> tuple[Drawn, Analysis]:
    """A pipeline, and the analysis of its traces."""
    made = drawn(np.random.default_rng(seed), schedule, most_ranks, most=4 * most_ranks)
    write(made, folder)
    return made, analyse(folder)


@pytest.mark.slow_cases("InterleavedZeroBubble-0-3")
@pytest.mark.parametrize(("schedule", "seed", "most_ranks"), with_slow([(name, 0, 3) for name in SCHEDULES], _LARGE))
def test_the_schedule_is_named_and_each_part_is_right(schedule, seed, most_ranks, tmp_path):
    made, found = written(tmp_path, schedule, seed, most_ranks)
    table = found.pipeline
    assert set(table["schedule"]) == {NAMES[schedule]}
    assert set(table["microbatches"]) == {made.microbatches}
    assert table["note"].isna().all()
    for rank, true_us in parts(made).items():
        row = table[(table["rank"] == rank) & (table["step"] == 1)].iloc[0]
        off = {name: row[f"{name}_ns"] / 1e3 - true_us[name] for name in PARTS}
        assert max(map(abs, off.values())) < 0.01 * row["window_ns"] / 1e3, off
        own = [stage for stage in range(made.stages) if made.rank_of(stage) == rank]
        assert row["stage"] == " ".join(map(str, own))


@pytest.mark.parametrize(("schedule", "seed", "most_ranks"), with_slow([("1F1B", 0, 3)], _LARGE))
def test_work_and_parts_add_up_to_the_step(schedule, seed, most_ranks, tmp_path):
    _, found = written(tmp_path, schedule, seed, most_ranks)
    table = found.pipeline
    bubble = table[[f"{name}_ns" for name in PARTS]].sum(axis=1)
    assert (table["work_ns"] + bubble + table["other_ns"] == table["window_ns"]).all()
    assert (bubble / table["window_ns"]).to_numpy() == pytest.approx(table["bubble_frac"].to_numpy(dtype=float))
    steps = found.breakdown_steps.set_index(["rank", "step"])
    keys = pd.MultiIndex.from_frame(table[["rank", "step"]])
    assert table["work_ns"].tolist() == steps.loc[keys, "compute_ns"].tolist()


@pytest.mark.parametrize(("schedule", "seed", "most_ranks"), with_slow([("ZBVZeroBubble", 1, 3)], _LARGE))
def test_a_slow_stage_gains_most(schedule, seed, most_ranks, tmp_path):
    made = drawn(np.random.default_rng(seed), schedule, most_ranks, most=4 * most_ranks)
    slow = seed % made.stages
    for kind, stage, number in made.takes:
        made.takes[kind, stage, number] = 3_000.0 * (1.5 if stage == slow else 1.0)
    write(made, tmp_path)
    table = analyse(tmp_path).pipeline_stages.set_index("stage")
    assert table["gain_ns"].idxmax() == slow
    cured = dict.fromkeys(made.takes, 3000.0)
    assert table.loc[slow, "gain_ns"] / 1e3 == pytest.approx(_length_us(made, made.takes) - _length_us(made, cured))


def _length_us(made: Drawn, takes: dict[tuple[str, int, int], float]) -> float:
    done = played(made, takes, 0.0, lanes=False)
    return max(end for (kind, _, _), (_, end) in done.items() if "_" not in kind)


@pytest.mark.slow
def test_a_recording_says_the_same(tmp_path):
    made = drawn(np.random.default_rng(5), "Interleaved1F1B", 2, most=4)
    write(made, tmp_path / "run")
    assert main(["pack", str(tmp_path / "run"), "--output", str(tmp_path / "packed")]) == 0
    whole, packed = (analyse(tmp_path / name).pipeline for name in ("run", "packed"))
    pd.testing.assert_frame_equal(whole, packed)
    spread = analyse(tmp_path / "run", workers=2).pipeline
    pd.testing.assert_frame_equal(whole, spread)


@pytest.mark.slow_cases("1F1B-0")
@pytest.mark.parametrize(
    ("schedule", "seed"),
    with_slow(
        [("1F1B", 0), ("Interleaved1F1B", 3)],
        [(name, seed) for name in ("GPipe", "1F1B", "Interleaved1F1B") for seed in range(1, 4)],
    ),
)
def test_changes_are_as_torch_plays_their_schedules(schedule, seed, tmp_path):
    made, found = written(tmp_path, schedule, seed, 4)
    table = found.pipeline_changes
    assert table["note"].isna().all()
    assert {"as it is", "2 times the microbatches", "equal shares"} <= set(table["change"])
    for row in table.to_dict("records"):
        smaller = row["microbatches"] // made.microbatches, row["chunks"] // made.chunks
        takes = _means_of_stages(made, *smaller, even="equal shares" in row["change"])
        names = {ours: name for name, ours in NAMES.items()}
        other = Drawn(
            names[row["schedule"]], made.ranks, row["chunks"], row["microbatches"], {}, defaultdict(float), None
        )
        keys = [(op.kind, op.stage, op.microbatch) for own in other.tables for op in own if not op.is_message]
        ends = played(other, {key: takes[key[:2]] for key in keys}, 0.0, lanes=False)
        true_us = max(end for _, end in ends.values())
        assert row["pipeline_ns"] / 1e3 == pytest.approx(true_us, rel=1e-3), row["change"]
        work_us = row["microbatches"] * sum(takes.values())
        assert row["bubble_frac"] == pytest.approx(1 - work_us / (made.ranks * true_us), abs=1e-3)


def _means_of_stages(made: Drawn, microbatches: int, chunks: int, *, even: bool) -> dict[tuple[str, int], float]:
    """What a forward and a backward of each stage take, of so many times the microbatches and chunks, in us."""
    kinds = ("F", "B")
    own = {
        (kind, stage): np.mean([us for key, us in made.takes.items() if key[:2] == (kind, stage)])
        for kind in kinds
        for stage in range(made.stages)
    }
    if even:
        own = {key: np.mean([us for other, us in own.items() if other[0] == key[0]]) for key in own}
    return {
        (kind, (chunk * chunks + part) * made.ranks + rank): own[kind, chunk * made.ranks + rank]
        / microbatches
        / chunks
        for kind in kinds
        for chunk in range(made.chunks)
        for part in range(chunks)
        for rank in range(made.ranks)
    }


@pytest.mark.slow
@pytest.mark.parametrize("schedule", with_slow(["1F1B", "Interleaved1F1B"], ["GPipe", "LoopedBFS", "ZBVZeroBubble"]))
def test_a_heavy_stage_is_said_to_have_more_work(schedule, tmp_path):
    """And what to give away of it: not a slow GPU, nor a CPU that is late."""
    made = drawn(np.random.default_rng(3), schedule, 3, most=12)
    heavy = made.stages - 1
    for kind, stage, number in made.takes:
        made.takes[kind, stage, number] = 3_000.0 * (1.7 if stage == heavy else 1.0)
    write(made, tmp_path)
    found = analyse(tmp_path)
    said = found.verdict
    assert f"has stage {heavy}, which " in said
    assert "1.7 times" in said
    assert "the others" in said
    given = 1 - (made.stages - 1 + 1.7) / made.stages / 1.7
    assert f"give {given:.0%} of " in said
    assert "throttled" not in said
    assert "launches its kernels" not in said
    stages = found.pipeline_stages
    assert f"with stages of equal length a step gains at most {stages['even_gain_ns'].iloc[0] / 1e6:,.1f} ms" in said


@pytest.mark.slow
def test_a_stage_that_is_longer_than_most_but_not_than_the_mean_is_not_heavy(tmp_path):
    made = drawn(np.random.default_rng(3), "1F1B", 3, most=12)
    takes = {0: 1_000.0, 1: 1_000.0, 2: 1_300.0, 3: 9_000.0}
    for kind, stage, number in made.takes:
        made.takes[kind, stage, number] = takes[stage % 4] if stage else 1_000.0
    write(made, tmp_path)
    assert "give -" not in analyse(tmp_path).verdict
