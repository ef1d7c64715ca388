"""Experts: tokens and time of each rank's, and what waiting for the busiest costs. `metrics/experts/` finds it out."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..core.declaring import Later, TableEntry, Topic, each_rank, value
from ..core.schema import Schema, records
from ..core.tables.columns import GROUP, PARTIAL, PARTIAL_RUN, PG_RANKS, RANK

if TYPE_CHECKING:
    import pandas as pd

_LAYER = ("int64", "number of the layer: of its dispatch among those of the forward pass of a step, from 0")
_NOTE = ("string", "why something is NA")

EXPERTS = Schema("experts", "layer with experts, step and rank", {
    "layer": _LAYER,
    "step": ("Int64", "N of ProfilerStep#N; NA where no step is marked"),
    "rank": RANK,
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "passes": ("int64", "passes through these experts: forward, backward, and again for each batch in the step"),
    "sent_tokens": ("Int64", "rows that it sends to experts, itself included: a token for two experts is two; forward"),
    "received_tokens": ("Int64", "rows that its experts get; forward"),
    "imbalance_factor": ("Float64", "largest received_tokens / their mean over the ranks of the group; 1 is even"),
    "expert_ns": ("Int64", "compute between dispatch and combine, forward and backward"),
    "cost_ns": ("Int64", "expert time of the slowest rank of each pass less the mean over ranks; of the whole group"),
    "wait_dispatch_ns": ("Int64", "waiting before the experts, in dispatches and exchanges of counts"),
    "wait_combine_ns": ("Int64", "waiting behind the experts, in combines: experts of others took longer"),
    "wait_dispatch_frac": ("Float64", "wait_dispatch_ns / the step"),
    "wait_combine_frac": ("Float64", "wait_combine_ns / the step"),
    "note": _NOTE,
    "partial": PARTIAL,
})  # fmt: skip

EXPERTS_LAYERS = Schema("experts_layers", "layer with experts", {
    "layer": _LAYER,
    "steps": ("int64", "steps that are summed here: those that count"),
    "imbalance_factor": ("Float64", "mean over the steps"),
    "imbalance_most_factor": ("Float64", "largest of a step"),
    "hot_rank": ("Int64", "rank whose experts are slowest in most steps, of the group that costs most"),
    "hot_frac": ("Float64", "part of the steps in which it is: 1 is always, as little as 1 / ranks is chance"),
    "hot_factor": ("Float64", "its expert time / the mean over the ranks of its group, over all steps"),
    "cost_ns": ("Int64", "mean over steps and groups"),
    "persistent_cost_ns": ("Int64", "the part of it that is left if each rank takes its mean over steps"),
    "expert_ns": ("Int64", "mean over steps and ranks"),
    "wait_dispatch_ns": ("Int64", "likewise"),
    "wait_combine_ns": ("Int64", "likewise"),
    "note": _NOTE,
    "partial": PARTIAL_RUN,
})  # fmt: skip

_NONE_FOUND = (
    "no all_to_all is known to take tokens to experts and back: there is none, or parts are equal and no counts are "
    "exchanged before, or attention runs in between, or nothing comes back in the same pass"
)


@value
@each_rank
def expert_exchanges(activities: pd.DataFrame, cpu_operators: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """The all_to_alls of each rank, and how much it had computed by then."""
    from ..metrics.experts.exchanges import exchanges_of

    return exchanges_of(activities, cpu_operators, calls)


@value
def expert_passes(
    expert_exchanges: Later[pd.DataFrame],
    calls: pd.DataFrame,
    matches: pd.DataFrame,
    collectives: Later[pd.DataFrame],
    split_calls: Later[pd.DataFrame],
    groups: Later[pd.DataFrame],
) -> pd.DataFrame:
    """The passes of each rank through experts. Where nothing may be one, no rank is looked at."""
    from ..metrics.experts.passes import PASSES, passes_of

    if not calls["collective"].isin(["all_to_all"]).any():
        return PASSES.empty()
    return passes_of(expert_exchanges(), calls, matches, collectives(), split_calls(), groups())


@TableEntry(
    EXPERTS,
    Topic.waiting,
    "Experts: tokens and time of each rank's, and what the slowest costs, by layer and step.",
    "experts.md#what-uneven-experts-cost",
    command="table experts",
    after="pipeline_stages",
    none_found=_NONE_FOUND,
    shown=(
        "layer", "step", "rank", "sent_tokens", "received_tokens", "imbalance_factor", "expert_ns", "cost_ns",
        "wait_dispatch_ns", "wait_combine_ns", "wait_dispatch_frac", "wait_combine_frac", "note", "partial",
    ),
    narrow=(
        "layer", "step", "rank", "received_tokens", "imbalance_factor", "expert_ns", "cost_ns", "wait_dispatch_ns",
        "wait_combine_ns", "sent_tokens", "wait_dispatch_frac", "wait_combine_frac",
    ),
    below="note",
    optional=("note",),
)  # fmt: skip
def experts(expert_passes: pd.DataFrame, breakdown_steps: pd.DataFrame) -> pd.DataFrame:
    """One row per layer with experts, step and rank: tokens, time, and waiting before and behind the experts."""
    from ..metrics.experts.table import rows_of_experts

    if not len(expert_passes):
        return EXPERTS.empty()
    steps = records(breakdown_steps[["rank", "step", "window_ns"]])
    windows = {(row["rank"], row["step"]): row["window_ns"] for row in steps}
    return EXPERTS.frame(rows_of_experts(expert_passes, windows))


@TableEntry(
    EXPERTS_LAYERS,
    Topic.waiting,
    "The layers with experts: how uneven these are, and whether the same rank is always the slowest.",
    "experts.md#hot-ranks-and-drifting-ones",
    command="table experts --by layer",
    none_found=_NONE_FOUND,
    shown=(
        "layer", "steps", "imbalance_factor", "imbalance_most_factor", "hot_rank", "hot_frac", "hot_factor", "cost_ns",
        "persistent_cost_ns", "expert_ns", "wait_dispatch_ns", "wait_combine_ns", "note", "partial",
    ),
    narrow=(
        "layer", "imbalance_factor", "cost_ns", "persistent_cost_ns", "hot_rank", "hot_frac", "hot_factor",
        "wait_dispatch_ns", "wait_combine_ns", "expert_ns", "imbalance_most_factor",
    ),
    below="note",
    optional=("note",),
    in_steps=True,
)  # fmt: skip
def experts_layers(experts: pd.DataFrame, counted_steps: Collection[int]) -> pd.DataFrame:
    """One row per layer with experts: what uneven experts cost, and who is slowest how often, over the steps."""
    from ..metrics.experts.table import rows_of_layers

    return EXPERTS_LAYERS.frame(rows_of_layers(experts, counted_steps))
