"""Why ranks are late, in worlds where one thing makes them late and the simulator knows which."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pandas as pd
import pytest
from samples import with_slow
from simulator import Injection, Window, World, draw, simulate
from simulator.compared import Compared
from simulator.score import BECAUSE
from simulator.world import Losses

from commtrace import analyse

KINDS = tuple(kind for kind in BECAUSE if kind != "comm")
SEEDS = range(20)
FEW = range(0, 20, 5)
CLEARLY_US, LAST_BY_US = 100.0, 50.0
RIGHT_FRAC = 0.95
LEAST_SPLIT = 0.9
# Before its first collectives nobody knows what a rank did.
FIRST_STEPS = 1


def world(seed: int) -> World:
    """A random world in which one kind of thing happens in every step, to one rank or to several in turn."""
    drawn, rng = draw(seed), Random(seed * 7 + 1)
    size = drawn.hosts * drawn.gpus
    several = tuple(sorted(rng.sample(range(size), min(size, 3))))
    ranks = rng.choice(((rng.randrange(size),), (rng.randrange(size),), several))
    steps = tuple(range(drawn.steps))
    happens = Injection(
        KINDS[seed % len(KINDS)], ranks, steps, rng.choice((300.0, 1000.0, 3000.0)), rng.random(), len(ranks) > 1
    )
    window = Window(((1, drawn.steps - 1),))
    hardware = replace(drawn.hardware, late_end_us=())
    layout = replace(drawn.layout, steps="numbered")
    return replace(
        drawn, injections=(happens,), losses=Losses(), hang=None, window=window, hardware=hardware, layout=layout
    )


class Late(NamedTuple):
    """A collective whose last rank is clearly late: which rank, whose fault and why in truth, and what is told."""

    rank: int
    fault_of: int
    kind: str
    told: "pd.Series[object] | None"

    @property
    def is_explained(self) -> bool:
        return self.told is not None and not pd.isna(self.told["origin_rank"])

    @property
    def is_right(self) -> bool:
        """Is the rank named, the one with which it began, and why?"""
        told = self.told
        if told is None or not self.is_explained or told["rank"] != self.rank:
            return False
        return bool(told["origin_rank"] == self.fault_of and told["origin_because"] == BECAUSE[self.kind])


def late_ones(seed: int, folder: Path) -> Iterator[Late]:
    """Of a world the collectives with a late rank, from the second traced step on; none where waits are not known."""
    made = simulate(world(seed))
    made.write(folder)
    found = analyse(folder, workers=1)
    if found.participation["wait_ns"].notna().mean() < LEAST_SPLIT:
        return
    compared = Compared(found, made.truth)
    calls, known = made.truth.calls, made.truth.collectives
    starts, late = calls["true_start_us"].to_numpy(), calls["late_us"].to_numpy()
    numbers = {number: collective for collective, number in compared.true_number.items()}
    told = found.lateness.drop_duplicates("collective_id").set_index("collective_id")
    for number, members in compared.shown.items():
        whole = len(members) == len(known["members"][number]) > 1
        if not whole or not known["synchronising"][number] or number not in numbers:
            continue
        *_, second, last = sorted(members, key=lambda call: starts[call])
        clearly = late[last] > CLEARLY_US and starts[last] - starts[second] > LAST_BY_US
        if clearly and not pd.isna(calls["late_from"][last]) and int(calls["step"][last]) > FIRST_STEPS:
            row = told.loc[numbers[number]] if numbers[number] in told.index else None
            yield Late(int(calls["rank"][last]), int(calls["late_from"][last]), str(calls["label"][last]), row)


@pytest.fixture(scope="module", params=with_slow([FEW], [SEEDS]), ids=len)
def every(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Late]]:
    seeds = request.param
    graphs = {seed for seed in seeds if world(seed).layout.graph}
    return {
        seed: list(late_ones(seed, tmp_path_factory.mktemp(f"world{seed}"))) for seed in seeds if seed not in graphs
    }


@pytest.mark.slow
def test_own_lateness_has_the_right_cause(every: dict[int, list[Late]]) -> None:
    own = [late for found in every.values() for late in found if late.rank == late.fault_of and late.is_explained]
    assert len(own) > 1.5 * len(every)
    wrong = Counter(
        (late.kind, str(late.told["because"])) for late in own if late.told is not None and not late.is_right
    )
    assert sum(wrong.values()) <= (1 - RIGHT_FRAC) * len(own), wrong


@pytest.mark.slow
def test_a_victim_is_not_to_blame(every: dict[int, list[Late]]) -> None:
    victims = [late for found in every.values() for late in found if late.rank != late.fault_of and late.is_explained]
    assert len(victims) > 0.5 * len(every)
    assert sum(late.is_right for late in victims) >= RIGHT_FRAC * len(victims)


def test_most_lateness_is_explained(every: dict[int, list[Late]]) -> None:
    known = [late.is_explained for found in every.values() for late in found]
    assert sum(known) >= 0.85 * len(known)
