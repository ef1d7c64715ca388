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
from ..core.schema import Row, records
from ..metrics.causes.blame import shares_of_waiting, standing_out
from ..metrics.prices import Priced, Prices
from ..metrics.verdicts.words import length
from .at_once import needed_at_once
from .cures import CURES, LEAST
from .scenarios.usual import named_ranks

_MOVING = ["transfer", "unsplit"]
_MOST_SAID = 3
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


def remedy_rows(costs: StepCosts, prices: Prices | None = None, then_ns: Sequence[float] = ()) -> list[Row]:
    """One row per change that concerns some time or gains some: in the order of their prices, then by their time.

    `prices` are gains of the run played again, None where it cannot be; `then_ns` is what the first changes gain one
    after the other.
    """
    if not len(costs.steps):
        return []
    about = {row["remedy"]: row for row in _about(costs, prices)}
    changes = () if prices is None else prices.changes
    rows = [_row(about.pop(change.remedy, {"remedy": change.remedy}), change, costs) for change in changes]
    for row, ns in zip(rows, then_ns, strict=False):
        row["then_ns"] = round(ns)
    rows += [_row(row, None, costs) for row in about.values()]
    # How much time a change is about does not say what it gains: such rows come after all known gains.
    known = [row for row in rows if row.get("gain_ns", 0) > 0]
    rest = [row for row in rows if row not in known and row["concerned_ns"]]
    return [*known, *sorted(rest, key=lambda row: -row["concerned_ns"])]


def _row(about: Row, change: Priced | None, costs: StepCosts) -> Row:
    """A row, of a change that is `about` some time and has a price, or of one of both."""
    by_step, on_path = about.pop("by_step", None), about.pop("on_path", None)
    concerned = 0 if by_step is None else int(by_step.clip(lower=0).sum() / costs.steps["step"].nunique())
    is_known = on_path is not None and len(costs.path)
    row = about | {
        "concerned_ns": concerned or None,
        "concerned_frac": concerned / costs.length_ns if concerned else None,
        "path_frac": float(costs.path["share_frac"][on_path].sum()) if is_known else None,
    }
    return row if change is None else row | _of_price(change, costs.length_ns)


def first_gains(table: pd.DataFrame, length_ns: float) -> str | None:
    """The first rows of `remedies` that gain enough, as a sentence about a step of this length; None if none does."""
    worth = [row for row in records(table) if (row["gain_frac"] or 0) >= LEAST][:_MOST_SAID]
    if not worth:
        return None
    gains = ", or ".join(f"{length(row['gain_ns'] / 1e6)} with {row['what']}" for row in worth)
    return f"a step of {length(length_ns / 1e6)} would gain {gains}; see `remedies`"


def _of_price(change: Priced, length_ns: float) -> Row:
    return {
        "what": change.what,
        "how": change.how,
        "command": f"predict {change.option}",
        "gain_ns": round(change.gain.ns),
        "gain_low_ns": round(change.gain.low_ns),
        "gain_high_ns": round(change.gain.high_ns),
        "gain_frac": change.gain.ns / length_ns,
        "is_bound": change.is_bound,
    }


def _about(costs: StepCosts, prices: Prices | None) -> Iterator[Row]:
    """Yield changes with the time that each concerns, by step, and its rows of the critical path."""
    steps = costs.steps
    on_path = costs.path["kind"].isin
    # Unsplit communication may be waiting or transfer. It is no ground for asking a rank to be faster; but hidden
    # behind compute it costs nothing, whichever it is.
    yield from _without_waiting(costs, steps["exposed_wait_ns"].fillna(0), prices)
    at_once = needed_at_once(costs.calls, steps["overlap_ns"].sum(), steps["exposed_comm_ns"].sum())
    moving = steps["exposed_transfer_ns"].fillna(0) + steps["exposed_unsplit_ns"]
    yield _declared("overlap") | {
        # Behind compute that nothing is hidden behind yet: there may be less of it than there is to hide.
        "by_step": _mean(steps, moving.clip(upper=steps["compute_ns"] - steps["overlap_ns"])),
        "on_path": on_path(_MOVING),
        **({"how": CURES["overlap"].how_at_once} if at_once else {}),
    }
    if len(costs.ceiling):
        yield {
            "remedy": "faster_links",
            "by_step": _mean(steps, _below_ceiling(costs)),
            "on_path": on_path(_MOVING),
            "what": "links as fast as the ceiling",
            "how": "see `bandwidth --ceiling` for the sizes that fall short: NCCL settings, topology, message sizes",
        }
    yield _declared("no_copies") | {
        "by_step": _mean(steps, steps["exposed_memory_ns"]),
        "on_path": on_path(["copy"]),
    }
    of_idle = {name for name, remedy in CURES.items() if remedy.of_idle or remedy.of_kind}
    if prices is None or of_idle.isdisjoint(prices.gains):
        yield {
            "remedy": "no_idle",
            "by_step": _mean(steps, steps["idle_ns"]),
            "on_path": on_path(["cpu", "launch"]),
            "what": "devices never idle",
            "how": "launch ahead of the device: fewer synchronisations, CUDA graphs, a faster data loader",
        }


def _declared(name: str, what: str = "") -> Row:
    """A row with the words of a remedy that is declared, which for ranks do not say `what` is different."""
    remedy = CURES[name]
    return {"remedy": name, "what": what if remedy.make is None else remedy.make(None).name, "how": remedy.how}


def _without_waiting(costs: StepCosts, waiting: pd.Series[int], prices: Prices | None) -> Iterator[Row]:
    """Yield the changes without waiting: the ranks that stand out are not late, or all are equally fast."""
    shares = shares_of_waiting(costs.ranks, "rank")
    # A rank that begins the traced step late was late before: nothing in the trace tells what to change.
    at_start = set(costs.ranks["rank"][costs.ranks["because"] == "start"])
    late = standing_out(shares)
    if prices is not None and prices.late is not None:
        late = list(prices.late.ranks)
    elif prices is not None and "no_straggler" not in prices.gains:  # late by chance, if at all
        late = []
    elif late and at_start.issuperset(late):
        return
    else:
        late = [rank for rank in late if rank not in at_start]
    others = ~costs.steps["rank"].isin(late)
    if late and others.any():
        by_step = waiting[others].groupby(costs.steps["step"][others])
        caused = float(shares.reindex(late).fillna(0).sum())
        yield _declared("no_straggler", f"{named_ranks(late)} as fast as the others") | {
            "by_step": by_step.min().astype("float64").clip(upper=by_step.mean() * caused),
            "on_path": costs.path["rank"].isin(late) & ~costs.path["kind"].isin(_MOVING),
        }
    elif _between_stages(costs):
        yield {
            "remedy": "no_bubble",
            "by_step": _mean(costs.steps, waiting),
            "what": "no rank waits for what another one sends, as pipeline stages do",
            "how": "more microbatches, an interleaved schedule, or stages that take equally long",
        }
    else:
        yield _declared("no_jitter") | {"by_step": _mean(costs.steps, waiting)}


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
