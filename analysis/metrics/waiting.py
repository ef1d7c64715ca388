"""Split every rank's time in a collective into wait and transfer, and measure the collective as a whole.

A kernel's duration includes waiting for the slowest rank, so durations alone say little about the network. Definitions:
docs/metrics/wait-and-transfer.md.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...common.nccl_tests import SYNCHRONISING, bus_factor
from ..core.tables.communication import MEMBERS
from .clocks.table import NO_STARTS, aligned, unclear
from .ends_apart import APART_NS, from_usual_ns
from .needs import FROM_ROOT, TO_ROOT, needs
from .partial import waited_for_present

if TYPE_CHECKING:
    from pandas.core.groupby import SeriesGroupBy

_CARRIED = ["collective", "process_group", "pg_ranks", "group_size", "dtype", "size_bytes", "seq"]
# Of the columns of calls, so that tables as long as that of all calls have no more.
_USED = ["call_id", "rank", "device", "step", "turn", "start_ns", "dur_ns", "batch", "root", *_CARRIED]


def waits_and_transfers(
    calls: pd.DataFrame, matches: pd.DataFrame, clocks: pd.DataFrame, world_size: int | None
) -> pd.DataFrame:
    """One row per call with its wait and transfer, NA if ranks are missing, uncertain or on unlinked clocks.

    Where the process group is not known, a collective is complete if all `world_size` ranks are in it.
    """
    joined = _joined(calls, matches, clocks)
    grouped = joined.groupby("collective_id", sort=False)
    certain = grouped["certain"].transform("min").astype(bool)
    known = joined["comparable"] & certain
    joined["whole"] = _complete(joined, world_size)
    present = waited_for_present(joined)
    split = known & (joined["whole"] | present["nobody_later"])
    needed = needs(joined)
    by_itself = (joined["group_size"] == 1).fillna(False).astype(bool)  # it waits for nobody
    wait_ns = (needed["needed_ns"].where(split) - joined["arrived_ns"]).mask(by_itself, 0)
    wait_ns = wait_ns.mask((wait_ns > joined["dur_ns"]).fillna(False), joined["dur_ns"])
    several = grouped["rank"].transform("size") > 1
    return MEMBERS.conform(
        joined[["collective_id", "call_id", "rank", "device", "start_ns", "dur_ns", "batch"]].assign(
            arrived_ns=joined["arrived_ns"],
            wait_ns=wait_ns,
            wait_low_ns=wait_ns.fillna(present["wait_low_ns"].where(known)),
            transfer_ns=_moving_ns(joined, wait_ns),
            waited_for=needed["waited_for"].where(split),
            wait_clock_free_ns=(joined["dur_ns"] - grouped["dur_ns"].transform("min")).astype("Int64").where(several),
            excess_ns=_excess(joined),
            late_ns=(joined["arrived_ns"] - grouped["arrived_ns"].transform("min"))
            .astype("Int64")
            .where(joined["comparable"]),
            exposed_wait_ns=None,
            exposed_transfer_ns=None,
            exposed_wait_low_ns=None,
        )
    )


def _moving_ns(joined: pd.DataFrame, wait_ns: pd.Series[int]) -> pd.Series[int]:
    """How long each call moved data, in ns: after its wait, and of a send on a CPU until its receiver had it.

    Such a send ends only when its rank checks it.
    """
    on_cpu = joined["device"] == "cpu"
    received = joined[joined["kind"].isin(["send_recv"]) & joined["collective"].isin(["recv"]) & on_cpu]
    ends = (received["arrived_ns"] + received["dur_ns"]).astype("Int64").set_axis(received["collective_id"])
    had_it = joined["collective_id"].map(ends).where(joined["collective"].isin(["send"]) & on_cpu)
    moving_ns = joined["dur_ns"] - wait_ns
    until_had = (had_it - joined["arrived_ns"] - wait_ns).clip(lower=0)
    return moving_ns.mask((until_had < moving_ns).fillna(False), until_had)


def _excess(joined: pd.DataFrame) -> pd.Series[int]:
    """How much longer each call took than the shortest similar call of its rank, in ns.

    Calls of unknown size are similar at the same place of steps with as many calls. Otherwise a small one would make
    all larger ones seem to wait.
    """
    group = ["rank", "device", "process_group", "group_size"]
    unsized = joined["size_bytes"].isna()
    in_step = joined.groupby([*group, "step"], dropna=False, sort=False)["step"].transform("size")
    place = joined.assign(turn=joined["turn"].where(unsized), in_step=in_step.where(unsized))
    like = [*group, "collective", "dtype", "size_bytes", "turn", "in_step"]
    same = place.groupby(like, dropna=False, sort=False)["dur_ns"]
    excess = (joined["dur_ns"] - same.transform("min")).astype("Int64")
    is_placed = joined["turn"].notna() & joined["step"].notna()
    return excess.where((same.transform("size") > 1) & joined["collective"].notna() & (~unsized | is_placed))


def _joined(calls: pd.DataFrame, matches: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """Calls with the columns of their collective, sorted by collective and rank.

    What the trace of one rank lacks is taken from the others. `kind` is that of the collective as a whole,
    `arrived_ns` the start on the common clock, `is_source` whether it is that of the root, or sends, `comparable`
    whether there are several members, all on linked clocks. Calls are `untimed` if only their durations are known.
    """
    joined = calls[_USED].merge(matches, on="call_id").sort_values(["collective_id", "rank"], ignore_index=True)
    for column in _FOUND:
        joined[column] = joined[column].fillna(joined.pop(f"found_{column}"))
    kinds = joined.groupby("collective_id", sort=False)["collective"]
    pair = joined["collective"].isin(["send", "recv"]) & (kinds.transform("nunique") == 2)
    joined["kind"] = kinds.transform("first").mask(pair, "send_recv")
    joined["arrived_ns"] = aligned(joined["start_ns"], joined["rank"], clocks)
    linked = joined["rank"].map(clocks.set_index("rank")["linked"]).groupby(joined["collective_id"], sort=False)
    joined["comparable"] = (linked.transform("size") > 1) & (linked.transform("min") == linked.transform("max"))
    jumps = unclear(joined["start_ns"], joined["rank"], clocks)
    joined["comparable"] &= ~jumps.groupby(joined["collective_id"], sort=False).transform("any")
    joined["is_source"] = _is_source(joined)
    joined["untimed"] = joined["rank"].map(clocks.set_index("rank")["basis"] == NO_STARTS)
    return _ending_together(joined) if joined["untimed"].any() else joined


def _ending_together(joined: pd.DataFrame) -> pd.DataFrame:
    """Shift calls of which only durations are known, so that all calls of a collective end together.

    Only for collectives that no rank can leave before all have arrived, which ends them at nearly the same time.
    """
    untimed, of_collective = joined["untimed"], joined.groupby("collective_id", sort=False)
    last_end = (joined["start_ns"] + joined["dur_ns"]).groupby(joined["collective_id"], sort=False).transform("max")
    together = (of_collective["rank"].transform("size") > 1) & joined["kind"].isin(SYNCHRONISING)
    return joined.assign(
        comparable=joined["comparable"] | (untimed & together),
        arrived_ns=joined["arrived_ns"].mask(untimed & together, last_end - joined["dur_ns"]),
    )


_FOUND = ("collective", "process_group", "pg_ranks", "group_size")


def _is_source(joined: pd.DataFrame) -> pd.Series[bool]:
    """Whether each call is the root's, or a send."""
    rooted = joined["kind"].isin([*FROM_ROOT, *TO_ROOT])
    return (rooted & (joined["rank"] == joined["root"]).fillna(False)) | joined["collective"].isin(["send"])


