"""Why calls could not be split into wait and transfer; `words` says what to do about it."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from ...core.schema import Row, records
from ..clocks.table import unclear

NO_TRACE = ("alone", "missing")
"""Kinds of reasons that more traces would remove."""


def reason(
    participation: pd.DataFrame,
    collectives: pd.DataFrame,
    clocks: pd.DataFrame,
    ranks: set[int],
    *,
    in_whole_steps: Collection[int],
    some_missing: bool,
    has_starts: bool = True,
) -> str:
    """The kind of reason, a key of `words._ADVICE`, why most of the unsplit time is so; empty if all calls are split.

    `ranks` are those with a trace; `some_missing` if the job has others. `in_whole_steps` are calls, by `call_id`, of
    steps that are in the traces from beginning to end. Without starts (`has_starts`), only durations are known.
    """
    unsplit = participation[participation["wait_ns"].isna()][["collective_id", "call_id", "rank", "start_ns", "dur_ns"]]
    unsplit = unsplit.assign(whole=unsplit["call_id"].isin(list(in_whole_steps)))
    if len(ranks) == 1:
        return "alone"
    columns = ["collective_id", "collective", "pg_ranks", "matched_by", "certain", "complete", "arrival_skew_ns"]
    joined = unsplit.merge(collectives[columns], on="collective_id")
    joined["at_jump"] = unclear(joined["start_ns"], joined["rank"], clocks)
    joined["at_jump"] = joined.groupby("collective_id", sort=False)["at_jump"].transform("any")
    of_groups = {text: {int(rank) for rank in text.split()} <= ranks for text in joined["pg_ranks"].dropna().unique()}
    joined["traced"] = [of_groups.get(text, True) for text in joined["pg_ranks"]]  # members are as many as ranks
    kinds = joined.assign(why=[_reason_of(row, some_missing, has_starts) for row in records(joined)])
    return str(kinds.groupby("why")["dur_ns"].sum().idxmax()) if len(kinds) else ""


def _reason_of(collective: Row, some_missing: bool, has_starts: bool) -> str:
    if not collective["traced"]:
        return "missing"
    if collective["collective"] is None:
        return "unknown"
    if collective["matched_by"] == "none" or not collective["certain"]:
        return "unmatched" if collective["whole"] else "cut"
    if not collective["complete"]:
        return "missing" if some_missing and collective["pg_ranks"] is None else "lost"
    if not has_starts:
        return "durations"
    if collective["at_jump"]:
        return "jumped"
    return "unlinked" if collective["arrival_skew_ns"] is None else "root"
