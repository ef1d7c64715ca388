"""What would shorten the steps, and by how much at most: an upper bound for each change by itself.

A step of a job ends when its slowest device does, so a change can save no more than it saves the device that gains
least from it. Bounds overlap: they must not be added up. Source of the rules: docs/metrics/remedies.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from ..core.nccl_tests import POINT_TO_POINT
from ..core.schema import Row
from ..core.tables.lateness import REMEDIES
from .causes.blame import standing_out

_DEVICE = ["rank", "device"]
_MOVING = ["transfer", "unsplit"]
_SIZES = ["process_group", "pg_ranks", "collective", "dtype", "size_bytes"]


class StepCosts(NamedTuple):
    """What remedies are computed from: tables of a run.

    `steps` is `breakdown_steps`, or `breakdown` with a column `step` where no steps are marked; `ceiling` is
    `bandwidth_ceiling`, without rows if there is none, and so is `path`, which is `critical_path`.
    """

    steps: pd.DataFrame
    ranks: pd.DataFrame
    calls: pd.DataFrame
    collectives: pd.DataFrame
    participation: pd.DataFrame
    ceiling: pd.DataFrame
    path: pd.DataFrame


def remedies(costs: StepCosts) -> pd.DataFrame:
    """One row per change that saves anything, the largest gain first."""
    steps = costs.steps
    if not len(steps):
        return REMEDIES.empty()
    lengths = steps.groupby("step")["window_ns"].max()
    rows = []
    for row in _changes(costs):
        gain = int(row.pop("gains").clip(lower=0).reindex(lengths.index).fillna(0).mean())
        on_path = row.pop("on_path", None)
        share = None if on_path is None or not len(costs.path) else float(costs.path["share_frac"][on_path].sum())
        if gain > 0:
            rows.append(row | {"gain_ns": gain, "gain_frac": gain / float(lengths.mean()), "path_frac": share})
    rows.sort(key=lambda row: -row["gain_ns"])
    return REMEDIES.frame(rows)


def _changes(costs: StepCosts) -> Iterator[Row]:
    """Each change with its gain by step, and the rows of the critical path that it concerns."""
    steps = costs.steps
    on_path = costs.path["kind"].isin
    # What could not be split may be either, and counts for both: a bound must not be too small.
    unsplit = steps["exposed_unsplit_ns"]
    waiting = steps["exposed_wait_ns"].fillna(0) + unsplit
    moving = steps["exposed_transfer_ns"].fillna(0) + unsplit
    yield _without_waiting(costs, waiting)
    yield {
        "remedy": "overlap",
        "gains": _least(steps, moving),
        "on_path": on_path(_MOVING),
        "what": "every transfer hidden behind compute",
        "how": "start collectives earlier (prefetch, smaller buckets), or give them independent compute",
    }
    if len(costs.ceiling):
        yield {
            "remedy": "faster_links",
            "gains": _least(steps, _below_ceiling(costs)),
            "on_path": on_path(_MOVING),
            "what": "links as fast as the ceiling",
            "how": "see `bandwidth --ceiling` for the sizes that fall short: NCCL settings, topology, message sizes",
        }
    yield {
        "remedy": "no_copies",
        "gains": _least(steps, steps["exposed_memory_ns"]),
        "on_path": on_path(["copy"]),
        "what": "no copy or fill that nothing hides",
        "how": "pinned memory and non_blocking copies on a stream of their own; see `kernels`",
    }
    yield {
        "remedy": "no_idle",
        "gains": _least(steps, steps["idle_ns"]),
        "on_path": on_path(["cpu", "launch"]),
        "what": "devices that always have work",
        "how": "launch ahead of the device: fewer synchronisations, CUDA graphs, a faster data loader",
    }


def _without_waiting(costs: StepCosts, waiting: pd.Series[int]) -> Row:
    """Nobody waits: since the ranks that stand out are no longer late, or since all are equally fast."""
    shares = costs.ranks.set_index("rank")["caused_wait_frac"].dropna().astype("float64")
    late = standing_out(shares)
    others = ~costs.steps["rank"].isin(late)
    if late and others.any():
        several = len(late) > 1
        named = ", ".join(map(str, late[:4])) + (", ..." if len(late) > 4 else "")
        return {
            "remedy": "no_straggler",
            "gains": _least(costs.steps[others], waiting[others]),
            "on_path": costs.path["rank"].isin(late) & ~costs.path["kind"].isin(_MOVING),
            "what": f"rank{'s' if several else ''} {named} as fast as the others",
            "how": "see `ranks` and `lateness` for what takes longer there, `hosts` for a slow machine",
        }
    if _between_stages(costs):
        return {
            "remedy": "no_bubble",
            "gains": waiting.groupby(costs.steps["step"]).mean(),
            "what": "no rank waits for what another one sends, as pipeline stages do",
            "how": "more microbatches, an interleaved schedule, or stages that take equally long",
        }
    return {
        "remedy": "no_jitter",
        "gains": waiting.groupby(costs.steps["step"]).mean(),
        "what": "every rank equally fast in every step",
        "how": "even out the work of the ranks; see `rank_steps` for where waiting is",
    }


def _between_stages(costs: StepCosts) -> bool:
    """Whether most of the waiting is for sends."""
    kinds = costs.participation["collective_id"].map(costs.collectives.set_index("collective_id")["collective"])
    waited = costs.participation["exposed_wait_ns"].fillna(0)
    return bool(2 * waited[kinds.isin(POINT_TO_POINT)].sum() > waited.sum())


def _least(steps: pd.DataFrame, saved_ns: pd.Series[int]) -> pd.Series[float]:
    """By step: what is saved on the device that gains least."""
    return saved_ns.groupby(steps["step"]).min().astype("float64")


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
