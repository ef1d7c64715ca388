"""The scenarios that are predicted where none is given."""

from __future__ import annotations

from ..replay.cures import CURES, LEAST
from ..replay.scenarios.scenario import Scenario
from ..replay.scenarios.usual import without_stragglers
from ..results.analysis import Analysis

_WORTH_FIXING_FRAC, _MOST_FIXED = 0.05, 3
"""Of all waiting, the least share caused by a rank that gets a scenario of its own; how many ranks get one."""


def usual_scenarios(analysis: Analysis) -> list[Scenario]:
    """What `remedies` prices, in its order, then ranks that others wait for, and bounds. Raises NothingMeasured."""
    changes = () if analysis.prices is None else analysis.prices.changes
    least_ns = 0.0 if analysis.prices is None else LEAST * analysis.prices.step_ns
    priced = [
        scenario
        for change, scenario in zip(changes, analysis.priced_scenarios, strict=True)
        if change.gain.ns >= least_ns
    ]
    causing = analysis.ranks[analysis.ranks["caused_wait_frac"].fillna(0) >= _WORTH_FIXING_FRAC]
    worst = causing.sort_values("caused_wait_ns", ascending=False)["rank"].head(_MOST_FIXED)
    late = [without_stragglers([int(rank)]) for rank in worst]
    links = analysis.links if len(analysis.collectives) else None
    names = ("no_jitter", *(("twice_links", "overlap") if links is not None else ()))
    bounds = [CURES[name].make for name in names]
    played = [make(links) for make in bounds if make is not None]
    return list({each.name: each for each in (*priced, *late, without_stragglers(), *played)}.values())
