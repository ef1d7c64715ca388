"""What was made of each rank, one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

import pandas as pd

from ..core.declaring import Value


def join_ranks(of_ranks: Sequence[Value]) -> Value:
    """What all ranks come to, of what was made of each; there is at least one.

    Tables are one below the other, dictionaries and lists hold all that is in those of the ranks, and of tuples each
    member is joined. Whatever else is made of each rank has a `joined` of its own.
    """
    parts: Sequence[Any] = of_ranks
    first = parts[0]
    found: Any
    if isinstance(first, pd.DataFrame):
        # A table without rows may have other dtypes.
        found = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    elif isinstance(first, dict):
        found = {key: one for part in parts for key, one in part.items()}
    elif isinstance(first, list):
        found = list(chain.from_iterable(parts))
    elif isinstance(first, tuple):
        found = type(first)(*map(join_ranks, zip(*parts, strict=True)))
    else:
        found = first.joined(parts)
    return cast("Value", found)
