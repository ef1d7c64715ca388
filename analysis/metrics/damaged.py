"""Which rows of a table rest on damaged files."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import pandas as pd

# Columns that name a rank whose file a row rests on.
_RANKS = ("rank", "linked", "waited_for", "origin_rank", "blamed_rank", "to_rank")


def resting_on(table: pd.DataFrame, damaged: AbstractSet[int]) -> pd.Series[bool]:
    """Whether each row of the table rests on a damaged file of one of these ranks. Same index.

    A row that names no rank does if one of these takes part, or might; one that names no members, either, always does.
    """
    ranks = [column for column in _RANKS if column in table]
    if ranks:
        return table[ranks].isin(list(damaged)).any(axis=1)
    if not damaged or "pg_ranks" not in table:
        return pd.Series(bool(damaged), index=table.index)
    members = table["pg_ranks"]
    if "complete" in table:  # only two members of a large group take part in a pair
        members = members.mask(table["complete"], table["ranks"])
    rests = {text: not damaged.isdisjoint(map(int, text.split())) for text in members.dropna().unique()}
    return pd.Series([rests.get(text, True) for text in members], index=table.index, dtype=bool)
