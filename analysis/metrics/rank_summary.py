"""Who waits, and for whom: one row per rank, and one per host."""

from __future__ import annotations

import pandas as pd

from ...common.nccl_tests import bus_factor
from ..core.intervals import spans, total
from ..core.schema import Row
from ..core.tables.lateness import HOSTS, RANKS
from .causes.blame import blamed, caused, kernel_of


def ranks(
    traces: pd.DataFrame, collectives: pd.DataFrame, participation: pd.DataFrame, lateness: pd.DataFrame
) -> pd.DataFrame:
    """Waiting and lateness of every rank with a trace.

    A rank counts as last if it was later than the others by more than the uncertainty of clocks: without skew there is
    no straggler. It is to blame for the others' waiting if its lateness began with itself.
    """
    compared = participation[["wait_ns", "late_ns"]].notna().all(axis=1).any()
    hosts = traces.drop_duplicates("rank").set_index("rank")["host"]
    wire = _wire_rates(collectives, participation)
    waits = blamed(participation, lateness)
    fault, waited = caused(waits), int(waits["wait_ns"].sum())
    exposed_fault, exposed = caused(waits, "exposed_wait_ns"), int(waits["exposed_wait_ns"].sum())
    calls_of = dict(iter(participation.groupby("rank")))
    last_of = dict(iter(lateness.groupby("rank")))
    fault_of = dict(iter(lateness.groupby(lateness["origin_rank"].fillna(lateness["rank"]))))
    rows: list[Row] = []
    for rank in sorted(traces["rank"].unique()):
        calls = calls_of.get(rank, participation[:0])
        once = calls[~kernel_of(calls).duplicated()]
        split = once[once["wait_ns"].notna()]
        last = last_of.get(rank, lateness[:0])
        own_fault = fault_of.get(rank, lateness[:0])
        of_waiting = int(fault.get(rank, 0))
        because = _weightiest(own_fault, "origin_because", "caused_wait_ns")
        rows.append({
            "rank": rank,
            "host": hosts[rank],
            "calls": len(calls),
            "split_calls": int(calls["wait_ns"].notna().sum()),
            "comm_call_ns": once["dur_ns"].sum(),
            "wait_ns": split["wait_ns"].sum() if len(split) else None,
            "transfer_ns": split["transfer_ns"].sum() if len(split) else None,
            "times_last": len(last) if compared else None,
            "caused_wait_ns": of_waiting if compared else None,
            "caused_wait_frac": of_waiting / waited if compared and waited else None,
            "caused_exposed_frac": int(exposed_fault.get(rank, 0)) / exposed if compared and exposed else None,
            "late_median_ns": int(last["late_ns"].median()) if len(last) else None,
            "late_max_ns": last["late_ns"].max() if len(last) else None,
            "because": because,
            "kernel": _weightiest(own_fault, "kernel", "kernel_extra_ns") if because == "compute" else None,
            "wire_gb_per_s": wire.get(rank),
        })  # fmt: skip
    return RANKS.frame(rows)


def hosts(ranks: pd.DataFrame) -> pd.DataFrame:
    """Add up the table `ranks` by host, without ranks whose host is not known."""
    rows: list[Row] = []
    for host, members in ranks[ranks["host"].notna()].groupby("host", sort=True):
        because = _weightiest(members, "because", "caused_wait_ns")
        rows.append({
            "host": host,
            "ranks": " ".join(map(str, members["rank"])),
            **{column: members[column].sum(min_count=1) for column in ("wait_ns", "times_last", "caused_wait_ns")},
            "caused_wait_frac": members["caused_wait_frac"].sum(min_count=1),
            "caused_exposed_frac": members["caused_exposed_frac"].sum(min_count=1),
            "because": because,
            "kernel": _weightiest(members, "kernel", "caused_wait_ns") if because == "compute" else None,
        })  # fmt: skip
    return HOSTS.frame(rows)


def _weightiest(last: pd.DataFrame, column: str, weight: str) -> str | None:
    """The value of `column` with the largest sum of `weight`; None without rows."""
    known = last[last[column].notna()]
    weights = known[weight].astype("Float64")  # with wrong clocks, sums may exceed 64 bits
    return str(weights.groupby(known[column]).sum().idxmax()) if len(known) else None


def _wire_rates(collectives: pd.DataFrame, participation: pd.DataFrame) -> dict[int, float]:
    """By rank: bytes over its links (size x bus factor, summed) per time in which any call moved data.

    Communicators that run at the same time share the links, so each one's bandwidth alone understates them.
    """
    known = collectives[(collectives["size_bytes"].fillna(0) > 0) & collectives["group_size"].notna()]
    known = known[known["collective"].notna()]
    factors = [bus_factor(c, int(n)) for c, n in zip(known["collective"], known["group_size"], strict=True)]
    known = known[["collective_id"]].assign(wire_bytes=known["size_bytes"].astype("float64") * factors)
    calls = participation[participation["transfer_ns"].notna()].merge(known, on="collective_id")
    rates = {}
    for rank, of_rank in calls.groupby("rank"):
        ends = (of_rank["start_ns"] + of_rank["dur_ns"]).to_numpy()
        moving = total(spans(ends - of_rank["transfer_ns"].to_numpy(dtype="int64"), ends))
        if moving:
            rates[int(str(rank))] = float(of_rank["wire_bytes"].sum()) / moving
    return rates
