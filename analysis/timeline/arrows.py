"""Arrows from a late rank to every call that waited for it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ..metrics.clocks.table import aligned
from .tables import Tables

_OF_CALL = ["call_id", "stream", "step", "name", "size_bytes"]
_OF_COLLECTIVE = ["collective_id", "process_group", "pg_ranks", "dtype", "seq", "matched_by"]
_OF_MEMBER = ["collective_id", "call_id", "rank", "device", "start_ns", "dur_ns", "arrived_ns", "wait_ns", "waited_for"]


@dataclass(frozen=True)
class Arrows:
    """Calls, and places where ranks were late.

    `calls` has a row per call, on the common clock: `arrived_ns`, `ended_ns` and, where it could be split, `moving_ns`,
    from when data moved. Of a call that waited, `due_ns` is when what it waited for arrived, and `arrow` the id of the
    arrow that ends there; 0 where there is none. `late` has a row per collective and rank that was late, or waited for:
    from `start_ns` to `end_ns`, when it arrived; the ids of the arrows that begin there count from `arrow`, and are
    `fan` many.
    """

    calls: pd.DataFrame
    late: pd.DataFrame


def arrows(tables: Tables) -> Arrows:
    """The calls that are shown, and what they waited for."""
    calls = _shown(tables)
    arrived = calls.groupby(["collective_id", "rank"])["arrived_ns"].max().astype("Int64")
    calls = calls.join(arrived.rename("due_ns"), on=["collective_id", "waited_for"])
    waited = calls[(calls["wait_ns"] > 0).fillna(False) & calls["due_ns"].notna()]
    waited = waited.sort_values(["collective_id", "waited_for"], kind="stable").assign(arrow=range(1, len(waited) + 1))
    calls["arrow"] = waited["arrow"].reindex(calls.index, fill_value=0)
    return Arrows(calls, _late(tables.lateness, waited, arrived))


def _late(lateness: pd.DataFrame, waited: pd.DataFrame, arrived: pd.Series[int]) -> pd.DataFrame:
    """Where a rank was late, or merely last. A last rank is shown for the shortest wait for it."""
    member = ["collective_id", "rank"]
    pairs = waited.groupby(["collective_id", "waited_for"], as_index=False).agg(
        shortest_ns=("wait_ns", "min"), arrow=("arrow", "min"), fan=("arrow", "size")
    )
    late = lateness.astype({"late_ns": "Int64"})  # which, unlike int64, stays integer beside NA
    late = late.merge(pairs.rename(columns={"waited_for": "rank"}), on=member, how="outer", indicator="only_last")
    late = late.merge(arrived.rename("end_ns").reset_index(), on=member).astype({"end_ns": "int64"})
    for column in ("arrow", "fan"):
        late[column] = late[column].fillna(0).astype("int64")
    late["start_ns"] = late["end_ns"] - late["late_ns"].fillna(late["shortest_ns"]).astype("int64")
    late["only_last"] = late["only_last"] == "right_only"
    return late


def _shown(tables: Tables) -> pd.DataFrame:
    """The calls that are shown, with their collective, on the common clock."""
    whole = tables.collectives.reindex(columns=[*_OF_COLLECTIVE, "collective", "role"]).astype({"role": "string"})
    whole = whole.rename(columns={"collective": "of_all"})
    calls = tables.participation[_OF_MEMBER].merge(tables.calls[[*_OF_CALL, "collective"]], on="call_id")
    calls = calls.merge(whole, on="collective_id")
    calls["ended_ns"] = aligned(calls["start_ns"] + calls["dur_ns"], calls["rank"], tables.clocks)
    moving, ended = calls["arrived_ns"] + calls["wait_ns"], calls["ended_ns"]
    only_waited = (calls["wait_ns"] == calls["dur_ns"]) | (moving > ended)
    calls["moving_ns"] = moving.mask(only_waited.fillna(False), ended)
    calls["what"] = calls["collective"].fillna(calls["of_all"]).fillna(calls["name"])
    uncertainty = tables.clocks.set_index("rank")["bent_uncertainty_ns"]
    calls["clock_uncertainty_ns"] = calls["rank"].map(uncertainty).astype("Int64")
    return calls
