"""How many bytes each rank sends to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..core.declaring import TableEntry, Topic
from ..core.frames import pd
from ..core.schema import Row, Schema, records
from ..core.tables.columns import PARTIAL_MEMBER

_NUMBER = re.compile(r"[0-9]{1,18}")
_PAIR = ["rank", "to_rank", "collective"]

TRAFFIC = Schema("traffic", "sender, receiver and collective", {
    "rank": ("int64", "rank that sends"),
    "to_rank": ("int64", "rank that receives"),
    "collective": ("string", "send_recv or all_to_all"),
    "calls": ("int64", "sends, or calls of all_to_all"),
    "size_bytes": ("Int64", "bytes sent; of an all_to_all that part which goes to this rank; NA if not recorded"),
    "transfer_ns": ("Int64", "sum of the transfer times of the sends; NA for all_to_all, which has no pairs"),
    "algbw_gb_per_s": ("Float64", "size_bytes / transfer_ns, of the sends for which both are known"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip


@TableEntry(
    TRAFFIC,
    Topic.communication,
    "How much each rank sends to each other rank.",
    "bandwidth.md#between-two-ranks",
    command="table traffic",
    after="bandwidth_ceiling",
    none_found="no rank sends to a single other rank, and there is no all_to_all",
    narrow=("rank", "to_rank", "collective", "size_bytes", "algbw_gb_per_s", "calls", "transfer_ns"),
)
def traffic(calls: pd.DataFrame, collectives: pd.DataFrame, matches: pd.DataFrame) -> pd.DataFrame:
    """One row per sender, receiver and collective, of sends and of all_to_all: bytes and bandwidth.

    What a rank sends to itself is left out.
    """
    rows = pd.DataFrame(
        [*_sends(calls, collectives, matches), *_shares(calls)],
        columns=[*_PAIR, "size_bytes", "transfer_ns", "timed_bytes", "timed_ns"],
    )
    if not len(rows):
        return TRAFFIC.empty()
    sums = rows.astype(dict.fromkeys(["size_bytes", "transfer_ns", "timed_bytes", "timed_ns"], "Int64"))
    grouped = sums.groupby(_PAIR, sort=True)
    totals = grouped[["size_bytes", "transfer_ns", "timed_bytes", "timed_ns"]].sum(min_count=1).reset_index()
    totals["calls"] = grouped.size().to_numpy()
    rate = totals["timed_bytes"].astype("Float64") / totals["timed_ns"].astype("Float64").replace(0, pd.NA)
    return TRAFFIC.conform(totals.assign(algbw_gb_per_s=rate).drop(columns=["timed_bytes", "timed_ns"]))


def _sends(calls: pd.DataFrame, collectives: pd.DataFrame, matches: pd.DataFrame) -> Iterator[Row]:
    """Yield one row per send from one rank to another, or per receive if the sender has no trace."""
    pairs = calls[calls["collective"].isin(["send", "recv"]) & calls["root"].notna()]
    pairs = pairs.merge(matches[["call_id", "collective_id"]], on="call_id")
    transfers = collectives.set_index("collective_id")["transfer_ns"]
    sent = set(pairs["collective_id"][pairs["collective"] == "send"])
    for call in records(pairs):
        if call["collective"] == "recv" and call["collective_id"] in sent:
            continue
        ends = (call["rank"], call["root"]) if call["collective"] == "send" else (call["root"], call["rank"])
        took = transfers.get(call["collective_id"])
        timed = took is not None and not pd.isna(took) and call["size_bytes"] is not None
        yield {
            "rank": ends[0],
            "to_rank": ends[1],
            "collective": "send_recv",
            "size_bytes": call["size_bytes"],
            "transfer_ns": took,
            "timed_bytes": call["size_bytes"] if timed else None,
            "timed_ns": took if timed else None,
        }


def _shares(calls: pd.DataFrame) -> Iterator[Row]:
    """Yield the bytes that each all_to_all call sends to each other rank."""
    shared = calls[(calls["collective"] == "all_to_all") & calls["pg_ranks"].notna()]
    columns = ["rank", "pg_ranks", "in_elems", "out_elems", "in_split", "size_bytes"]
    for call in records(shared[columns]):
        members = [int(rank) for rank in call["pg_ranks"].split()]
        for member, share in zip(members, _bytes_to(call, len(members)), strict=True):
            if member != call["rank"]:
                yield {"rank": call["rank"], "to_rank": member, "collective": "all_to_all", "size_bytes": share}


def _bytes_to(call: dict[str, Any], members: int) -> list[int | None]:
    """Bytes that the call sends to each member: by the recorded split, else in equal parts."""
    unknown: list[int | None] = [None] * members
    if call["in_elems"] is None or call["size_bytes"] is None:
        return unknown
    size = call["in_elems"] * call["size_bytes"] // max(call["in_elems"], call["out_elems"] or 0, 1)
    parts = _numbers(call["in_split"] or "") or [1] * members
    if len(parts) != members or not sum(parts):
        return unknown if size else [0] * members
    return [size * part // sum(parts) for part in parts]


def _numbers(split: str) -> list[int]:
    """The numbers of a split such as `[3, 0, 5]`."""
    return [int(part) for part in _NUMBER.findall(split)]