def _complete(joined: pd.DataFrame, world_size: int | None) -> pd.Series[bool]:
    """Whether all ranks of each collective's process group were seen, by number if they are not listed."""
    members = joined.groupby("collective_id", sort=False)["rank"].transform("size")
    # Lists of ranks are long in large groups, so they are counted only where nothing else gives the size.
    unknown = joined["pg_ranks"].where(joined["group_size"].isna())
    expected = joined["group_size"].fillna(unknown.str.count(" ").astype("Int64") + 1)
    expected = expected.fillna(world_size if world_size is not None else pd.NA)
    expected = expected.mask(joined["kind"].isin(["send_recv"]), 2)
    # One process that drives several GPUs is one rank: then its devices are the members.
    ranks = joined.groupby("collective_id", sort=False)["rank"].transform("nunique")
    expected = expected.mask((ranks == 1) & (members > 1), members)
    # Matched by everything known, and nothing says that a member is missing.
    return (members == expected.fillna(members)).astype(bool) & (joined["matched_by"] != "none")


def measured_collectives(
    calls: pd.DataFrame,
    matches: pd.DataFrame,
    participation: pd.DataFrame,
    clocks: pd.DataFrame,
    world_size: int | None,
    sharing: Collection[int],
) -> pd.DataFrame:
    """Rows of the table `collectives`: arrival and end skew, and bounds of its transfer time and bandwidth.

    `sharing` are ranks that share a GPU, which takes turns between them, so that they need not end together.
    """
    joined = _joined(calls, matches, clocks)
    joined["ended_ns"] = joined["arrived_ns"] + joined["dur_ns"]
    joined["end_ns"] = joined["start_ns"] + joined["dur_ns"]
    joined["complete"] = _complete(joined, world_size)
    joined["transfer_ns"] = joined["call_id"].map(participation.set_index("call_id")["transfer_ns"])
    grouped = joined.groupby("collective_id", sort=True)
    table = (
        grouped[_CARRIED]
        .first()
        .assign(
            collective=grouped["kind"].first(),
            size_bytes=grouped["size_bytes"].max(),
            # In a pair, each side counts its own sends and receives.
            seq=grouped["seq"].first().mask(grouped["kind"].first().isin(["send_recv"])),
            matched_by=grouped["matched_by"].first(),
            certain=grouped["certain"].all(),
            complete=grouped["complete"].first(),
            sufficient=joined["transfer_ns"].notna().groupby(joined["collective_id"]).all(),
            ranks=joined["rank"].astype(str).groupby(joined["collective_id"]).agg(" ".join),
        )
    )
    members = grouped.size()
    size = table["group_size"].mask(table["collective"].isin(["send_recv"]), 2)
    table["group_size"] = size.mask(size.isna() & table["complete"], members)
    table = table.join(_imbalance(joined))
    even = table["certain"] & table["imbalance_frac"].isna()
    joined["agrees"] = _agree(joined, joined["collective_id"].map(even).astype(bool), clocks, sharing)
    table = table.join(_times(joined, grouped["comparable"].first()))
    table["note"] = _notes(grouped["note"].first(), table, joined["agrees"].groupby(joined["collective_id"]).any())
    return _with_bandwidth(table, members).drop(columns="sufficient").reset_index()


