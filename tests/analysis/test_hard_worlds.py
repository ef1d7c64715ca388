"""Simulated runs that are hard to match: nothing wrong is called certain, and every doubt has a reason.

Uneven all_to_alls, two groups of the same ranks, disjoint cycles, lost calls, hosts that share a name but no clock,
ranks that count steps by themselves.
"""

from dataclasses import replace
from functools import partial

import pytest
from samples import a_sample
from simulator import Clocks, Layout, Window, World, draw_hard, score, simulate
from simulator.programs import moe, twins

from commtrace import analyse


def doubts_without_reason(found) -> int:
    """Rows of the tables that are not certain, and do not say why."""
    return sum(
        int((~table["certain"].fillna(False).astype(bool) & table["note"].isna()).sum())
        for table in (found.matches, found.collectives)
    )


@pytest.mark.slow_cases("196")
@pytest.mark.parametrize("seed", a_sample(range(0, 260, 4), 2))
def test_nothing_wrong_is_certain_and_every_doubt_has_a_reason(seed, tmp_path):
    made = simulate(draw_hard(seed))
    made.write(tmp_path)
    found = analyse(tmp_path, workers=1)
    assert score(found, made.truth).wrong_certain == 0, made.world
    assert doubts_without_reason(found) == 0


@pytest.mark.quick_cases("415")
@pytest.mark.parametrize("seed", [34, 63, 87, 184, 217, 415])
def test_ranks_that_each_number_their_steps_by_themselves_make_nothing_wrong_certain(seed, tmp_path):
    world = draw_hard(seed)
    made = simulate(replace(world, layout=replace(world.layout, steps="own")))
    made.write(tmp_path)
    assert score(analyse(tmp_path, workers=1), made.truth).wrong_certain == 0


@pytest.mark.slow_cases("224")
@pytest.mark.parametrize("seed", [151, 224])
def test_kernels_alone_on_clocks_that_are_not_known_make_nothing_wrong_certain(seed, tmp_path):
    """Of 151 the hosts share a name; of 224 each of several shifts by steps fits, one of them closely by chance."""
    made = simulate(draw_hard(seed))
    made.write(tmp_path)
    assert score(analyse(tmp_path, workers=1), made.truth).wrong_certain == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("one_name", [True, False], ids=["one name", "own names"])
def test_steps_match_uneven_all_to_alls_whatever_the_hosts_are_called(one_name, seed, tmp_path):
    """Eight clocks, up to 3 ms apart, which may be said to be one."""
    offsets = (2_066.5, -2_193.8, 2_736.2, -1_572.2, -1_583.7, 737.4, 1_760.0, -1_057.0)
    layout = Layout(torch="2.5", one_name=one_name)
    world = World(seed, partial(moe, hot=5), 8, 1, 6, clocks=Clocks(offsets), layout=layout, window=Window(((1, 4),)))
    made = simulate(world)
    made.write(tmp_path)
    found = score(analyse(tmp_path, workers=1), made.truth)
    assert (found.wrong, found.right_frac, found.certain_frac) == (0, 1, 1)
    assert found.offsets_covered == (7, 7)


@pytest.mark.quick_cases("2.12")
@pytest.mark.parametrize("torch", ["2.1", "2.5", "2.12"])
def test_two_groups_of_the_same_ranks_are_no_doubt(torch, tmp_path):
    made = simulate(
        World(4, partial(twins, ahead=False), 1, 4, 6, layout=Layout(torch=torch), window=Window(((1, 4),)))
    )
    made.write(tmp_path)
    found = score(analyse(tmp_path, workers=1), made.truth)
    assert (found.wrong, found.right_frac, found.certain_frac) == (0, 1, 1)


@pytest.mark.slow
def test_what_was_not_recorded_before_the_window_is_no_evidence(tmp_path):
    """Rank 1 shows other steps than rank 0, and kernels from long before: four offsets fit those equally well."""
    made = simulate(
        World(
            2, partial(moe, layers=3), 2, 1, 9, layout=Layout(torch="2.12"),
            window=Window(((0, 3),), ((0, 0), (4, 4)), hole_frac=0.5),
        )
    )  # fmt: skip
    made.write(tmp_path)
    assert score(analyse(tmp_path, workers=1), made.truth).wrong_certain == 0
