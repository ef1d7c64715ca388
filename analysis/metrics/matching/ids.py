"""The first rungs: calls that carry the same id are one collective, unless they contradict each other.

torch computes the id on every rank from the name of the process group and the number of the call in it, so equal ids
need neither a clock nor an order of calls. Only two things make an id doubtful: groups that share a name, and ranks
that count differently because one of them skipped a call.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...core.schema import text_codes
from ..clocks.frame import Flags, Ints
from .state import RUNGS, TOO_MANY, Findings, State, known_kind


def by_id(state: State, calls: pd.DataFrame, key: str) -> Findings:
    """Match by the column `key`: `comms_id` or `seq`."""
    # Each rank counts its own sends and receives, so the numbers of the two sides differ.
    usable = (state.collective < 0) & calls[key].notna().to_numpy() & ~calls["collective"].isin(["send", "recv"])
    rows = np.flatnonzero(usable)
    if not len(rows):
        return
    table = _numbered(state, calls, key, rows)
    agree, several, too_many = _agree(state, table, rows), _several(table), _too_many(state, table, rows)
    bad = pd.Series(~agree | several | too_many).groupby(table["key"].to_numpy()).transform("any").to_numpy()
    # Calls that share an id and contradict each other stay alone: no other evidence may join them against their id.
    yield state.alone(rows[bad & agree & too_many], TOO_MANY)
    yield state.alone(rows[bad & agree & ~too_many], f"its {key} stands more often on one rank than on another")
    yield state.alone(rows[bad & ~agree], f"its {key} has another kind, dtype or size on another rank")
    # An id that one rank alone shows says nothing yet: others may lack it, and later rungs may find their calls.
    good = ~bad & ((table["members"] > 1).to_numpy() | (state.group_size[rows] == 1))
    yield state.together(rows[good], pd.factorize(table["key"][good])[0], RUNGS.index(key))


def _numbered(state: State, calls: pd.DataFrame, key: str, rows: Ints) -> pd.DataFrame:
    """One row per call with the `key` of its possible collective, and how many members that has."""
    table = pd.DataFrame({
        "id": pd.factorize(calls[key].iloc[rows])[0],
        # The id is a hash of the group's name and the sequence number: disjoint groups of one name share ids.
        "group": state.group[rows] if key == "seq" else text_codes(calls["pg_ranks"].iloc[rows])[0],
        "member": state.member[rows],
        "start": state.calls.last_start[rows],
    })  # fmt: skip
    # One collective may run as several kernels; the k-th of each rank belong together.
    ordered = table.sort_values("start", kind="stable")
    table["turn"] = ordered.groupby(["group", "id", "member"]).cumcount()
    table["key"] = table.groupby(["group", "id", "turn"], sort=False).ngroup()
    return table.assign(members=table.groupby("key")["member"].transform("size"))


def _agree(state: State, table: pd.DataFrame, rows: Ints) -> Flags:
    """Whether everything known about the calls of one key agrees."""
    agree = np.ones(len(rows), dtype=bool)
    for codes in (known_kind(state.calls.kind), state.calls.dtype, state.calls.size, state.group_size):
        known = pd.Series(np.where(codes[rows] < 0, np.nan, codes[rows])).groupby(table["key"].to_numpy())
        agree &= ~(known.transform("min") < known.transform("max")).to_numpy()
    return agree


def _several(table: pd.DataFrame) -> Flags:
    """Whether an id occurs more often on one member than on another."""
    turns = table.groupby(["group", "id"])["turn"].transform("max")
    several = turns.gt(0) & (table.groupby(["group", "id"])["members"].transform("nunique") > 1)
    return several.to_numpy(dtype=bool)


def _too_many(state: State, table: pd.DataFrame, rows: Ints) -> Flags:
    limit = state.group_size[rows]
    return np.asarray((limit > 0) & (table["members"].to_numpy() > limit))