def _imbalance(joined: pd.DataFrame) -> pd.DataFrame:
    """The rank that moves most in each uneven all_to_all, and by which fraction more than the mean."""
    uneven = joined[joined["kind"].isin(["all_to_all"]) & joined["size_bytes"].notna()]
    sizes = uneven.groupby("collective_id")["size_bytes"]
    largest, smallest = sizes.max(), sizes.min()
    ordered = uneven.sort_values("size_bytes", ascending=False, kind="stable")
    hot = ordered.groupby("collective_id")["rank"].first().astype("Int64")
    more = (largest / sizes.mean() - 1).astype("Float64")
    table = pd.DataFrame({"hot_rank": hot, "imbalance_frac": more}).where(largest > smallest)
    return table.astype({"hot_rank": "Int64", "imbalance_frac": "Float64"})


def _agree(
    joined: pd.DataFrame, even: pd.Series[bool], clocks: pd.DataFrame, sharing: Collection[int]
) -> pd.Series[bool]:
    """Whether each call ends when others of its host do; the earlier one of two that do not.

    `even` are calls of collectives that were matched for certain and move as much on all ranks.
    """
    comparable = even & joined["kind"].isin(SYNCHRONISING) & joined["comparable"] & ~joined["untimed"]
    comparable &= (joined["device"] != "cpu") & ~joined["rank"].isin(sharing)
    host = joined["rank"].map(clocks.set_index("rank")["host"])
    ends = joined.loc[comparable, ["collective_id"]].assign(host=host, end_ns=joined["ended_ns"])
    apart = from_usual_ns(ends).abs() >= APART_NS
    of_host = apart.groupby([ends["collective_id"].reindex(apart.index), ends["host"].reindex(apart.index)], sort=False)
    size = of_host.transform("size")
    none = (size > 2) & (of_host.transform("sum") == size - 1)
    return ~(apart | none).reindex(joined.index, fill_value=False)


