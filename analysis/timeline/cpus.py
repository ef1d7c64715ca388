"""What CPUs did: operators, annotations and blocking calls, of the ranks whose CPUs the verdict speaks of."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import pandas as pd

from ...common.wording import listed, ranks_in_words
from ..core.schema import grouped, records
from ..core.steps import steps_at
from ..metrics.device.idle import NEEDED, HostTables
from ..metrics.device.syncs import kinds_of_calls
from ..metrics.verdicts.of_idle import IDLE_VERDICTS
from ..results.analysis import Analysis

_ON_CPU = {"cpu": "launches its kernels late", "data": "waits for its data loader", "start": "begins late"}
"""Reasons for being late that lie with the CPU, as in `lateness`."""
_LATE = "makes the others wait"
_OF_HOST = ["starved_ns", "launching_ns"]
_MOST_RANKS = 8
_RANGE = ["thread", "name", "start_ns", "dur_ns"]
_ELSEWHERE = "(a --bundle has all CPUs)"

_NOT_READ = (
    "no cause of idle time and no CPU is drawn: what CPUs did was not asked for, or is not recorded (--no-details)"
)


class ShownCpus(NamedTuple):
    """Ranks whose CPUs a timeline shows, the most important first, and a sentence on that and on what is left out."""

    ranks: list[int]
    note: str


def shown_cpus(analysis: Analysis, drawn: Collection[int]) -> ShownCpus:
    """Of the ranks that are drawn, those whose CPUs the verdict speaks of."""
    run = analysis.run
    if run.is_of_cpus:
        return ShownCpus([], "what CPUs did are the lines `compute`, because the run has no GPU")
    if not run.details:
        return ShownCpus([], _NOT_READ)
    late = {rank: _why_late(analysis, rank) for rank in analysis.culprits if rank in drawn}
    first = records(analysis.verdicts.head(1))
    verdict = str(first[0]["verdict"]) if first else ""
    by_host = _idle_by_host(analysis, drawn) if verdict in IDLE_VERDICTS else []
    ranks = [*dict.fromkeys([*late, *by_host])][:_MOST_RANKS]
    if not ranks:
        return ShownCpus([], f"no CPU is drawn, because none makes its rank late or its device idle {_ELSEWHERE}")
    reasons = [f"rank {rank} {_ON_CPU.get(why or '', _LATE)}" for rank, why in late.items() if rank in ranks]
    reasons += [f"devices are idle ({verdict})"] if by_host else []
    are = "CPUs of {} are drawn" if len(ranks) > 1 else "CPU of {} is drawn"
    others = set(drawn) - set(ranks)
    left_out = f"; not that of {ranks_in_words(others)} {_ELSEWHERE}" if others else ""
    return ShownCpus(ranks, f"the {are.format(ranks_in_words(ranks))}, because {listed(reasons)}{left_out}")


def _why_late(analysis: Analysis, rank: int) -> str | None:
    """The reason that made others wait longest for a rank; None if not known."""
    rows = analysis.lateness
    rows = rows[(rows["rank"] == rank) & (rows["origin_rank"] == rank) & rows["because"].notna()]
    if not len(rows):
        return None
    return str(rows.astype({"caused_wait_ns": "Float64"}).groupby("because")["caused_wait_ns"].sum().idxmax())


def _idle_by_host(analysis: Analysis, drawn: Collection[int]) -> list[int]:
    """Drawn ranks whose devices idled because of their host, the longest first."""
    idle = analysis.idle[analysis.idle["rank"].isin(list(drawn))]
    by_rank = idle.groupby("rank")[_OF_HOST].sum().sum(axis=1)
    return [int(rank) for rank in by_rank[by_rank > 0].sort_values(ascending=False, kind="stable").index]


def cpu_work(activities: pd.DataFrame, tables: HostTables) -> pd.DataFrame:
    """One row per operator, annotation and blocking call of the CPUs, with the step in which it began."""
    on_gpu = activities[activities["device"] != "cpu"]
    parts = []
    for (rank, cycle), of_cycle in grouped(on_gpu, ["rank", "cycle"], NEEDED):
        host = tables.host(rank, cycle)
        devices = [rows for _, rows in grouped(of_cycle, ["device"])]
        blocking = host.runtime_calls[kinds_of_calls(host, devices) >= 0]
        work = pd.concat([
            host.operators[_RANGE].assign(blocks=False),
            host.annotations[_RANGE].assign(blocks=False),
            blocking[_RANGE].assign(blocks=True),
        ], ignore_index=True)  # fmt: skip
        parts.append(work.assign(rank=rank, step=steps_at(work["start_ns"].to_numpy(), host.step_marks)))
    whole = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["rank", *_RANGE, "blocks", "step"])
    return whole[whole["thread"].notna()]
