"""A rank that stops is named, with the collective that the others wait in; where none stops nobody is."""

from dataclasses import replace
from pathlib import Path

import pytest
from samples import a_sample
from simulator import Hang, Window, World, draw, simulate
from simulator.programs import tp
from simulator.world import Losses

from commtrace import analyse
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.show.facts import facts

WITH_HANG = (1, 2, 6, 8, 12, 14)
WITHOUT = (0, 1, 4, 5, 7, 9, 11, 22)


def found_of(world: World, folder: Path) -> Analysis:
    simulate(world).write(folder)
    return analyse(folder, workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", a_sample(WITH_HANG, 3))
def test_the_rank_that_stops_is_named(seed: int, tmp_path: Path) -> None:
    world = draw(seed)
    rank, whole = seed % (world.hosts * world.gpus), Window(((1, world.steps),))
    hanging = replace(world, hang=Hang(rank, world.steps - 2, 0.5), window=whole, losses=Losses())
    found = found_of(hanging, tmp_path)
    assert len(found.hangs)
    row = found.hangs.iloc[0]
    assert row["missing"].split() == [str(rank)]
    assert str(rank) not in row["waiting"].split()
    assert row["waited_ns"] > 5 * row["usual_ns"]
    verdict = found.verdicts.iloc[0]
    assert verdict["verdict"] == "hang"
    assert verdict["because"].startswith(f"Rank {rank} never issued {row['collective']}")
    assert facts(found).iloc[0].tolist() == ["hang", verdict["because"]]


@pytest.mark.quick_cases("11")
@pytest.mark.parametrize("seed", a_sample(WITHOUT, 3))
def test_where_nothing_hangs_nobody_is_named(seed: int, tmp_path: Path) -> None:
    assert len(found_of(replace(draw(seed), hang=None), tmp_path).hangs) == 0


@pytest.mark.slow
def test_calls_that_the_end_of_the_capture_cuts_off_are_no_hang(tmp_path: Path) -> None:
    world = World(7, tp, 1, 4, 4, window=Window(((1, 3),)))
    found = found_of(world, tmp_path)
    assert len(found.hangs) == 0
    assert found.verdicts.iloc[0]["verdict"] != "hang"
