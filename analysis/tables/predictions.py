"""What a step would take if something were different: the scenarios that are predicted where none is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, played
from ..core.schema import Schema
from ..core.tables.columns import PARTIAL_RUN

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.prices import Gain, Prices
    from ..replay.links import Links
    from ..replay.scenarios.scenario import Scenario
    from ..replay.table import Replay

PREDICTIONS = Schema("predictions", "thing that could be different", {
    "scenario": ("string", "what is different"),
    "step_ns": ("Int64", "length of a step then: measured, less gain_ns; NA where `unknown` says why"),
    "low_ns": ("Int64", "the shortest it may be: over ways of the change, delays, replay error and chance"),
    "high_ns": ("Int64", "the longest it may be"),
    "gain_ns": ("Int64", "by how much a step is shorter, mean over steps and devices"),
    "gain_frac": ("Float64", "gain_ns / measured length of a step"),
    "throughput_factor": ("Float64", "work done in the same time / as measured; NA with as many ranks as there are"),
    "efficiency_frac": ("Float64", "throughput_factor / how many times as many ranks; NA with as many ranks"),
    "unknown": ("string", "why a number is NA"),
    "replay_error_frac": ("Float64", "by how much the replay of the run as it is misses a step, median over steps"),
    "assumes": ("string", "what is taken for granted"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

_WORTH_FIXING_FRAC, _MOST_FIXED = 0.05, 3
"""Of all waiting, the least share caused by a rank that gets a scenario of its own; how many ranks get one."""


@TableEntry(
    PREDICTIONS,
    Topic.foresight,
    "Step time without stragglers, with faster links, and more.",
    "replay.md#scenarios",
    command="predict",
    after="releases_calls",
    none_measured="nothing ran on a device",
    narrow=("scenario", "step_ns", "low_ns", "high_ns", "gain_ns", "gain_frac", "throughput_factor", "efficiency_frac"),
    below="assumes",
    optional=("throughput_factor", "efficiency_frac", "unknown"),
)
@played
def predictions(
    replayed: Replay,
    priced: tuple[Prices | None, list[Scenario]],
    known_gains: Mapping[str, Gain],
    ranks: pd.DataFrame,
    links: Links,
) -> pd.DataFrame:
    """One row per usual scenario: priced remedies, without stragglers or jitter, with faster links or full overlap.

    Needs a run with `details`. Raises NothingMeasured; NotPredictable where the replay is too far off.
    """
    scenarios = {each.name: each for each in _usual(*priced, ranks, links if len(links.collectives) else None)}
    return PREDICTIONS.frame(replayed.predictions([*scenarios.values()], known_gains))


def _usual(
    prices: Prices | None, scenarios: list[Scenario], ranks: pd.DataFrame, links: Links | None
) -> Iterator[Scenario]:
    """What `remedies` prices, in its order, then ranks that others wait for, and bounds. Raises NothingMeasured."""
    from ..replay.cures import CURES, LEAST
    from ..replay.scenarios.usual import without_stragglers

    if prices is not None:
        for change, scenario in zip(prices.changes, scenarios, strict=True):
            if change.gain.ns >= LEAST * prices.step_ns:
                yield scenario
    causing = ranks[ranks["caused_wait_frac"].fillna(0) >= _WORTH_FIXING_FRAC]
    for rank in causing.sort_values("caused_wait_ns", ascending=False)["rank"].head(_MOST_FIXED):
        yield without_stragglers([int(rank)])
    yield without_stragglers()
    for name in ("no_jitter", *(("twice_links", "overlap") if links is not None else ())):
        make = CURES[name].make
        if make is not None:
            yield make(links)
