"""Account for all the time of a device: parts that add up to its window to the ns, and whom it waited for.

The parts are columns of `breakdown` and `idle` that do not overlap. Definitions and examples: docs/metrics/account.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import pandas as pd

from ..core.schema import Row, Schema
from ..core.tables.account import ACCOUNT_PARTS, ACCOUNT_WAITS
from .device.idle import NOT_READ, ON_CPU

WINDOW_PARTS = {
    "compute_alone_ns": "compute alone",
    "overlap_ns": "compute and communication",
    "exposed_transfer_ns": "exposed transfer",
    "exposed_wait_ns": "exposed wait",
    "exposed_unsplit_ns": "exposed, not split",
    "exposed_memory_ns": "exposed copies",
    "idle_sync_ns": "idle: CPU in blocking calls",
    "idle_alloc_ns": "idle: CPU allocates or frees",
    "idle_data_ns": "idle: CPU waits for a batch",
    "idle_gc_ns": "idle: CPU collects garbage",
    "idle_cpu_comm_ns": "idle: CPU communicates",
    "idle_compile_ns": "idle: CPU compiles",
    "idle_operator_ns": "idle: CPU in operators",
    "idle_outside_ns": "idle: CPU outside of operators",
    "idle_launching_ns": "idle: CPU launches the next",
    "idle_queued_ns": "idle: launched, not begun",
    "idle_unknown_ns": "idle: cause not known",
}
"""What a window consists of: columns of `account`, and what people call them."""
_SUMMED_UP = "idle_unknown_ns"
_AS_IN_IDLE = ("sync", "alloc", "data", "gc", "cpu_comm", "compile", "launching", "queued")
_MENTIONED, _WORTH_A_NAME = 3, 0.05
"""The most ranks that are named as waited for, and the least part of the waiting that each of them has."""


class WaitedFor(NamedTuple):
    """The rank that others waited for (None if not known), and how long they waited, in ns."""

    rank: int | None
    mean_ns: float


class StepPart(NamedTuple):
    """A part of a typical step, mean over steps and devices; `column` is its column in `account`.

    `of_ranks` is its share of the time of each rank, `waited_for` whom a wait was for, the longest first.
    """

    column: str
    name: str
    mean_ns: float
    share_frac: float
    of_ranks: dict[int, float]
    waited_for: tuple[WaitedFor, ...]


def accounted(schema: Schema, breakdown: pd.DataFrame, idle: pd.DataFrame | None) -> pd.DataFrame:
    """Split each row of the breakdown into parts that add up to its `window_ns`; by step or not.

    `idle` is the table of idle time with the same rows; None where its causes were not read.
    """
    keys = [key for key in ("rank", "device", "step") if key in schema.columns]
    known = breakdown["exposed_wait_ns"].notna()
    parts = breakdown[[*keys, "window_ns", "overlap_ns", "exposed_memory_ns"]].assign(
        compute_alone_ns=breakdown["compute_ns"] - breakdown["overlap_ns"],
        exposed_transfer_ns=breakdown["exposed_transfer_ns"],
        exposed_wait_ns=breakdown["exposed_wait_ns"],
        # Over several cycles, the split of some may be known, but then not that of all.
        exposed_unsplit_ns=breakdown["exposed_unsplit_ns"].where(known, breakdown["exposed_comm_ns"]),
        note=(breakdown["device"] == "cpu").map({True: ON_CPU, False: NOT_READ}),
    )
    causes = {f"idle_{cause}_ns": pd.Series(pd.NA, breakdown.index, dtype="Int64") for cause in _CAUSES}
    if idle is not None:
        assert breakdown[keys].equals(idle[keys])
        parts["note"] = idle["note"]
        causes |= _causes(idle)
    known_ns = sum(column.fillna(0) for column in causes.values())
    return schema.conform(parts.assign(**causes, idle_unknown_ns=breakdown["idle_ns"] - known_ns))


_CAUSES = (*_AS_IN_IDLE, "operator", "outside")


def _causes(idle: pd.DataFrame) -> dict[str, pd.Series[int]]:
    """Idle time by cause, each ns counted once: `operator` and `outside` without gc, cpu_comm and compile."""
    causes = {f"idle_{cause}_ns": idle[f"{cause}_ns"] for cause in _AS_IN_IDLE}
    # python_ns is part of `outside`; what is left of the two belongs to operators.
    remains = idle["operator_ns"] + idle["outside_ns"] - idle["python_ns"] - idle["gc_ns"].fillna(0)
    causes["idle_operator_ns"] = remains - idle["cpu_comm_ns"] - idle["compile_ns"]
    causes["idle_outside_ns"] = idle["python_ns"]
    return causes


def account_waits(waits: pd.DataFrame, participation: pd.DataFrame, lateness: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device, step and rank that was waited for, the longest wait first.

    By device and step the rows add up to `exposed_wait_ns` of the account. `waits` has the exposed wait of each call by
    step, as `exposed_waits` returns it.
    """
    late = lateness[["collective_id", "rank", "because", "origin_rank", "origin_because"]]
    late = late.drop_duplicates(["collective_id", "rank"])  # each wait is to be counted once
    of_call = participation[["call_id", "collective_id", "waited_for"]]
    joined = waits.merge(of_call, on="call_id").merge(
        late.rename(columns={"rank": "waited_for"}), on=["collective_id", "waited_for"], how="left"
    )
    keys = ["rank", "device", "step", "waited_for", "because", "origin_rank", "origin_because"]
    sums = joined.groupby(keys, dropna=False, sort=True)["exposed_wait_ns"].sum().reset_index()
    return ACCOUNT_WAITS.conform(sums.sort_values("exposed_wait_ns", ascending=False, kind="stable"))


