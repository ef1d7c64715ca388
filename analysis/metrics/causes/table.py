"""Rows of `lateness`: collectives with a late rank, why it was late, and where that began.

A cause is named in three steps. A rank is late if it came last by more than clocks are uncertain. It was late because
of what it did longer than the other members of its group since they last met, as all of them run the same program. And
if that was communication, it was itself held up, so the search goes on at the rank it had waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pandas as pd

from ....common.nccl_tests import SYNCHRONISING
from ...core.schema import Row, records
from ..clocks.table import NO_STARTS
from ..needs import FROM_ROOT, TO_ROOT
from .cpu_work import Detailed
from .details import Details, Interval, KernelTimes
from .late import late_ranks, uncertainty
from .late_work import Behind
from .origins import Origin, Reasons
from .sequences import sequences


class Explained(NamedTuple):
    """Rows of `lateness`, the parts of programs in which ranks fell behind, and the calls with `readiness`."""

    rows: list[Row]
    behind: list[Behind]
    members: pd.DataFrame


def issued_calls(calls: pd.DataFrame, collectives: pd.DataFrame, participation: pd.DataFrame) -> pd.DataFrame:
    """The rows of `participation` with when each call was issued, its step and what it is a call of."""
    issued = calls[["call_id", "cycle", "step", "issue_ns"]]
    kinds = collectives[["collective_id", "process_group", "pg_ranks", "collective"]]
    return participation.merge(issued, on="call_id").merge(kinds, on="collective_id")


def explained(
    *,
    kernel_times: KernelTimes,
    members: pd.DataFrame,
    ready: pd.DataFrame,
    collectives: pd.DataFrame,
    participation: pd.DataFrame,
    clocks: pd.DataFrame,
    detailed: Callable[[int], Detailed],
) -> Explained:
    """Explain every collective with a late rank: one row each, with what that rank did longer than the others.

    `kernel_times` and `detailed` look up what ranks did; `members` are `issued_calls`, and `ready` their `readiness`;
    the rest are tables of these names.
    """
    late = late_ranks(collectives, members, clocks)
    if not len(late):
        return Explained([], [], members)
    waits = participation.groupby("collective_id")["wait_ns"].sum(min_count=1)
    if (clocks["basis"] == NO_STARTS).all():  # then nothing tells what ranks did in the meantime
        return Explained(records(late.assign(caused_wait_ns=late["collective_id"].map(waits))), [], members)
    members = members.join(ready.set_index("number"))
    compared = members.drop_duplicates(["collective_id", "rank"])
    # Sends and receives are left out: the two sides run different programs, so neither is the measure of the other.
    compared = compared[compared["collective"].isin([*SYNCHRONISING, *FROM_ROOT, *TO_ROOT])]
    reasons = Reasons(list(sequences(compared)), members)
    rows: list[tuple[Row, Origin | None]] = []
    for row in late.to_dict("records"):
        number, rank = int(row["collective_id"]), int(row["rank"])
        reason, origin = _reason(reasons, number, rank)
        start = {"collective_id": number, "rank": rank, "late_ns": row["late_ns"], "chance": row["chance"]}
        rows.append((start | {"caused_wait_ns": waits[number]} | reason, origin))
    rows += _pairs(reasons, members, uncertainty(members, clocks))
    rows.sort(key=lambda row: row[0]["collective_id"])
    origins = [origin for _, origin in rows if origin is not None]
    details = Details(reasons, kernel_times, members, detailed, origins)
    whole = [row if origin is None else row | details.of(origin) for row, origin in rows]
    return Explained(whole, _behind(rows, details, members), members)


def _behind(rows: list[tuple[Row, Origin | None]], details: Details, members: pd.DataFrame) -> list[Behind]:
    """The parts of programs in which ranks fell behind, each once, with all the waiting that followed from it."""
    steps = members.drop_duplicates(["collective_id", "rank"]).set_index(["collective_id", "rank"])["step"]
    weights: dict[tuple[int, Interval], int] = {}
    for row, origin in rows:
        interval = details.interval(origin) if origin is not None and origin.is_known else None
        if origin is not None and interval is not None and not pd.isna(row["caused_wait_ns"]):
            key = origin.rank, interval
            weights[key] = weights.get(key, 0) + int(row["caused_wait_ns"])
    behind = []
    for (rank, (before, until, others)), weight_ns in weights.items():
        step = steps.get((until, rank), pd.NA)
        behind.append(Behind(rank, None if pd.isna(step) else int(step), before, until, others, weight_ns))
    return behind


def _pairs(reasons: Reasons, members: pd.DataFrame, uncertain: pd.Series[float]) -> Iterator[tuple[Row, Origin]]:
    """Yield rows for sends and receives that waited for a rank whose next collectives show that it was late."""
    waited = members[members["collective"].isin(["send_recv"]) & members["waited_for"].notna()]
    longer = waited["wait_ns"].astype("float64").to_numpy() > uncertain.reindex(waited["collective_id"]).to_numpy()
    for number, rank, wait_ns in waited.loc[longer, ["collective_id", "waited_for", "wait_ns"]].itertuples(index=False):
        origin = reasons.of_pair(int(number), int(rank), int(wait_ns))
        if origin is None or origin.because is None or not origin.is_known:
            continue
        row: Row = {"collective_id": int(number), "rank": int(rank), "late_ns": wait_ns, "caused_wait_ns": wait_ns}
        row |= {"because": origin.because if origin.rank == rank else "comm"}
        yield row | _began(origin), origin


def _reason(reasons: Reasons, number: int, rank: int) -> tuple[Row, Origin | None]:
    """The columns that say why a rank was late at a collective, and where that began; nothing if it is not known."""
    known = reasons.account(number, rank)
    if known is None:
        return {}, None
    account, _, at = known
    because = account.part(at)
    if because is None:
        return {}, None
    row: Row = {f"extra_{part}_ns": owed for part, owed in account.by_part(at).items()}
    origin = reasons.origin(number, rank) if because == "comm" else Origin(rank, number, because)
    return row | {"new_ns": int(account.new[at]), "because": because} | _began(origin), origin


def _began(origin: Origin) -> Row:
    """The columns that say where a lateness began."""
    return {"origin_rank": origin.rank, "origin_because": origin.because} if origin.is_known else {}
