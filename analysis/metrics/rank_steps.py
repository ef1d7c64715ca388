"""Ranks by steps, for a heat map: waiting, lateness, and waiting that a rank caused."""

from __future__ import annotations

import pandas as pd

from ..core.tables.lateness import RANK_STEPS
from .causes.blame import blamed, shares_of_waiting, standing_out

_DEVICE, _RANK = ["rank", "device", "step"], ["rank", "step"]


def rank_steps(
    breakdown_steps: pd.DataFrame, calls: pd.DataFrame, participation: pd.DataFrame, lateness: pd.DataFrame
) -> pd.DataFrame:
    """One row per rank, device and step. Lateness is per rank, NA where nothing could be compared.

    A rank with several devices has its lateness on each of their rows.
    """
    steps = calls.set_index("call_id")["step"]
    members = participation[["collective_id", "rank", "call_id"]].drop_duplicates(["collective_id", "rank"])
    late = lateness.merge(members, on=["collective_id", "rank"])
    largest = late.assign(step=late["call_id"].map(steps)).groupby(_RANK)["late_ns"].max()
    waits = blamed(participation, lateness)
    others = waits[waits["blamed"].notna() & (waits["blamed"] != waits["rank"])]
    caused = others.assign(step=others["kernel"].map(steps), rank=others["blamed"]).groupby(_RANK)["wait_ns"].sum()
    compared = participation[participation["late_ns"].notna()]
    known = set(zip(compared["rank"], compared["call_id"].map(steps), strict=True))
    table = breakdown_steps.groupby(_DEVICE, as_index=False)[["window_ns", "exposed_wait_ns"]].sum(min_count=1)
    keys = pd.MultiIndex.from_frame(table[_RANK].astype("Int64"))
    seen = pd.Series([(rank, step) in known for rank, step in keys], dtype=bool)
    return RANK_STEPS.conform(
        table.assign(late_ns=_at(largest, keys).where(seen), caused_wait_ns=_at(caused, keys).where(seen))
    )


def _at(values: pd.Series[int], keys: pd.MultiIndex) -> pd.Series[int]:
    """The value of each rank and step, 0 if it has none."""
    of = dict(zip(values.index, values, strict=True))
    return pd.Series([of.get(key, 0) for key in keys], dtype="Int64")


def culprits(ranks: pd.DataFrame, hosts: pd.DataFrame) -> list[int]:
    """Ranks that the others wait for most; all ranks of a host if the host stands out and no single rank does.

    Empty if all ranks are late in turn.
    """
    of_hosts = shares_of_waiting(hosts, "host")
    of_ranks = shares_of_waiting(ranks, "rank")
    late = standing_out(of_ranks)
    if not late and len(of_hosts) > 1:
        members = dict(zip(hosts["host"], hosts["ranks"].str.split(), strict=True))
        late = [rank for host in standing_out(of_hosts) for rank in members[host]]
    return sorted(map(int, late))