def typical_parts(account: pd.DataFrame, waits: pd.DataFrame) -> list[StepPart]:
    """The parts of a typical step, the largest first, from rows of `account` and the waits in the same steps.

    Rows of a step count as its mean, as in `steps`, so that this is the typical step of the first screen.
    """
    if not len(account):
        return []
    if "step" in account:
        steps = account["step"]
        weight = 1 / steps.map(steps.value_counts()) / steps.nunique()
        of_wait = waits["step"].map(dict(zip(steps, weight, strict=True)))
    else:
        weight = pd.Series(1 / len(account), account.index)
        of_wait = pd.Series(1 / len(account), waits.index)
    mean_waits = waits["waited_for"].to_frame().assign(mean_ns=waits["exposed_wait_ns"] * of_wait.astype("float64"))
    window_ns = float((account["window_ns"] * weight).sum())
    by_rank = account.groupby("rank")[["window_ns", *WINDOW_PARTS]].sum()
    shares = by_rank.div(by_rank["window_ns"].where(by_rank["window_ns"] > 0), axis=0).astype("Float64").fillna(0.0)
    has_causes = account["idle_sync_ns"].notna().any()
    parts = []
    for column, name in WINDOW_PARTS.items():
        if (account[column].fillna(0) > 0).any():
            mean_ns = float((account[column].fillna(0) * weight).sum())
            parts.append(
                StepPart(
                    column=column,
                    name=name if has_causes or column != _SUMMED_UP else "idle",
                    mean_ns=mean_ns,
                    share_frac=mean_ns / window_ns if window_ns else 0.0,
                    of_ranks=dict(zip(shares.index.tolist(), shares[column].tolist(), strict=True)),
                    waited_for=_waited_for(mean_waits) if column == "exposed_wait_ns" else (),
                )
            )
    return sorted(parts, key=lambda part: -part.mean_ns)


def _waited_for(waits: pd.DataFrame) -> tuple[WaitedFor, ...]:
    sums = waits.groupby("waited_for", dropna=False)["mean_ns"].sum()
    ranks = [None if pd.isna(rank) else int(rank) for rank in sums.index]
    waited_for = [WaitedFor(rank, float(ns)) for rank, ns in zip(ranks, sums, strict=True) if ns > 0]
    return tuple(sorted(waited_for, key=lambda each: -each.mean_ns))


def account_parts(parts: Sequence[StepPart]) -> pd.DataFrame:
    """One row per part of a typical step, the largest first, and the ranks in which it is smallest and largest."""
    ends = [round(end) for end in accumulate((part.mean_ns for part in parts), initial=0.0)]
    rows: list[Row] = []
    for part, (begin, end) in zip(parts, pairwise(ends), strict=True):
        least, most = (pick(part.of_ranks, key=lambda rank: part.of_ranks[rank]) for pick in (min, max))
        several = len(part.of_ranks) > 1
        rows.append({
            "part": part.name,
            "column": part.column,
            "mean_ns": end - begin,  # so that they add up although each is rounded
            "share_frac": part.share_frac,
            "least_frac": part.of_ranks[least] if several else None,
            "least_rank": least if several else None,
            "most_frac": part.of_ranks[most] if several else None,
            "most_rank": most if several else None,
            "waited_for": _in_words(part.waited_for),
        })  # fmt: skip
    return ACCOUNT_PARTS.frame(rows)


def _in_words(waited_for: Sequence[WaitedFor]) -> str | None:
    """List the ranks that matter: `rank 3: 2.1 ms, rank 5: 0.4 ms, others: 0.2 ms`."""
    total_ns = sum(each.mean_ns for each in waited_for)
    unit, unit_ns = ("us", 1e3) if total_ns < 1e6 else ("ms", 1e6)
    named = [each for each in waited_for[:_MENTIONED] if each.mean_ns >= _WORTH_A_NAME * total_ns]
    names = ["not known" if each.rank is None else f"rank {each.rank}" for each in named]
    rest_ns = total_ns - sum(each.mean_ns for each in named)
    times = [*zip(names, (each.mean_ns for each in named), strict=True), ("others", rest_ns)]
    texts = [f"{name}: {ns / unit_ns:,.1f} {unit}" for name, ns in times if round(ns / unit_ns, 1)]
    return ", ".join(texts) or None
