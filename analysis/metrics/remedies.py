"""Changes that would shorten the steps: how much of a step each concerns, and what a step would gain.

These are not the same. A change can gain less, since a rank that waits less in one place waits in another; and more:
behind a late rank, others' transfers and idle time go as well. Only a run played again tells.
Source of the rules: docs/metrics/remedies.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from ...common.nccl_tests import POINT_TO_POINT
from ...common.wording import shortened
from ..core.schema import Row, records
from ..core.tables.lateness import REMEDIES
from .causes.blame import shares_of_waiting, standing_out
from .prices import Gain, LateRanks, Prices
from .verdicts.culprits import length

_DEVICE = ["rank", "device"]
_MOVING = ["transfer", "unsplit"]
_MOST_NAMED = 4
_WORTH_SAYING, _MOST_SAID = 0.01, 3
_SIZES = ["process_group", "pg_ranks", "collective", "dtype", "size_bytes"]


class StepCosts(NamedTuple):
    """The tables of a run from which remedies are computed.

    `steps` has the rows of `breakdown_steps` of which the typical step is a mean, or `breakdown` with a column `step`
    where no steps are marked, `length_ns` is how long that one is; `ranks` is of the same steps; `ceiling` is
    `bandwidth_ceiling`, without rows if there is none, and so is `path`, which is `critical_path`.
    """

    steps: pd.DataFrame
    length_ns: float
    ranks: pd.DataFrame
    calls: pd.DataFrame
    collectives: pd.DataFrame
    participation: pd.DataFrame
    ceiling: pd.DataFrame
    path: pd.DataFrame


def remedies(costs: StepCosts, prices: Prices | None = None, leading: str | None = None) -> pd.DataFrame:
    """One row per change that concerns some time or gains some: the largest gain first, or the most time.

    `prices` are gains of the run played again, None where it cannot be. The `leading` remedy comes before all others:
    it is about what the verdict says first (`verdicts/order`).
    """
    steps = costs.steps
    if not len(steps):
        return REMEDIES.empty()
    number = steps["step"].nunique()
    rows: list[Row] = []
    for row in _changes(costs, prices):
        by_step = row.pop("by_step", None)
        concerned = 0 if by_step is None else int(by_step.clip(lower=0).sum() / number)
        on_path = row.pop("on_path", None)
        share = None if on_path is None or not len(costs.path) else float(costs.path["share_frac"][on_path].sum())
        of_step = {"concerned_ns": concerned, "concerned_frac": concerned / costs.length_ns} if concerned else {}
        gain = row.pop("gain", None) or (prices.gains.get(row["remedy"]) if prices else None)
        if concerned > 0 or (gain is not None and gain.ns > 0):
            rows.append(row | of_step | {"path_frac": share} | _gains(gain, costs.length_ns))
    # How much time a change is about does not say what it gains: such rows come after all known gains.
    rows.sort(
        key=lambda row: (
            row["remedy"] == leading,
            row.get("gain_ns", 0) > 0,
            row.get("gain_ns", row.get("concerned_ns")) or 0,
        ),
        reverse=True,
    )
    return REMEDIES.frame(rows)


def first_gains(table: pd.DataFrame, length_ns: float) -> str | None:
    """The first rows of `remedies` that gain enough, as a sentence about a step of this length; None if none does."""
    worth = [row for row in records(table) if (row["gain_frac"] or 0) >= _WORTH_SAYING][:_MOST_SAID]
    if not worth:
        return None
    gains = ", or ".join(f"{length(row['gain_ns'] / 1e6)} with {row['what']}" for row in worth)
    return f"a step of {length(length_ns / 1e6)} would gain {gains}; see `remedies`"


def _gains(gain: Gain | None, length_ns: float) -> Row:
    if gain is None:
        return {}
    # Nothing that is left out makes a step longer: where it seems so, the replay tells no better.
    ns, low, high = (max(each, 0.0) for each in gain)
    return {"gain_ns": round(ns), "gain_low_ns": round(low), "gain_high_ns": round(high), "gain_frac": ns / length_ns}


def _changes(costs: StepCosts, prices: Prices | None) -> Iterator[Row]:
    """Yield each change with the time that it concerns, by step, and its rows of the critical path."""
    steps = costs.steps
    on_path = costs.path["kind"].isin
    unsplit = steps["exposed_unsplit_ns"]
    # Unsplit communication may be waiting or transfer. It is no ground for asking a rank to be faster; but hidden
    # behind compute it costs nothing, whichever it is.
    if prices is not None and prices.slow is not None:
        yield {
            "remedy": "slow_links",
            "what": f"{prices.slow.label} as fast as others like them",
            "how": "see `bandwidth` for their groups; cables, switches, NICs and NCCL settings of these ranks' hosts",
            "gain": prices.slow.gain,
        }
    yield from _without_waiting(costs, steps["exposed_wait_ns"].fillna(0), prices)
    moving = steps["exposed_transfer_ns"].fillna(0) + unsplit
    yield {
        "remedy": "overlap",
        # Behind compute that nothing is hidden behind yet: there may be less of it than there is to hide.
        "by_step": _mean(steps, moving.clip(upper=steps["compute_ns"] - steps["overlap_ns"])),
        "on_path": on_path(_MOVING),
        "what": "every transfer hidden behind compute",
        "how": "start collectives earlier (prefetch, smaller buckets), or give them independent compute",
    }
    if len(costs.ceiling):
        yield {
            "remedy": "faster_links",
            "by_step": _mean(steps, _below_ceiling(costs)),
            "on_path": on_path(_MOVING),
            "what": "links as fast as the ceiling",
            "how": "see `bandwidth --ceiling` for the sizes that fall short: NCCL settings, topology, message sizes",
        }
    yield {
        "remedy": "no_copies",
        "by_step": _mean(steps, steps["exposed_memory_ns"]),
        "on_path": on_path(["copy"]),
        "what": "no copy or fill that nothing hides",
        "how": "pinned memory and non_blocking copies on a stream of their own; see `kernels`",
    }
    priced = [] if prices is None else [row for row in _OF_IDLE if row["remedy"] in prices.gains]
    yield from map(dict, priced)
    if priced:
        return
    yield {
        "remedy": "no_idle",
        "by_step": _mean(steps, steps["idle_ns"]),
        "on_path": on_path(["cpu", "launch"]),
        "what": "devices that always have work",
        "how": "launch ahead of the device: fewer synchronisations, CUDA graphs, a faster data loader",
    }


_OF_IDLE: tuple[Row, ...] = (
    {
        "remedy": "no_data_wait",
        "what": "batches that are there when they are asked for",
        "how": "more workers of the data loader, prefetch_factor, less work per sample",
    },
    {
        "remedy": "no_syncs",
        "what": "CPUs that do not wait for their device",
        "how": "see `syncs`: no `.item()`, `.cpu()` or `print` of a tensor in a step, non_blocking copies",
    },
    {
        "remedy": "no_allocations",
        "what": "no memory allocated or freed by the driver in a step",
        "how": "see `syncs`: smaller batches, PYTORCH_ALLOC_CONF=expandable_segments:True, no empty_cache()",
    },
    {
        "remedy": "no_gc",
        "what": "no garbage collected by Python in a step",
        "how": "gc.freeze() before the first step; or gc.disable(), and gc.collect() on all ranks in the same steps",
    },
    {
        "remedy": "no_long_calls",
        "what": "no call or operator that takes 100 times as long as usual",
        "how": "see `syncs`: warm up before capturing, as by schedule(wait=1, warmup=3); or CUDA_MODULE_LOADING=EAGER",
    },
    {
        "remedy": "no_compilation",
        "what": "nothing compiled in a step",
        "how": "see `syncs`: compile in steps before the traced ones, keep a cache of it, fewer shapes that change",
    },
    {
        "remedy": "launch_ahead",
        "what": "every kernel launched in time",
        "how": "CUDA graphs, torch.compile, larger batches: fewer and longer kernels",
    },
)
"""Changes about idle time; how much of that each is about is another question than what it gains."""


def _without_waiting(costs: StepCosts, waiting: pd.Series[int], prices: Prices | None) -> Iterator[Row]:
    """Yield the changes without waiting: the ranks that stand out are not late, or all are equally fast."""
    if prices is not None and prices.late is not None:
        yield _without_late(costs, waiting, prices.late)
        if "no_jitter" in prices.gains:
            yield _JITTER
        return
    shares = shares_of_waiting(costs.ranks, "rank")
    late = standing_out(shares)
    # A rank that begins the traced step late was late before: nothing in the trace tells what to change.
    at_start = set(costs.ranks["rank"][costs.ranks["because"] == "start"])
    if late and at_start.issuperset(late):
        return
    late = [rank for rank in late if rank not in at_start]
    others = ~costs.steps["rank"].isin(late)
    if late and others.any():
        by_step = waiting[others].groupby(costs.steps["step"][others])
        yield {
            "remedy": "no_straggler",
            "by_step": by_step.min().astype("float64").clip(upper=by_step.mean() * shares[late].sum()),
            "on_path": costs.path["rank"].isin(late) & ~costs.path["kind"].isin(_MOVING),
            "what": f"{named_ranks(late)} as fast as the others",
            "how": "see `ranks` and `lateness` for what takes longer there, `hosts` for a slow machine",
            "gain": None if prices is None else prices.blamed,
        }
    elif _between_stages(costs):
        yield {
            "remedy": "no_bubble",
            "by_step": _mean(costs.steps, waiting),
            "what": "no rank waits for what another one sends, as pipeline stages do",
            "how": "more microbatches, an interleaved schedule, or stages that take equally long",
        }
    else:
        yield _JITTER | {"by_step": _mean(costs.steps, waiting)}


_JITTER: Row = {
    "remedy": "no_jitter",
    "what": "every rank equally fast in every step",
    "how": "even out the work of the ranks; see `rank_steps` for where waiting is",
}


def _without_late(costs: StepCosts, waiting: pd.Series[int], late: LateRanks) -> Row:
    """The remedy without these late ranks, with the waiting that the table `ranks` says they cause."""
    shares, ranks = shares_of_waiting(costs.ranks, "rank"), list(late.ranks)
    others = ~costs.steps["rank"].isin(ranks)
    caused = float(shares.reindex(ranks).fillna(0).sum())
    by_step = waiting[others].groupby(costs.steps["step"][others])
    return {
        "remedy": "no_straggler",
        "by_step": by_step.min().astype("float64").clip(upper=by_step.mean() * caused),
        "on_path": costs.path["rank"].isin(ranks) & ~costs.path["kind"].isin(_MOVING),
        "what": f"{named_ranks(ranks, late.host)} as fast as the others",
        "how": "see `ranks` and `lateness` for what takes longer there, `hosts` for a slow machine",
        "gain": late.gain,
    }


def named_ranks(ranks: Sequence[int], host: str | None = None) -> str:
    """`rank 5`, `ranks 2, 5` or `host node1`; at most four ranks are named."""
    if host is not None:
        return f"host {host}"
    return f"rank{'s' if len(ranks) > 1 else ''} {shortened(ranks, _MOST_NAMED)}"


def _between_stages(costs: StepCosts) -> bool:
    """Whether most of the waiting is for sends, as between stages of a pipeline."""
    kinds = costs.participation["collective_id"].map(costs.collectives.set_index("collective_id")["collective"])
    waited = costs.participation["exposed_wait_ns"].fillna(0)
    return bool(2 * waited[kinds.isin(POINT_TO_POINT)].sum() > waited.sum())


def _mean(steps: pd.DataFrame, time_ns: pd.Series[int]) -> pd.Series[float]:
    """Mean over the devices, by step."""
    return time_ns.groupby(steps["step"]).mean().astype("float64")


def _below_ceiling(costs: StepCosts) -> pd.Series[int]:
    """Exposed transfer that each row of `steps` would save if every collective reached the ceiling, in ns."""
    reached = costs.ceiling[[*_SIZES, "of_ceiling_frac"]].drop_duplicates(_SIZES)
    sizes = costs.collectives[["collective_id", *_SIZES]].merge(reached, on=_SIZES)
    calls = costs.participation.merge(sizes[["collective_id", "of_ceiling_frac"]], on="collective_id")
    short = 1 - calls["of_ceiling_frac"].astype("Float64").clip(upper=1)
    saved = (calls["exposed_transfer_ns"] * short).fillna(0)
    step = calls["call_id"].map(costs.calls.set_index("call_id")["step"])
    sums = saved.groupby([calls["rank"], calls["device"], step]).sum()
    rows = zip(costs.steps["rank"], costs.steps["device"], costs.steps["step"], strict=True)
    of = dict(zip(sums.index, sums, strict=True))
    return pd.Series([round(of.get(row, 0)) for row in rows], index=costs.steps.index)
