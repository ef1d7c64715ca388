"""Who waits, and for whom: one row per rank, and one per host."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ...common.nccl_tests import bus_factor
from ..core.declaring import TableEntry, Topic, Worst, value
from ..core.intervals import spans, total
from ..core.schema import Row, Schema
from ..core.tables.columns import PARTIAL, PARTIAL_RUN, PLACE, RANK
from ..metrics.causes.blame import blamed, caused, kernel_of, shares_of_waiting, standing_out

if TYPE_CHECKING:
    import pandas as pd

    from ..run.run import Run

RANKS = Schema("ranks", "rank", {
    "rank": RANK,
    "place": PLACE,
    "host": ("string", "host name"),
    "calls": ("int64", "communication calls"),
    "split_calls": ("int64", "calls that could be split into wait and transfer"),
    "comm_call_ns": ("int64", "sum of their durations, waiting included"),
    "wait_ns": ("Int64", "sum of waiting"),
    "transfer_ns": ("Int64", "sum of the rest"),
    "times_last": ("Int64", "how often this rank arrived last, by more than the clocks are uncertain"),
    "caused_wait_ns": ("Int64", "waiting of others that it caused: it was late, or made another rank late"),
    "caused_wait_frac": ("Float64", "caused_wait_ns / waiting of all ranks; some waiting is caused by no rank"),
    "caused_exposed_frac": ("Float64", "the same of waiting behind which the waiting rank did not compute"),
    "late_median_ns": ("Int64", "median lateness after the rank before it, where this rank was last"),
    "late_max_ns": ("Int64", "largest such lateness"),
    "because": ("string", "reason for most of that waiting: compute, memory, comm, data, cpu or start, as in lateness"),
    "kernel": ("string", "if that is compute, the kernel or operator that took the most additional time"),
    "wire_gb_per_s": ("Float64", "size x bus factor of all its calls / time in which at least one moved data"),
    "partial": PARTIAL,
})  # fmt: skip

HOSTS = Schema("hosts", "host with a known name", {
    "host": ("string", "host name"),
    "ranks": ("string", "ranks on it that have a trace, ascending, separated by spaces"),
    "wait_ns": ("Int64", "sum of waiting of its ranks"),
    "times_last": ("Int64", "how often one of its ranks arrived last, as in ranks"),
    "caused_wait_ns": ("Int64", "waiting of other ranks that its ranks caused"),
    "caused_wait_frac": ("Float64", "caused_wait_ns / waiting of all ranks"),
    "caused_exposed_frac": ("Float64", "the same of waiting behind which the waiting rank did not compute"),
    "because": ("string", "reason for most of that waiting: compute, memory, comm, data, cpu or start, as in lateness"),
    "kernel": ("string", "if that is compute, the kernel or operator that took the most additional time"),
    "partial": PARTIAL_RUN,
})  # fmt: skip


class Waiting(NamedTuple):
    """Who waited for whom: rows of these tables in some `steps`, or, for None, in all that was recorded."""

    participation: pd.DataFrame
    lateness: pd.DataFrame
    ranks: pd.DataFrame
    hosts: pd.DataFrame
    steps: Collection[int] | None


@value
def waiting_in(
    run: Run,
    members: pd.DataFrame,
    lateness: pd.DataFrame,
    calls: pd.DataFrame,
    collectives: pd.DataFrame,
    places: pd.DataFrame,
) -> Callable[[tuple[int, ...] | None], Waiting]:
    """A function for who waited for whom in some steps, or, for None, in all that was recorded."""
    of_call = calls.set_index("call_id")["step"]
    place_of = places.set_index("rank")["place"]

    @cache
    def waiting(steps: tuple[int, ...] | None) -> Waiting:
        own, late = members, lateness
        if steps is not None:
            own = members[members["call_id"].map(of_call).isin(steps)]
            late = lateness[lateness["collective_id"].isin(own["collective_id"])]
        found = _of_ranks(run.traces, collectives, own, late)
        found = found.assign(place=found["rank"].map(place_of).astype("string"))
        if not run.has_starts:  # nor is it known what ran at the same time
            found = found.assign(wire_gb_per_s=None).astype({"wire_gb_per_s": "Float64"})
        return Waiting(own, late, found, _by_host(found), steps)

    return waiting


@value
def typical_waiting(steps: pd.DataFrame, waiting_in: Callable[[tuple[int, ...] | None], Waiting]) -> Waiting:
    """Who waited for whom in the steps that the typical step is a mean of, without those that are left out."""
    counts = steps["left_out"].isna()
    return waiting_in(None if counts.all() else tuple(steps["step"][counts].tolist()))


@value
def culprits(typical_waiting: Waiting) -> list[int]:
    """The ranks for which the others wait most; all ranks of a host if the host stands out and no single rank does.

    Empty if all ranks are late in turn.
    """
    hosts = typical_waiting.hosts
    of_hosts = shares_of_waiting(hosts, "host")
    of_ranks = shares_of_waiting(typical_waiting.ranks, "rank")
    late = standing_out(of_ranks)
    if not late and len(of_hosts) > 1:
        members = dict(zip(hosts["host"], hosts["ranks"].str.split(), strict=True))
        late = [rank for host in standing_out(of_hosts) for rank in members[host]]
    return sorted(map(int, late))


@value
def counted_waiting(
    whole: bool, typical_waiting: Waiting, waiting_in: Callable[[tuple[int, ...] | None], Waiting]
) -> Waiting:
    """Who waited for whom in the steps that tables are sums over."""
    return waiting_in(None) if whole else typical_waiting


@TableEntry(
    RANKS,
    Topic.waiting,
    "Who waits, for whom, and why: one row per rank.",
    "ranks-and-hosts.md#who-waits-and-for-whom",
    command="ranks",
    after="fits",
    shown=(
        "rank", "place", "host", "calls", "split_calls", "comm_call_ns", "wait_ns", "transfer_ns", "times_last",
        "caused_wait_ns", "caused_wait_frac", "late_median_ns", "late_max_ns", "because", "wire_gb_per_s",
        "partial",
    ),
    title="Who waits, and for whom",
    narrow=(
        "rank", "caused_wait_ns", "caused_wait_frac", "place", "because", "wait_ns", "transfer_ns", "times_last",
        "late_max_ns", "host", "late_median_ns", "wire_gb_per_s", "comm_call_ns", "calls",
    ),
    worst=Worst("caused_wait_ns"),
    optional=("place",),
    in_steps=True,
)  # fmt: skip
def ranks(counted_waiting: Waiting) -> pd.DataFrame:
    """One row per rank: how long it waited, how often the others waited for it."""
    return counted_waiting.ranks


@TableEntry(
    HOSTS,
    Topic.waiting,
    "Who waits, and for whom: one row per host.",
    "ranks-and-hosts.md#hosts",
    command="table hosts",
    after="places",
    none_found="no trace names its host, so ranks cannot be grouped by host",
    narrow=("host", "caused_wait_ns", "caused_wait_frac", "wait_ns"),
    worst=Worst("caused_wait_ns"),
    in_steps=True,
)  # fmt: skip
def hosts(counted_waiting: Waiting) -> pd.DataFrame:
    """One row per host with a name: how long its ranks waited, and how long others waited for them."""
    return counted_waiting.hosts


def _of_ranks(
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


def _by_host(ranks: pd.DataFrame) -> pd.DataFrame:
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
