"""Runs too large to be played as a whole: which steps are played, and that all that is said of gains is of them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from simulator import Injection, Window, World, simulate
from simulator.programs import ddp

from commtrace import cli
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import USUAL_SIZES
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse_with
from commtrace.analysis.results.part import steps_to_play

LATE = 2
STEPS = tuple(range(1, 7))
WORLD = World(3, ddp, 1, 4, steps=8, window=Window(((1, 6),)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    simulate(replace(WORLD, injections=(Injection("kernel", (LATE,), STEPS, 3000.0, 0.4),))).write(folder)
    return folder


@pytest.fixture(scope="module")
def packed(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "run"
    assert cli.main(["pack", str(run), "--output", str(folder)]) == 0
    return folder


def read(path: Path, most_steps: int | None = None, **sizes: int) -> Analysis:
    """The run as the first screen reads it, playing at most so many of its steps."""
    options = ReadOptions(details_if_recorded=True, workers=1, sizes=replace(USUAL_SIZES, **sizes))
    if most_steps is None:
        return analyse_with(path, options)
    whole = analyse_with(path, ReadOptions(workers=1))
    most = len(whole.run.activities) * most_steps // len(whole.run.steps)
    return analyse_with(path, replace(options, sizes=replace(options.sizes, most_played=most)))


@pytest.mark.slow
def test_all_steps_are_played_of_a_run_that_is_small(run: Path) -> None:
    found = read(run)
    assert found.part is found
    assert found.part_note is None
    assert len(found.replay_steps) == len(found.run.steps)


@pytest.mark.slow
def test_some_steps_are_played_of_a_large_run_and_gain_as_much(run: Path) -> None:
    whole, part = read(run), read(run, most_steps=3)
    assert len(part.part.run.steps) == len(part.replay_steps) == 3
    assert len(part.steps) == len(whole.steps)
    assert whole.prices is not None
    assert part.prices is not None
    assert part.prices.late is not None
    assert part.prices.late.ranks == (LATE,)
    known, gain = whole.prices.gains["no_straggler"], part.prices.gains["no_straggler"]
    assert gain.low_ns <= known.ns <= gain.high_ns
    assert whole.idle_causes is not None
    assert part.idle_causes is not None
    idle_ns = part.typical_step.parts["idle_ns"]
    assert part.idle_causes["outside_ns"] == pytest.approx(whole.idle_causes["outside_ns"], abs=0.1 * idle_ns)
    assert part.part_note is not None
    assert part.part_note in part.summary()
    [row] = part.predict({"without_straggler": LATE}).to_dict("records")
    assert row["gain_ns"] == round(gain.ns)
    assert part.predictions["gain_ns"].iloc[0] == round(gain.ns)


@pytest.mark.slow
def test_where_ranks_are_looked_at_their_files_are_cut(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = read(run, most_steps=3, ranks_bytes=0)
    with caplog.at_level(logging.INFO, "commtrace"):
        shown = found.summary()
    assert shown == read(run, most_steps=3).summary()
    assert len(found.part.run.steps) == 3
    said = caplog.messages[: caplog.messages.index("3 steps are played")]
    assert said.count("looking at what each rank did") == 1


@pytest.mark.slow
def test_whole_plays_all(run: Path) -> None:
    options = ReadOptions(details_if_recorded=True, workers=1, whole=True, sizes=replace(USUAL_SIZES, most_played=1))
    found = analyse_with(run, options)
    assert len(found.replay_steps) == len(found.run.steps)


@pytest.mark.slow
def test_however_it_is_read_the_same_is_said(run: Path, packed: Path) -> None:
    tables = (
        "verdicts",
        "account",
        "syncs",
        "remedies",
        "predictions",
        "replay_steps",
        "attribution",
        "critical_path",
        "critical_path_pieces",
        "releases",
    )
    for most_steps in (None, 3):
        usual = read(run, most_steps)
        for path in (run, packed):
            other = read(path, most_steps, ranks_bytes=0)
            assert other.run.spread is not None
            for name in tables:
                assert as_csv(name, other.table(name)) == as_csv(name, usual.table(name)), (name, most_steps)


@pytest.mark.parametrize(
    ("lengths", "counted", "most", "played"),
    [
        ([9, 5, 5, 5], (1, 2, 3), 9, (0, 1, 2, 3)),  # all fit
        ([9, 5, 5, 5], (1, 2, 3), 3, (1, 2, 3)),  # the one that does not count stays out
        ([1, 2, 3, 4, 5, 6], (), 2, (2, 3)),  # as long as all in the mean
        ([4, 4, 4, 9, 5, 7, 4], (0, 1, 2, 4, 5, 6), 3, (4, 5, 6)),  # with as many that count, those like all
        ([5, 5, 5], (0, 1, 2), 0, (0, 1)),  # no fewer than two
    ],
)  # fmt: skip
def test_the_steps_that_are_played(
    lengths: list[int], counted: tuple[int, ...], most: int, played: tuple[int, ...]
) -> None:
    assert steps_to_play(dict(enumerate(lengths)), counted, most) == played
