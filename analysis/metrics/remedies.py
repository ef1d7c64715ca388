"""What would shorten the steps, and how much of a step each change is about.

That is not what it gains. A change can gain less, since a rank that waits less in one place waits in another; and more:
behind a late rank, others' transfers and idle time go as well. Only a run played again tells (`predict`).
Source of the rules: docs/metrics/remedies.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from ..core.nccl_tests import POINT_TO_POINT
from ..core.schema import Row
from ..core.tables.lateness import REMEDIES
from .causes.blame import shares_of_waiting, standing_out

_DEVICE = ["rank", "device"]
_MOVING = ["transfer", "unsplit"]
_SIZES = ["process_group", "pg_ranks", "collective", "dtype", "size_bytes"]


class StepCosts(NamedTuple):
    """What remedies are computed from: tables of a run.

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


def remedies(costs: StepCosts) -> pd.DataFrame:
    """One row per change that is about some time, the largest first."""
    steps = costs.steps
    if not len(steps):
        return REMEDIES.empty()
    number = steps["step"].nunique()
    rows = []
    for row in _changes(costs):
        concerned = int(row.pop("by_step").clip(lower=0).sum() / number)
        on_path = row.pop("on_path", None)
        share = None if on_path is None or not len(costs.path) else float(costs.path["share_frac"][on_path].sum())
        if concerned > 0:
            rows.append(
                row | {"concerned_ns": concerned, "concerned_frac": concerned / costs.length_ns, "path_frac": share}
            )
    rows.sort(key=lambda row: -row["concerned_ns"])
    return REMEDIES.frame(rows)


def _changes(costs: StepCosts) -> Iterator[Row]:
    """Each change with the time it is about, by step, and the rows of the critical path that it concerns."""
    steps = costs.steps
    on_path = costs.path["kind"].isin
    unsplit = steps["exposed_unsplit_ns"]
    # Unsplit communication may be waiting or transfer. It is no ground for asking a rank to be faster; but hidden
    # behind compute it costs nothing, whichever it is.
    yield from _without_waiting(costs, steps["exposed_wait_ns"].fillna(0))
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
    yield {
        "remedy": "no_idle",
        "by_step": _mean(steps, steps["idle_ns"]),
        "on_path": on_path(["cpu", "launch"]),
        "what": "devices that always have work",
        "how": "launch ahead of the device: fewer synchronisations, CUDA graphs, a faster data loader",
    }


def _without_waiting(costs: StepCosts, waiting: pd.Series[int]) -> Iterator[Row]:
    """Nobody waits: since the ranks that stand out are no longer late, or since all are equally fast."""
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
        several = len(late) > 1
        named = ", ".join(map(str, late[:4])) + (", ..." if len(late) > 4 else "")
        yield {
            "remedy": "no_straggler",
            "by_step": by_step.min().astype("float64").clip(upper=by_step.mean() * shares[late].sum()),
            "on_path": costs.path["rank"].isin(late) & ~costs.path["kind"].isin(_MOVING),
            "what": f"rank{'s' if several else ''} {named} as fast as the others",
            "how": "see `ranks` and `lateness` for what takes longer there, `hosts` for a slow machine",
        }
    elif _between_stages(costs):
        yield {
            "remedy": "no_bubble",
            "by_step": _mean(costs.steps, waiting),
            "what": "no rank waits for what another one sends, as pipeline stages do",
            "how": "more microbatches, an interleaved schedule, or stages that take equally long",
        }
    else:
        yield {
            "remedy": "no_jitter",
            "by_step": _mean(costs.steps, waiting),
            "what": "every rank equally fast in every step",
            "how": "even out the work of the ranks; see `rank_steps` for where waiting is",
        }


def _between_stages(costs: StepCosts) -> bool:
    """Whether most of the waiting is for sends."""
    kinds = costs.participation["collective_id"].map(costs.collectives.set_index("collective_id")["collective"])
    waited = costs.participation["exposed_wait_ns"].fillna(0)
    return bool(2 * waited[kinds.isin(POINT_TO_POINT)].sum() > waited.sum())


def _mean(steps: pd.DataFrame, time_ns: pd.Series[int]) -> pd.Series[float]:
    """By step: the mean over the devices."""
    return time_ns.groupby(steps["step"]).mean().astype("float64")


def _below_ceiling(costs: StepCosts) -> pd.Series[int]:
    """By row of `steps`: exposed transfer that would be saved if each collective reached the ceiling."""
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
