"""Every rank's time in a collective, split into waiting for others and moving data; and the collective as a whole.

A kernel's duration includes waiting for the slowest rank, so durations alone say little about the network. Definitions:
docs/metrics.md, "Wait and transfer".
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from .clocks import Clock
from .nccl_tests import SYNCHRONISING, bus_factor
from .schema import COLLECTIVES, PARTICIPATION

_CARRIED = ["collective", "process_group", "pg_ranks", "group_size", "dtype", "size_bytes", "seq"]
# Receivers of these need their root, or sender, and nobody else.
_FROM_ROOT = ("broadcast", "scatter")
_TO_ROOT = ("reduce", "gather")


def participation(
    calls: pd.DataFrame, matches: pd.DataFrame, clock: Clock, world_size: int | None = None
) -> pd.DataFrame:
    """One row per call: its wait and transfer, NA where the collective is partial, unmatched, or clocks differ.

    Where the process group is not known, a collective is complete if all `world_size` ranks are in it.
    """
    joined = _joined(calls, matches)
    grouped = joined.groupby("collective_id", sort=False)
    comparable = clock.shared & (grouped["rank"].transform("size") > 1)
    needed_ns = _needed_start(joined).where(comparable & _complete(joined, world_size))
    wait_ns = (needed_ns - joined["start_ns"]).clip(lower=0)
    wait_ns = wait_ns.mask((wait_ns > joined["dur_ns"]).fillna(False), joined["dur_ns"])
    late_ns = joined["start_ns"] - grouped["start_ns"].transform("min")
    return PARTICIPATION.conform(
        joined[["collective_id", "call_id", "rank", "device", "start_ns", "dur_ns"]].assign(
            wait_ns=wait_ns,
            transfer_ns=joined["dur_ns"] - wait_ns,
            late_ns=late_ns.astype("Int64").where(comparable),
        )
    )


def _joined(calls: pd.DataFrame, matches: pd.DataFrame) -> pd.DataFrame:
    """Calls with their collective, by collective and rank; `kind` is that of the collective as a whole."""
    joined = calls.merge(matches, on="call_id").sort_values(["collective_id", "rank"], ignore_index=True)
    kinds = joined.groupby("collective_id", sort=False)["collective"]
    pair = joined["collective"].isin(["send", "recv"]) & (kinds.transform("nunique") == 2)
    return joined.assign(kind=kinds.transform("first").mask(pair, "send_recv"))


def _needed_start(joined: pd.DataFrame) -> pd.Series[int]:
    """When the last rank that each call needs has arrived: everybody, or root or sender. NA without a known root."""
    collective, kind = joined["collective_id"], joined["kind"]
    start = joined["start_ns"].astype("Int64")
    last = start.groupby(collective).transform("max")
    is_source = (joined["rank"] == joined["root"]).fillna(False) | (joined["collective"] == "send").fillna(False)
    source_start = start.where(is_source & (kind != "send_recv") | (joined["collective"] == "send").fillna(False))
    source_start = source_start.groupby(collective).transform("max")
    needed = start.where(kind.isin(["send_recv", *_TO_ROOT]) & source_start.notna())
    needed = needed.mask(kind.isin(SYNCHRONISING), last)
    needed = needed.mask(kind.isin(_FROM_ROOT) | (joined["collective"] == "recv").fillna(False), source_start)
    # reduce, gather: the root needs everybody, nobody needs the root.
    return needed.mask(kind.isin(_TO_ROOT) & is_source, last)


def _complete(joined: pd.DataFrame, world_size: int | None) -> pd.Series[bool]:
    """Was every rank of the process group seen? Of a group that is not known, as many as it has, or the world."""
    members = joined.groupby("collective_id", sort=False)["rank"].transform("size")
    expected = joined["pg_ranks"].str.count(" ").astype("Int64") + 1
    expected = expected.fillna(joined["group_size"]).fillna(world_size if world_size is not None else pd.NA)
    expected = expected.mask(joined["kind"] == "send_recv", 2)
    # Matched by everything known, and nothing says that somebody is missing.
    return (members == expected.fillna(members)).astype(bool) & (joined["matched_by"] != "none")


def collectives(
    calls: pd.DataFrame, matches: pd.DataFrame, participation: pd.DataFrame, clock: Clock, world_size: int | None
) -> pd.DataFrame:
    """One row per collective, with arrival and end skew, and both bounds of its transfer time and bandwidth."""
    joined = _joined(calls, matches)
    joined = joined.assign(
        end_ns=joined["start_ns"] + joined["dur_ns"],
        complete=_complete(joined, world_size),
        transfer_ns=joined["call_id"].map(participation.set_index("call_id")["transfer_ns"]),
    )
    grouped = joined.groupby("collective_id", sort=True)
    table = (
        grouped[_CARRIED]
        .first()
        .assign(
            collective=grouped["kind"].first(),
            size_bytes=grouped["size_bytes"].max(),
            # Of a pair each side counts its own sends and receives.
            seq=grouped["seq"].first().mask(grouped["kind"].first() == "send_recv"),
            matched_by=grouped["matched_by"].first(),
            complete=grouped["complete"].first(),
            ranks=joined["rank"].astype(str).groupby(joined["collective_id"]).agg(" ".join),
        )
    )
    members = grouped.size()
    size = table["group_size"].mask(table["collective"] == "send_recv", 2)
    table["group_size"] = size.mask(size.isna() & table["complete"], members)
    table["note"] = _notes(grouped["note"].first(), table)
    table = table.join(_times(joined, members, clock))
    return COLLECTIVES.conform(_with_bandwidth(table, members).reset_index())


def _notes(given: pd.Series[str], table: pd.DataFrame) -> pd.Series[str]:
    """Why a collective is unmatched, or which ranks a partial one lacks."""
    partial = ~table["complete"] & given.isna() & table["pg_ranks"].notna()
    missing = [
        [r for r in group.split() if r not in seen.split()]
        for group, seen in zip(table["pg_ranks"][partial], table["ranks"][partial], strict=True)
    ]
    notes = [f"not seen on rank {', '.join(m[:8])}{', ...' if len(m) > 8 else ''}" for m in missing]
    return given.where(~partial, pd.Series(notes, index=given.index[partial], dtype="string").reindex(given.index))


def _times(joined: pd.DataFrame, members: pd.Series[int], clock: Clock) -> pd.DataFrame:
    """Arrival, end and transfer of every collective; NA where that needs a shared clock, or a second rank."""
    grouped = joined.groupby("collective_id", sort=True)
    first, last = grouped["start_ns"].min(), grouped["start_ns"].max()
    ended, min_dur = grouped["end_ns"].max(), grouped["dur_ns"].min()
    upper = ended - last
    middle = np.floor(grouped["transfer_ns"].median()).astype("Int64")
    ranks = joined["rank"].astype("Int64")
    compared = pd.DataFrame({
        "last_start_ns": last,
        "first_rank": ranks.loc[grouped["start_ns"].idxmin()].to_numpy(),
        "last_rank": ranks.loc[grouped["start_ns"].idxmax()].to_numpy(),
        "arrival_skew_ns": last - first,
        "end_skew_ns": ended - grouped["end_ns"].min(),
        "last_arrival_to_last_end_ns": upper,
        "transfer_ns": middle.mask((middle < min_dur).fillna(False), min_dur).mask(
            (middle > upper).fillna(False), upper
        ),
    }, index=last.index).astype("Int64")  # fmt: skip
    compared = compared.where((members > 1) & clock.shared)
    return compared.assign(first_start_ns=first, last_end_ns=ended, min_dur_ns=min_dur)


def _with_bandwidth(table: pd.DataFrame, members: pd.Series[int]) -> pd.DataFrame:
    """Algorithm and bus bandwidth from the transfer time and from both of its bounds, where they are known."""
    factors = {
        pair: bus_factor(*pair)
        for pair in zip(table["collective"], table["group_size"], strict=True)
        if not pd.isna(pair[0]) and not pd.isna(pair[1]) and pair[0] != "barrier"
    }
    pairs = zip(table["collective"], table["group_size"], strict=True)
    factor = pd.Series([factors.get(pair, np.nan) for pair in pairs], index=table.index)
    size = table["size_bytes"].astype("Float64").where(table["size_bytes"] > 0)
    whole = table["complete"] & (members > 1)
    bounds = {
        "": table["transfer_ns"].where(whole),
        "_low": table["last_arrival_to_last_end_ns"].where(whole),
        "_high": table["min_dur_ns"].astype("Int64").where(whole),
    }
    for bound, time_ns in bounds.items():
        algbw = size / time_ns.where(time_ns > 0).astype("Float64")
        table[f"algbw{bound}_gb_per_s"] = algbw
        table[f"busbw{bound}_gb_per_s"] = algbw * factor.astype("Float64")
    return table
