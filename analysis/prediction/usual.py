"""The scenarios that are predicted where none is given."""

from __future__ import annotations

from ..replay.changes import LEAST
from ..replay.links import links_of
from ..replay.scenarios.scenario import Scenario
from ..replay.scenarios.transfers import faster_links
from ..replay.scenarios.usual import no_jitter, perfect_overlap, without_stragglers
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
    bounds = [without_stragglers(), no_jitter()]
    if len(analysis.collectives):
        bounds += [faster_links(2.0, links_of(analysis.links)), perfect_overlap()]
    return list({scenario.name: scenario for scenario in (*priced, *late, *bounds)}.values())
