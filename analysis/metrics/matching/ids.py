"""The first rungs: calls that carry the same id are one collective, unless they contradict each other.

torch computes the id on every rank from the name of the process group and the number of the call in it. So ids can be
trusted without any clock, and though records may be lost. Only two things make one doubtful: groups that share a name,
and ranks that count differently because one of them skipped a call.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...core.arrays import Flags, Ints
from ...core.schema import text_codes
from .state import RUNGS, TOO_MANY, Findings, State, known_kind


def by_id(state: State, calls: pd.DataFrame, key: str) -> Findings:
    """Match the calls that are undecided and have an id, by the column `key`: `comms_id` or `seq`.

    Calls that share an id but contradict each other stay alone, and are not offered to other rungs.
    """
    # Each rank counts its own sends and receives, so the numbers of the two sides differ.
    usable = (state.collective < 0) & calls[key].notna().to_numpy() & ~calls["collective"].isin(["send", "recv"])
    rows = np.flatnonzero(usable)
    if not len(rows):
        return
    table = _numbered(state, calls, key, rows)
    agree, uneven, too_many = _agree(state, table, rows), _uneven(table), _too_many(state, table, rows)
    bad = pd.Series(~agree | uneven | too_many).groupby(table["key"].to_numpy()).transform("any").to_numpy()
    # Calls that share an id and contradict each other stay alone: no other evidence may join them against their id.
    yield state.alone(rows[bad & agree & too_many], TOO_MANY)
    yield state.alone(rows[bad & agree & ~too_many], f"its {key} stands more often on one rank than on another")
    yield state.alone(rows[bad & ~agree], f"its {key} has another kind, dtype or size on another rank")
    # An id that one rank alone shows says nothing yet: others may lack it, and later rungs may find their calls.
    good = ~bad & ((table["members"] > 1).to_numpy() | (state.group_size[rows] == 1))
    yield state.together(rows[good], pd.factorize(table["key"][good])[0], RUNGS.index(key))


def _numbered(state: State, calls: pd.DataFrame, key: str, rows: Ints) -> pd.DataFrame:
    """One row per call of `rows` with the `key` of its possible collective, and how many calls that has (`members`)."""
    table = pd.DataFrame({
        "id": pd.factorize(calls[key].iloc[rows])[0],
        # The id is a hash of the group's name and the sequence number: disjoint groups of one name share ids.
        "group": state.group[rows] if key == "seq" else text_codes(calls["pg_ranks"].iloc[rows])[0],
        "member": state.member[rows],
        "start": state.calls.last_start[rows],
    })  # fmt: skip
    # One collective may run as uneven kernels; the k-th of each rank belong together.
    ordered = table.sort_values("start", kind="stable")
    table["turn"] = ordered.groupby(["group", "id", "member"]).cumcount()
    table["key"] = table.groupby(["group", "id", "turn"], sort=False).ngroup()
    return table.assign(members=table.groupby("key")["member"].transform("size"))


def _agree(state: State, table: pd.DataFrame, rows: Ints) -> Flags:
    """Whether all calls of a key agree in kind, dtype, size and size of the group, as far as these are known."""
    agree = np.ones(len(rows), dtype=bool)
    for codes in (known_kind(state.calls.kind), state.calls.dtype, state.calls.size, state.group_size):
        known = pd.Series(np.where(codes[rows] < 0, np.nan, codes[rows])).groupby(table["key"].to_numpy())
        agree &= ~(known.transform("min") < known.transform("max")).to_numpy()
    return agree


def _uneven(table: pd.DataFrame) -> Flags:
    """Whether the id of a call occurs more often on one rank than on another."""
    turns = table.groupby(["group", "id"])["turn"].transform("max")
    uneven = turns.gt(0) & (table.groupby(["group", "id"])["members"].transform("nunique") > 1)
    return uneven.to_numpy(dtype=bool)


def _too_many(state: State, table: pd.DataFrame, rows: Ints) -> Flags:
    """Whether more calls share a key than its process group has ranks."""
    limit = state.group_size[rows]
    return np.asarray((limit > 0) & (table["members"].to_numpy() > limit))
