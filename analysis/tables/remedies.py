"""What to try: what a step would gain from each change, and how much of it each is about. See `replay/`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..core.declaring import Later, TableEntry, Topic, played, value
from ..core.schema import Schema
from ..core.tables.columns import PARTIAL_RUN
from ..errors import NothingMeasured, NotPredictable
from ..metrics.causes.blame import as_late, blamed, for_whom
from .bandwidth import BANDWIDTH_CEILING
from .critical_path import CRITICAL_PATH

if TYPE_CHECKING:
    import pandas as pd

    from ..ceilings.files import Ceiling
    from ..metrics.prices import Gain, Prices, UnevenExperts
    from ..metrics.typical_step import TypicalStep
    from ..replay.links import Links
    from ..replay.scenarios.scenario import Scenario
    from ..replay.table import Replay
    from ..run.run import Run
    from .ranks import Waiting

REMEDIES = Schema("remedies", "change that would shorten the steps", {
    "remedy": ("string", (
        "no_straggler, slow_links, balanced_experts, no_jitter, no_bubble, overlap, twice_links, faster_links, "
        "no_copies, no_syncs, no_allocations, no_data_wait, no_gc, no_long_calls, no_compilation, no_pauses, "
        "launch_ahead or no_idle"
    )),
    "gain_ns": (
        "Int64",
        "by how much this alone makes a typical step shorter, as played again; NA where that is not known",
    ),
    "gain_low_ns": ("Int64", "the least it may be"),
    "gain_high_ns": ("Int64", "the most it may be"),
    "gain_frac": ("Float64", "gain_ns / length of a typical step"),
    "is_bound": ("boolean", "whether it is more than anybody can do: gain_ns is the most there is; NA as gain_ns"),
    "then_ns": ("Int64", "what it adds once the changes above it are made; NA behind the first four"),
    "concerned_ns": ("Int64", "time of a typical step that it is about; not what it gains; NA where not known"),
    "concerned_frac": ("Float64", "concerned_ns / length of a typical step"),
    "path_frac": ("Float64", "share of the critical path that it concerns; NA where that is not known"),
    "what": ("string", "what would have to be different"),
    "how": ("string", "where to begin"),
    "command": ("string", "command that plays this again, alone or beside others; NA where it is not played"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

_LOG = logging.getLogger("commtrace.analysis")


@value
@played
def priced(
    run: Run,
    breakdown: pd.DataFrame,
    breakdown_of_typical_step: pd.DataFrame,
    hangs: pd.DataFrame,
    calls: pd.DataFrame,
    bandwidth: Later[pd.DataFrame],
    links: Links,
    expert_passes: Later[pd.DataFrame],
    experts: Later[pd.DataFrame],
    typical_step: TypicalStep,
    typical_waiting: Waiting,
    culprits: Collection[int],
    idle_of_typical_step: Later[pd.DataFrame],
    syncs_steps: Later[pd.DataFrame],
    replayed: Later[Replay],
) -> tuple[Prices | None, list[Scenario]]:
    """What a step would gain without each cause, None where the run cannot be played again, and how each is played."""
    from ..ceilings.normal import links_are_normal
    from ..metrics.experts.table import uneven_experts
    from ..replay.cures import worth_pricing
    from ..replay.pricing import prices_of
    from ..replay.scenarios.experts import balanced_experts

    if not run.details or not run.has_starts or not len(breakdown) or len(hangs) or run.idle_gpus:
        return None, []
    parts, waiting = typical_step.parts, typical_waiting

    def experts_balanced() -> tuple[Scenario, UnevenExperts] | None:
        passes = expert_passes()
        uneven = uneven_experts(experts(), typical_step.steps) if len(passes) else None
        return None if uneven is None else (balanced_experts(passes), uneven)

    exposed = breakdown_of_typical_step.groupby("rank")["exposed_wait_ns"].mean().fillna(0)
    exposed_ns = dict(zip(exposed.index.tolist(), exposed.tolist(), strict=True))
    try:
        _LOG.info("playing steps again without what makes them long")
        return prices_of(
            replayed(),
            blamed={*culprits, *as_late(waiting.participation, culprits)},
            unshown=run.unshown_steps,
            hosts=run.hosts,
            asked=worth_pricing(
                typical_step,
                idle_of_typical_step(),
                run.annotations,
                syncs_steps(),
                calls,
                on_cpus=run.is_of_cpus,
                links_are_normal=links_are_normal(bandwidth()),
            ),
            links=links if len(links.collectives) else None,
            experts=experts_balanced,
            for_whom=for_whom(blamed(waiting.participation, waiting.lateness), exposed_ns),
            waiting_ns=parts["exposed_wait_ns"] + parts["exposed_unsplit_ns"],
        )
    except (NotPredictable, NothingMeasured):
        return None, []


@value
@played
def gains_in_turn(priced: tuple[Prices | None, list[Scenario]], replayed: Later[Replay]) -> list[float]:
    """What a step gains from each of the first changes once those before it are made, in ns."""
    from ..replay.pricing import one_after_the_other

    prices, scenarios = priced
    return [] if prices is None else one_after_the_other(replayed(), prices.changes, scenarios)


@value
def known_gains(prices: Prices | None) -> Mapping[str, Gain]:
    """The gains of all changes that are priced, by what would be different."""
    return {} if prices is None else {change.what: change.gain for change in prices.changes}


@TableEntry(
    REMEDIES,
    Topic.overview,
    "What to try, what a step would gain, and how much of it that is about.",
    "remedies.md#what-to-try",
    command="table remedies",
    after="verdicts",
    needs_starts=True,
    none_found="no change that commtrace knows of is about any time of a step",
    shown=(
        "what", "gain_ns", "gain_low_ns", "gain_high_ns", "gain_frac", "concerned_ns", "concerned_frac", "path_frac",
        "remedy", "how", "partial",
    ),
    narrow=("what", "gain_ns", "gain_frac", "concerned_ns"),
    below="how",
    negligible=("concerned_frac",),
)  # fmt: skip
def remedies(
    run: Run,
    breakdown_of_typical_step: pd.DataFrame,
    typical_step: TypicalStep,
    typical_waiting: Waiting,
    calls: pd.DataFrame,
    collectives: pd.DataFrame,
    members: pd.DataFrame,
    ceiling: Ceiling | None,
    bandwidth_ceiling: Later[pd.DataFrame],
    is_playable: bool,
    critical_path: Later[pd.DataFrame],
    prices: Prices | None,
    gains_in_turn: list[float],
) -> pd.DataFrame:
    """One row per change that would shorten the steps, with how much of a step it is about."""
    from ..replay.remedies import StepCosts, remedy_rows

    if run.idle_gpus:
        return REMEDIES.empty()
    costs = StepCosts(
        steps=breakdown_of_typical_step,
        length_ns=typical_step.parts["window_ns"] if len(breakdown_of_typical_step) else 0.0,
        ranks=typical_waiting.ranks,
        calls=calls,
        collectives=collectives,
        participation=members,
        ceiling=bandwidth_ceiling() if ceiling is not None else BANDWIDTH_CEILING.empty(),
        path=critical_path() if is_playable else CRITICAL_PATH.empty(),
    )
    return REMEDIES.frame(remedy_rows(costs, prices, gains_in_turn))
