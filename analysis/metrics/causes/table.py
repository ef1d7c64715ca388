"""The table `lateness`: collectives with a late rank, why it was late, and where that began."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from ...core.nccl_tests import SYNCHRONISING
from ...core.schema import Row
from ...core.tables.lateness import LATENESS
from ..needs import FROM_ROOT, TO_ROOT
from .details import Details, Operators
from .late import late_ranks, uncertainty
from .origins import Origin, Reasons
from .sequences import Activities, programs, sequences, with_readiness


class Calls(NamedTuple):
    """Communication as far as it is known: tables of an analysis."""

    calls: pd.DataFrame
    collectives: pd.DataFrame
    participation: pd.DataFrame
    clocks: pd.DataFrame


def lateness(ran: Activities, known: Calls, operators: Operators) -> pd.DataFrame:
    """One row per collective whose last rank was late, with what that rank did longer than the others."""
    calls, collectives, participation, clocks = known
    told = calls[["call_id", "cycle", "issue_ns"]]
    kinds = collectives[["collective_id", "process_group", "pg_ranks", "collective"]]
    members = participation.merge(told, on="call_id").merge(kinds, on="collective_id")
    late = late_ranks(collectives, members, clocks)
    if not len(late):
        return LATENESS.empty()
    running = programs(ran, members)
    members = with_readiness(members, running, clocks)
    compared = members.drop_duplicates(["collective_id", "rank"])
    compared = compared[compared["collective"].isin([*SYNCHRONISING, *FROM_ROOT, *TO_ROOT])]
    reasons = Reasons(list(sequences(compared)), members)
    waits = participation.groupby("collective_id")["wait_ns"].sum(min_count=1)
    details = Details(reasons, ran.activities, members, running, operators)
    rows = []
    for row in late.to_dict("records"):
        number, rank = int(row["collective_id"]), int(row["rank"])
        rows.append(
            {"collective_id": number, "rank": rank, "late_ns": row["late_ns"], "chance": row["chance"]}
            | {"caused_wait_ns": waits[number]}
            | _reason(reasons, details, number, rank)
        )
    rows += _pairs(reasons, details, members, uncertainty(members, clocks))
    rows.sort(key=lambda row: row["collective_id"])
    return LATENESS.frame(rows)


def _pairs(reasons: Reasons, details: Details, members: pd.DataFrame, uncertain: pd.Series[float]) -> list[Row]:
    """The sends and receives that waited for a rank whose next collectives show that it was late."""
    waited = members[members["collective"].isin(["send_recv"]) & members["waited_for"].notna()]
    longer = waited["wait_ns"].astype("float64").to_numpy() > uncertain.reindex(waited["collective_id"]).to_numpy()
    rows: list[Row] = []
    for number, rank, wait_ns in waited.loc[longer, ["collective_id", "waited_for", "wait_ns"]].itertuples(index=False):
        origin = reasons.of_pair(int(number), int(rank), int(wait_ns))
        if origin is None or origin.because is None or not origin.is_known:
            continue
        row: Row = {"collective_id": int(number), "rank": int(rank), "late_ns": wait_ns, "caused_wait_ns": wait_ns}
        row |= {"because": origin.because if origin.rank == rank else "comm"}
        rows.append(row | _began(origin) | details.of(origin))
    return rows


def _reason(reasons: Reasons, details: Details, number: int, rank: int) -> Row:
    known = reasons.account(number, rank)
    if known is None:
        return {}
    found, _, at = known
    because = found.part(at)
    if because is None:
        return {}
    row: Row = {f"extra_{part}_ns": owed for part, owed in found.by_part(at).items()}
    origin = reasons.origin(number, rank) if because == "comm" else Origin(rank, number, because)
    return row | {"new_ns": int(found.new[at]), "because": because} | _began(origin) | details.of(origin)


def _began(origin: Origin) -> Row:
    return {"origin_rank": origin.rank, "origin_because": origin.because} if origin.is_known else {}
