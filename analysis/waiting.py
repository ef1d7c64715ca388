"""Every rank's time in a collective, split into waiting for others and moving data; and the collective as a whole.

A kernel's duration includes waiting for the slowest rank, so durations alone say little about the network. Definitions:
docs/metrics.md, "Wait and transfer".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from .clocks import Clock
from .nccl_tests import SYNCHRONISING, bus_factor
from .schema import COLLECTIVES, PARTICIPATION, Row, records


def participation(calls: pd.DataFrame, matches: pd.DataFrame, clock: Clock) -> pd.DataFrame:
    """One row per call: its wait and transfer, NA where the collective is partial, unmatched, or clocks differ."""
    rows = []
    for collective_id, together in calls.merge(matches, on="call_id").groupby("collective_id", sort=True):
        members = records(together)
        waits = _waits(members, clock)
        first = min(m["start_ns"] for m in members)
        comparable = clock.shared and len(members) > 1
        for member, wait in zip(members, waits, strict=True):
            rows.append({
                "collective_id": collective_id,
                "call_id": member["call_id"],
                "rank": member["rank"],
                "device": member["device"],
                "start_ns": member["start_ns"],
                "dur_ns": member["dur_ns"],
                "wait_ns": wait,
                "transfer_ns": None if wait is None else member["dur_ns"] - wait,
                "late_ns": member["start_ns"] - first if comparable else None,
            })  # fmt: skip
    return PARTICIPATION.frame(rows)


def _waits(members: list[Row], clock: Clock) -> list[int | None]:
    """Wait of each member in ns, within [0, duration]; None where it cannot be known."""
    if not clock.shared or not _complete(members):
        return [None] * len(members)
    return [_clipped(needed, m) for needed, m in zip(_needed_start(members), members, strict=True)]


def _clipped(needed_ns: int | None, member: Row) -> int | None:
    if needed_ns is None:
        return None
    return int(min(max(needed_ns - member["start_ns"], 0), member["dur_ns"]))


def _needed_start(members: list[Row]) -> list[int | None]:
    """When the last rank that each member needs has arrived: everybody, or by root and sender."""
    kinds = {m["collective"] for m in members}
    starts = [m["start_ns"] for m in members]
    if kinds == {"send", "recv"}:
        sent = next(m["start_ns"] for m in members if m["collective"] == "send")
        return [sent if m["collective"] == "recv" else m["start_ns"] for m in members]
    kind = _first_known(members, "collective")
    if kind in SYNCHRONISING:
        return [max(starts)] * len(members)
    root = next((m for m in members if m["rank"] == m["root"]), None)
    if root is None:
        return [None] * len(members)
    if kind in ("broadcast", "scatter"):
        return [root["start_ns"]] * len(members)
    # reduce, gather: the root needs everybody, nobody needs the root.
    return [max(starts) if m is root else m["start_ns"] for m in members]


def _first_known(members: list[Row], key: str) -> Any:
    """What the first member that knows says; matched members do not contradict each other."""
    return next((m[key] for m in members if m[key] is not None), None)


def _complete(members: list[Row]) -> bool:
    if {m["collective"] for m in members} == {"send", "recv"}:
        return True
    ranks = members[0]["pg_ranks"]
    if members[0]["matched_by"] == "none" and len(members) == 1 and ranks != str(members[0]["rank"]):
        return False
    return ranks is None or len(members) == len(ranks.split())


def collectives(
    calls: pd.DataFrame, matches: pd.DataFrame, participation: pd.DataFrame, clock: Clock, world_size: int | None
) -> pd.DataFrame:
    """One row per collective, with arrival and end skew, and both bounds of its transfer time and bandwidth.

    Where the process group is not known, a collective is complete if all `world_size` ranks are in it.
    """
    transfers = participation.set_index("call_id")["transfer_ns"]
    joined = calls.merge(matches, on="call_id").sort_values(["collective_id", "rank"])
    joined = joined.assign(transfer_ns=joined["call_id"].map(transfers).astype("Int64"))
    return COLLECTIVES.frame(
        _collective(int(str(number)), records(together), clock, world_size)
        for number, together in joined.groupby("collective_id", sort=True)
    )


def _collective(number: int, members: list[Row], clock: Clock, world_size: int | None) -> Row:
    first = members[0]
    kinds = {m["collective"] for m in members}
    kind = "send_recv" if kinds == {"send", "recv"} else _first_known(members, "collective")
    sizes = [m["size_bytes"] for m in members if m["size_bytes"] is not None]
    size = max(sizes) if sizes else None
    complete = _complete(members)
    if first["pg_ranks"] is None and kind != "send_recv":
        complete = complete and world_size is not None and len(members) == world_size
    group_size = 2 if kind == "send_recv" else first["group_size"] or (len(members) if complete else None)
    row: Row = {
        "collective_id": number,
        "collective": kind,
        "process_group": first["process_group"],
        "pg_ranks": first["pg_ranks"],
        "group_size": group_size,
        "dtype": _first_known(members, "dtype"),
        "size_bytes": size,
        "seq": first["seq"],
        "matched_by": first["matched_by"],
        "note": first["note"] or (None if complete else _partial_note(members)),
        "ranks": " ".join(str(m["rank"]) for m in members),
        "complete": complete,
        **_times(members, clock),
    }
    transfer = row["transfer_ns"] if complete else None
    bounds = {"": transfer, "_low": row["last_arrival_to_last_end_ns"] if complete else None,
              "_high": row["min_dur_ns"] if len(members) > 1 else None}  # fmt: skip
    for bound, time_ns in bounds.items():
        algbw = size / time_ns if size and time_ns and kind else None
        row[f"algbw{bound}_gb_per_s"] = algbw
        row[f"busbw{bound}_gb_per_s"] = algbw * bus_factor(kind, group_size) if algbw and kind and group_size else None
    return row


def _partial_note(members: list[Row]) -> str | None:
    ranks = members[0]["pg_ranks"]
    if ranks is None:
        return None
    missing = [r for r in ranks.split() if int(r) not in {m["rank"] for m in members}]
    return f"not seen on rank {', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}" if missing else None


def _times(members: list[Row], clock: Clock) -> Row:
    """Arrival, end and transfer of one collective; what needs a shared clock is NA without one."""
    starts = np.array([m["start_ns"] for m in members], dtype=np.int64)
    durs = np.array([m["dur_ns"] for m in members], dtype=np.int64)
    ends = starts + durs
    row: Row = {"first_start_ns": starts.min(), "last_end_ns": ends.max(), "min_dur_ns": durs.min()}
    if len(members) < 2 or not clock.shared:
        return row | dict.fromkeys(("transfer_ns", "last_arrival_to_last_end_ns"))
    row |= {
        "last_start_ns": starts.max(),
        "first_rank": members[int(starts.argmin())]["rank"],
        "last_rank": members[int(starts.argmax())]["rank"],
        "arrival_skew_ns": np.ptp(starts),
        "end_skew_ns": np.ptp(ends),
        "last_arrival_to_last_end_ns": ends.max() - starts.max(),
    }
    transfers = [int(m["transfer_ns"]) for m in members if m["transfer_ns"] is not None]
    middle = int(np.median(transfers)) if transfers else None
    low, high = row["min_dur_ns"], row["last_arrival_to_last_end_ns"]
    return row | {"transfer_ns": None if middle is None else min(max(middle, low), high)}