def _notes(given: pd.Series[str], table: pd.DataFrame, agree: pd.Series[bool]) -> pd.Series[str]:
    """Why each collective is unmatched or not certain, which ranks it lacks, or that no ends of a host `agree`."""
    apart = [
        f"its ends on one host differ by up to {ns / 1e6:.3f} ms, and none agree" for ns in table["end_skew_ns"][~agree]
    ]
    given = given.mask(~agree, pd.Series(apart, index=agree.index[~agree], dtype="string").reindex(given.index))
    partial = ~table["complete"] & given.isna() & table["pg_ranks"].notna()
    lists = zip(table["pg_ranks"][partial], table["ranks"][partial].str.split().map(frozenset), strict=True)
    missing = [[rank for rank in group.split() if rank not in seen] for group, seen in lists]
    notes = [f"not seen on rank {', '.join(m[:8])}{', ...' if len(m) > 8 else ''}" for m in missing]
    return given.where(~partial, pd.Series(notes, index=given.index[partial], dtype="string").reindex(given.index))


def _times(joined: pd.DataFrame, comparable: pd.Series[bool]) -> pd.DataFrame:
    """Arrival, end and transfer times of each collective; NA if they need linked clocks or a second rank."""
    grouped = joined.groupby("collective_id", sort=True)
    first, last = grouped["arrived_ns"].min().astype("Int64"), grouped["arrived_ns"].max().astype("Int64")
    ended, min_dur = grouped["ended_ns"].max(), grouped["dur_ns"].min().astype("Int64")
    ordered = joined.sort_values(["collective_id", "arrived_ns"], kind="stable").groupby("collective_id", sort=True)
    # When data can start to move: a root sends before others have arrived, and takes what has arrived.
    source = joined[joined["is_source"]].groupby("collective_id")[["arrived_ns", "ended_ns"]].max().astype("Int64")
    sent, handed_over = (source[column].reindex(last.index) for column in ("arrived_ns", "ended_ns"))
    kind = grouped["kind"].first()
    eager = kind.isin(["send_recv"]) & (handed_over < last).fillna(False)
    begun = last.mask(kind.isin(FROM_ROOT) | eager, sent).mask(kind.isin(TO_ROOT), first)
    agreeing = joined["transfer_ns"].where(joined["agrees"]).groupby(joined["collective_id"])
    middle = (agreeing.median().astype("Float64") // 1).astype("Int64")
    # A rank that ends late was held up, also where it came last.
    low, done = (
        min_dur.mask((~grouped["agrees"].all() & (middle > 0) & (middle < min_dur)).fillna(False), middle),
        ended,
    )
    received = _received_on_cpu(joined)
    if len(received):
        arrived_at, took = (received[c].reindex(low.index) for c in ("ended_ns", "transfer_ns"))
        low, done, middle = low.mask(took < low, took), done.mask(arrived_at.notna(), arrived_at), took.fillna(middle)
    high = (done - begun).astype("Int64")
    middle = middle.mask((middle < low).fillna(False), low).mask((middle > high).fillna(False), high)
    compared = pd.DataFrame({
        "last_start_ns": last,
        # No skew, no last rank.
        "first_rank": ordered["rank"].first().astype("Int64").where(last > first),
        "last_rank": ordered["rank"].last().astype("Int64").where(last > first),
        "last_by_ns": last - _before_last(ordered["arrived_ns"], grouped.size()),
        "arrival_skew_ns": last - first,
        "end_skew_ns": ended - grouped["ended_ns"].min(),
        "last_arrival_to_last_end_ns": ended - last,
        "transfer_ns": middle,
        "transfer_high_ns": high,
    }).astype("Int64").where(comparable)  # fmt: skip
    raw = pd.DataFrame({"first_start_ns": grouped["start_ns"].min(), "last_end_ns": grouped["end_ns"].max()})
    return _without_assumed(compared, joined).assign(
        # On the common clock if there is one, else on each rank's own.
        first_start_ns=first.where(comparable, raw["first_start_ns"]),
        last_end_ns=ended.where(comparable, raw["last_end_ns"]),
        min_dur_ns=min_dur,
        transfer_low_ns=low.where(grouped.size() > 1),
    )


def _before_last(arrived: SeriesGroupBy[int, Any], calls: pd.Series[int]) -> pd.Series[int]:
    """The second-to-last arrival in each collective, in ns; `calls` is their number; NA for a single call."""
    # Int64 first: with a missing value int64 would become float, which does not hold ns since 1970.
    second_to_last: Any = arrived.nth(-2).astype("Int64").set_axis(calls.index[calls > 1])
    before: pd.Series[int] = second_to_last.reindex(calls.index)
    return before


def _without_assumed(compared: pd.DataFrame, joined: pd.DataFrame) -> pd.DataFrame:
    """Clear the values that rest only on calls ending together, and bound transfer by the longest call."""
    grouped = joined.groupby("collective_id", sort=True)
    untimed, known = grouped["untimed"].any(), compared["transfer_high_ns"].notna()
    high = compared["transfer_high_ns"].mask(untimed & known, grouped["dur_ns"].max())
    compared = compared.assign(transfer_high_ns=high)
    compared[_SEEN_ENDS] = compared[_SEEN_ENDS].mask(untimed)
    return compared


_SEEN_ENDS = ["end_skew_ns", "last_arrival_to_last_end_ns"]


def _received_on_cpu(joined: pd.DataFrame) -> pd.DataFrame:
    """The receive of each pair on CPUs, by collective: a send on a CPU ends only when its rank checks it."""
    of_pair = joined["kind"].isin(["send_recv"]) & joined["collective"].isin(["recv"]) & (joined["device"] == "cpu")
    return joined[of_pair].set_index("collective_id")[["ended_ns", "transfer_ns"]].astype("Int64")


def _with_bandwidth(table: pd.DataFrame, members: pd.Series[int]) -> pd.DataFrame:
    """Add algbw and busbw from the transfer time and its bounds, where these are known."""
    pairs = list(zip(table["collective"], table["group_size"], strict=True))
    factors = {
        pair: bus_factor(*pair)
        for pair in dict.fromkeys(pairs)
        if not pd.isna(pair[0]) and not pd.isna(pair[1]) and pair[0] != "barrier"
    }
    factor = pd.Series([factors.get(pair, np.nan) for pair in pairs], index=table.index).astype("Float64")
    size = table["size_bytes"].astype("Float64").where(table["size_bytes"] > 0)
    whole = (table["complete"] | table["sufficient"]) & table["certain"] & (members > 1)
    bounds = {"": "transfer_ns", "_low": "transfer_high_ns", "_high": "transfer_low_ns"}
    for bound, column in bounds.items():
        time_ns = table[column].where(whole & (table[column] > 0))
        table[f"algbw{bound}_gb_per_s"] = size / time_ns.astype("Float64")
        table[f"busbw{bound}_gb_per_s"] = table[f"algbw{bound}_gb_per_s"] * factor
    # In a partial collective, ranks that were not seen may have come even later.
    table["transfer_ns"] = table["transfer_ns"].where(whole)
    return table
